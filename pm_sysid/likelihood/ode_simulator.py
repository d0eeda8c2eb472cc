"""A system as a simulator for approximate Bayesian computation, one run at a time or many."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pytensor.graph import vectorize_graph
from pytensor.graph.basic import Variable

from pm_sysid.arguments import number
from pm_sysid.compat import NoneTypeT, SimulatorRV
from pm_sysid.likelihood.coordinates import for_each_particle
from pm_sysid.likelihood.distances import MEASURES, MeanDistance, distance_of, gaussian_kernel
from pm_sysid.likelihood.simulator_function import FloatArray, Simulation
from pm_sysid.progress import announced
from pm_sysid.records.joined import joined
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.functions import compiled
from pm_sysid.solve.checks import check_name, check_params, check_records, check_system, noise_entries, vector
from pm_sysid.solve.initial_state import StartSpec, initial_state
from pm_sysid.solve.noise import check_plain_noise
from pm_sysid.solve.run_substeps import checked_method, simulator_substeps
from pm_sysid.symbolic.system import System

#: What a distance that is no name is called.
FUNCTION = "a function"


class SimulatorInputs(NamedTuple):
    """What a simulator's random variable depends on, in the order in which ``pm.Simulator`` takes it.

    ``params`` (P,), ``x0`` (R, n_x), ``noise`` (n_y,), and the times (T,).
    """

    params: Any
    x0: Any
    noise: Any
    time: Any


class ODESimulator:
    """A system as a ``pm.Simulator``: its free runs are compared with a measured record by a distance.

    For approximate Bayesian computation, where the likelihood is replaced by ``exp(-(distance / epsilon)^2 / 2)``.

    Parameters
    ----------
    name, params
        As for :class:`ODEFilter`.
    system : System
        Equations of motion and outputs; also a static map (no states).
    data : TimeSeries or list of TimeSeries
        The measured record, NaN where a sample is missing; or several with one set of parameters, joined along time.
    noise : number, PyMC variable, sequence or mapping by output, optional
        Standard deviation of measurement noise added to each simulation, in the unit of the output. By default none: the
        distance is that of the deterministic run, as in the paper.
    x0 : number, mapping by state, sequence or vector, optional
        Initial state (numbers or variables); for several records a list. By default read off the first samples of ``y``
        where an output shows the state, and zero elsewhere.
    substeps : int, "auto" or array of int, shape (T - 1,), default "auto"
        Steps in each sampling interval, or a number for each of them (for several records a list of arrays). ``"auto"``
        doubles them until three quarters of some draws from the prior move by a normalised mean square error below 0.01 %, and
        says what it chose; where the intervals of a stiff system differ by orders of magnitude, the steps follow the
        solutions. What is given is obeyed and checked.
    method : {"auto", "rk4", "implicit"}, default "auto"
        As for :func:`simulate`; ``"auto"`` takes implicit steps where runs of the prior are lost otherwise, by stiffness.
    distance : {"nmse", "nrmse", "nmae"} or callable, default "nmse"
        Distance of a simulated from the observed record, averaged over outputs and records: 100 times the mean square, root
        mean square or mean absolute error, the error being in standard deviations of the observed output. Or a function of
        (observed, simulated), both of the shape of ``data.y``, which returns a number, or one for each output; where
        ``observed`` is NaN, it has to leave samples out.
    epsilon : float, default 1.0
        Scale of the distances that are acceptable, in their unit (percent for the named ones).

    Returns
    -------
    TensorVariable
        Shape (T,) or (T, n_y), like ``data.y``; observed on it.

    Raises
    ------
    ValueError, TypeError
        As for :func:`ODEFilter`.

    Notes
    -----
    ``pm.sample_smc`` samples it with its own kernels, one simulation for each evaluation; prior and posterior predictive
    draws are simulated records, with the noise if there is any. Parameters with which the solution diverges have an
    infinite distance, and a log-likelihood of minus infinity. With a named distance the pseudo-likelihood is compiled.

    Source: Nayek et al. (2023), Eq. 14 for the distance ``"nmse"``.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pm_sysid as sid
    >>> spring = sid.System(None, states=(), inputs=("z",), params=("k",), observe=lambda t, x, dx, u, p: p.k * u.z)
    >>> z = np.linspace(-1.0, 1.0, 21)
    >>> with pm.Model() as model:
    ...     k = pm.LogNormal("k", 0.0, 0.5)
    ...     force = sid.ODESimulator("force", spring, sid.TimeSeries(np.arange(21.0), z, 1.5 * z), {"k": k})
    >>> bool(model.compile_logp(vars=[force])({"k_log__": np.log(1.5)}) > -1e-6)
    True
    """

    def __new__(
        cls,
        name: str,
        system: System,
        data: TimeSeries | Sequence[TimeSeries],
        params: Mapping[str, Any],
        *,
        noise: Any = None,
        x0: Any = None,
        substeps: int | Literal["auto"] | ArrayLike = "auto",
        method: Literal["auto", "rk4", "implicit"] = "auto",
        distance: str | Callable[[Any, Any], Any] = "nmse",
        epsilon: float = 1.0,
    ) -> Any:
        """Build the random variable and register it in the model on the context stack."""
        model = pm.modelcontext(None)
        check_name(name)
        check_system(system)
        records = check_records(system, data)
        if (
            isinstance(epsilon, bool)
            or not number(epsilon, "epsilon", "give a positive number, in the unit of the distance") > 0
        ):
            raise ValueError(f"epsilon is {epsilon!r}; give a positive number, in the unit of the distance.")
        measured = joined(records)
        flat = measured.flat
        by = distance_of(distance, [r.output_matrix for r in records], flat=flat)
        given = StartSpec.of(x0, None, len(records), system.states).x0
        starts = [initial_state(system, r, x, None, hidden="zero")[0] for r, x in zip(records, given, strict=True)]
        theta, start = vector(check_params(system, params)), pt.stack([vector(s) for s in starts])
        check_plain_noise(noise)
        deviations = vector([0.0] * len(system.outputs) if noise is None else noise_entries(system, noise))
        steps, chosen = simulator_substeps(system, records, theta, start, substeps, checked_method(method))
        simulation = Simulation(system, tuple(records), tuple(steps), by, flat, noise is not None, chosen)
        # PyMC reads the length of a draw off its parameters.
        inputs = SimulatorInputs(theta, start, deviations, np.concatenate([r.t for r in records]))

        dims = [f"{name}_time"] if flat else [f"{name}_time", f"{name}_output"]
        for dim, labels in zip(dims, (measured.time, system.outputs), strict=False):
            model.add_coord(dim, labels)
        with warnings.catch_warnings():  # of PyTensor, about how PyMC builds simulators
            warnings.simplefilter("ignore", DeprecationWarning)
            return pm.Simulator(
                name,
                simulation,
                *inputs,
                distance=gaussian_kernel(by, flat=flat),
                epsilon=pt.constant(epsilon, dtype="float64"),
                signature=f"(p),(r,x),(o),(t)->{'(t)' if flat else '(t,o)'}",
                observed=pytensor.shared(measured.observed, f"{name}::y"),
                dims=dims,
            )


# -- many at once -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PlainSimulation:
    """Any other ``pm.Simulator``: a Python function, called for one parameter set after the other."""

    op: SimulatorRV
    size: tuple[int, ...] | None
    distance: Callable[[Any, Any], Any]
    kind: str

    def distances(self, rng: np.random.Generator, observed: FloatArray, *values: FloatArray) -> FloatArray:
        """Distances (B,) of one simulation each, by the parameters (B, ...) of the simulator, from the observed array."""
        return np.array([float(self.distance(observed, self.op.rng_fn(rng, *v, self.size))) for v in zip(*values, strict=True)])


class BatchDistance:
    """Distances of simulations of a model from its data, for many values of its free variables at once.

    Made by :func:`batch_distance`. It can be pickled, whatever functions it holds, and is compiled where it is first called.
    """

    def __init__(
        self,
        inputs: Mapping[str, Variable],
        parameters: Sequence[Sequence[Variable]],
        simulations: Sequence[Simulation | PlainSimulation],
        observed: Sequence[FloatArray],
    ) -> None:
        self.inputs, self.parameters = dict(inputs), [list(p) for p in parameters]
        self.simulations, self.observed = list(simulations), list(observed)
        self._lock = threading.Lock()

    def __call__(self, values: Mapping[str, Any], seed: int) -> FloatArray:
        """Distances (B,) of one simulation each: the mean over the simulators of the model, infinite where one diverges.

        Parameters
        ----------
        values : mapping
            Values (B, ...) of each free variable of the model in its own (constrained) space, by name.
        seed : int
            Of the generator that random simulations draw from.
        """
        missing = [name for name in self.inputs if name not in values]
        if missing:
            raise ValueError(f"the values lack the model's free variables {missing}; there are {sorted(values)}.")
        arrays = [np.asarray(values[name], dtype=v.type.dtype) for name, v in self.inputs.items()]  # type: ignore[attr-defined]
        for (name, v), array in zip(self.inputs.items(), arrays, strict=True):
            if array.ndim != v.type.ndim or len(array) != len(arrays[0]):  # type: ignore[attr-defined]
                raise ValueError(
                    f"the values of {name!r} have the shape {array.shape}; give one entry a particle along the first axis."
                )
        if not len(arrays[0]):
            return np.empty(0)
        total = np.zeros(len(arrays[0]))
        with self._lock, np.errstate(all="ignore"):
            parameters = iter(self._function(*arrays))
            rngs = np.random.default_rng(seed).spawn(len(self.simulations))
            for simulation, graphs, y, rng in zip(self.simulations, self.parameters, self.observed, rngs, strict=True):
                total += simulation.distances(rng, y, *(next(parameters) for _ in graphs))
        return np.where(np.isnan(total), np.inf, total / len(self.simulations))

    @property
    def kinds(self) -> list[str]:
        """Distance of each simulator: its name, or that it is a function."""
        found = []
        for simulation in self.simulations:
            if isinstance(simulation, PlainSimulation):
                found.append(simulation.kind)
            elif isinstance(simulation.distance, MeanDistance):
                found.append(next(name for name, measure in MEASURES.items() if measure == simulation.distance.measure))
            else:
                found.append(FUNCTION)
        return found

    @property
    def parts(self) -> list[tuple[float, int]]:
        """What the distance is a mean of: weight and number of measured values of each part, in order."""
        found = []
        for simulation, y in zip(self.simulations, self.observed, strict=True):
            sizes = [int(y.size)]
            if isinstance(simulation, Simulation) and isinstance(simulation.distance, MeanDistance):
                sizes = [int(channel.of(y).size) for channel in simulation.distance.channels]
            found += [(1 / (len(self.simulations) * len(sizes)), size) for size in sizes]
        return sorted(found)

    def narrowest(self, unknowns: int, more: float = 0.0) -> float:
        """Threshold, over the least distance, below which a posterior is narrower than that of a likelihood; 1 if not known.

        With ``more``, squared errors may exceed their least sum by so many variances of the noise beyond that.

        Notes
        -----
        Of white noise, whose size the least distance tells, the posterior of k unknowns is normal. A uniform distribution on
        an ellipsoid has the same covariance where the squared errors of N measured values exceed their least sum by
        ``(k + 2) / N`` of it. Simulations with noise, and distances of other kinds, have no such limit.
        """
        count, exponent = 0, np.inf
        for simulation, y in zip(self.simulations, self.observed, strict=True):
            if not isinstance(simulation, Simulation) or simulation.noisy or not isinstance(simulation.distance, MeanDistance):
                return 1.0
            measure = simulation.distance.measure
            count += sum(channel.of(y).size for channel in simulation.distance.channels)
            exponent = min(exponent, 0.5 * measure.power * measure.root)
        return float((1.0 + (unknowns + 2 + more) / count) ** exponent)

    @cached_property
    def _function(self) -> Callable[..., list[FloatArray]]:
        outputs = [p for graphs in self.parameters for p in graphs]
        function: Callable[..., list[FloatArray]] = announced(
            "parameters of the simulations", lambda: compiled(list(self.inputs.values()), outputs)
        )
        return function

    def __reduce__(self) -> tuple[Callable[[bytes], BatchDistance], tuple[bytes]]:
        return _restored, (self._pickled,)

    @cached_property
    def _pickled(self) -> bytes:
        """Constructor arguments; by cloudpickle, since systems hold the user's functions."""
        result: bytes = cloudpickle.dumps((self.inputs, self.parameters, self.simulations, self.observed))
        return result


@lru_cache(maxsize=8)
def _restored(pickled: bytes) -> BatchDistance:
    """Unpickle; a worker that is sent the same object again and again compiles it once."""
    return BatchDistance(*cloudpickle.loads(pickled))


def batch_distance(model: pm.Model, distance: str | Callable[[Any, Any], Any] | None = None) -> BatchDistance:
    """Distances of many simulations of a model from its data.

    Parameters
    ----------
    model : pm.Model
        With one or more simulators: :class:`ODESimulator`, whose runs go side by side, or any other ``pm.Simulator``.
    distance : str or callable, optional
        For simulators that are no :class:`ODESimulator`: a distance by name, or a function of (observed, simulated).
        Default: ``"nmse"``. The simulator's own ``distance``, ``sum_stat`` and ``epsilon`` make its log-likelihood and have
        no part in this.

    Returns
    -------
    BatchDistance
        Function of values (by name) and a seed.

    Raises
    ------
    ValueError
        For a model without simulators or free variables, or with another likelihood beside them.
    """
    free, observed = model.free_RVs, model.observed_RVs
    others = [rv.name for rv in observed if not isinstance(rv.owner.op, SimulatorRV)]
    if others or not observed:
        found = f"the likelihoods {others} beside or instead of simulators" if others else "no simulator"
        raise ValueError(f"the model has {found}; give it pm_sysid.ODESimulator or pm.Simulator, and nothing else observed.")
    if not free:
        raise ValueError("the model has no free variables; give at least one parameter a prior.")
    inputs = {rv: pt.TensorType(rv.type.dtype, (None, *rv.type.shape))(name=rv.name) for rv in free}
    count = next(iter(inputs.values())).shape[0]
    parameters, simulations, data = [], [], []
    for rv in observed:
        op, graphs, size = rv.owner.op, rv.owner.op.dist_params(rv.owner), rv.owner.op.size_param(rv.owner)
        y = np.asarray(model.rvs_to_values[rv].eval(), dtype=float)
        simulation: Simulation | PlainSimulation
        if isinstance(op.fn, Simulation):
            given = SimulatorInputs(*graphs)
            simulation, graphs, y = op.fn, [given.params, given.x0, given.noise], y.reshape(len(y), -1)
        else:
            shape = None if isinstance(size.type, NoneTypeT) else tuple(int(n) for n in size.eval())
            by = "nmse" if distance is None else distance
            simulation = PlainSimulation(op, shape, _plain_distance(by, y), by if isinstance(by, str) else FUNCTION)
        parameters.append(
            [for_each_particle(g.type.ndim, b, count) for g, b in zip(graphs, vectorize_graph(graphs, inputs), strict=True)]
        )
        simulations.append(simulation)
        data.append(y)
    return BatchDistance({rv.name: v for rv, v in inputs.items()}, parameters, simulations, data)


def _plain_distance(distance: Any, observed: FloatArray) -> Callable[[Any, Any], Any]:
    """Distance between arrays of any shape; those by name take all entries for one output."""
    if callable(distance):
        return distance  # type: ignore[no-any-return]
    by_name = distance_of(distance, [observed.reshape(-1, 1)], flat=True)
    return lambda y, simulated: by_name(np.reshape(y, (-1, 1)), np.reshape(simulated, (-1, 1)))
