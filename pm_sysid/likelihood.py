"""The PN ODE filter as a PyMC distribution."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.logprob.abstract import _logprob
from pymc.pytensorf import normalize_rng_param
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pm_sysid.context import model_of
from pm_sysid.doors import among, number, shown
from pm_sysid.initial import StartSpec, vector_entries
from pm_sysid.problem import Problem, RecordData, Unknowns, check_params, check_records, vector
from pm_sysid.solver import EK1, Solver
from pm_sysid.substeps import choose_substeps
from pm_sysid.system import System
from pm_sysid.timeseries import TimeSeries

_log = logging.getLogger("pm_sysid")


class ODEFilterRV(SymbolicRandomVariable):
    """A measured record as a random variable: process noise of the PN prior and measurement noise."""

    extended_signature = "[rng],(p),(r,x),(r,x),(o),(c),(q),(t),(r,i),(n,j),(t,k)->[rng],(t,o)"
    _print_name = ("ODEFilter", "\\operatorname{ODEFilter}")
    problem: Problem
    flat: bool
    substeps: int
    start: StartSpec

    @classmethod
    def rv_op(
        cls,
        problem: Problem,
        unknowns: Unknowns,
        data: RecordData,
        *,
        flat: bool,
        substeps: int,
        start: StartSpec,
        rng: Any = None,
    ) -> Any:
        """Random draws: each measurement from its predictive distribution given the drawn ones before."""
        rng = normalize_rng_param(rng)
        inputs = [pt.as_tensor_variable(v) for v in (*unknowns, *data)]
        inner = [v.type() for v in inputs]
        inner_rng = rng.type()
        u, d = Unknowns(*inner[:5]), RecordData(*inner[5:])
        shape = (d.counts.shape[0], len(problem.system.g))
        next_rng, normal = pt.random.normal(0, 1, size=shape, rng=inner_rng, return_next_rng=True)
        draws, _ = problem.run(normal, u, d, "draw")
        signature = cls.extended_signature[: -len("(t,o)")] + ("(t)" if flat else "(t,o)")
        op = cls([inner_rng, *inner], [next_rng, draws[:, 0] if flat else draws], extended_signature=signature)
        op.problem, op.flat, op.substeps, op.start = problem, flat, substeps, start
        return op(rng, *inputs)


@_logprob.register(ODEFilterRV)
def _ode_filter_logprob(op: ODEFilterRV, values: Any, rng: Any, *inputs: Any, **kwargs: Any) -> Any:
    """Log-density of each sample given those before it (Eq. 20), shape (T,) or (T, n_y)."""
    [value] = values
    y = value[:, None] if op.flat else value
    loglik, _ = op.problem.run(y, Unknowns(*inputs[:5]), RecordData(*inputs[5:]))
    return loglik[:, 0] if op.flat else loglik


#: Outputs whose standard deviations differ by more than this factor get a word about sharing one noise.
UNEQUAL = 20.0


class ODEFilter:
    """Likelihood of a measured record under a dynamic system, by a probabilistic ODE filter.

    The equations of motion are solved by Gaussian filtering (an integrated Wiener process prior conditioned on the ODE),
    and the same filter sees the measurements, so that the likelihood carries measurement noise *and* integration error.

    Parameters
    ----------
    name : str
        Name of the random variable.
    system : System
        Equations of motion and outputs.
    data : TimeSeries or list of TimeSeries
        The measured record, or several with one set of parameters; several are joined along time.
    params : mapping
        Value of each parameter of the system: a number, a PyMC variable, or an expression of them.
    noise : number, PyMC variable, sequence or mapping by output
        Standard deviation of the measurement noise, in the unit of the output; one for all outputs, or one for each.
    x0 : number, mapping by state, sequence or vector, optional
        Initial state at the first sample (numbers or variables); for several records a list. States that are not given
        are inferred from the first samples of the record with a wide ``x0_std``.
    x0_std : number, mapping or sequence, optional
        Standard deviation of the initial state. Default: zero where ``x0`` is given.
    solver : EK0 or EK1, default EK1(order=4)
        The probabilistic solver.
    substeps : int or "auto", default "auto"
        Filter steps for each sampling interval. ``"auto"`` doubles them, at the model's initial point, until the
        log-likelihood of a record with these parameters moves by less than 0.1, and says what it chose.
    likelihood : {"filter"}
        ``p(y_t | y_1..t-1)``, the recursion of the sequential paper (Eq. 20).
    dims : tuple of str, optional
        Dimension names for (time,) or (time, output); by default ``name_time`` and ``name_output`` with coordinates.

    Returns
    -------
    TensorVariable
        Shape (T,) or (T, n_y), like ``data.y``; observed on it. Its pointwise log-likelihood has the same shape.

    Raises
    ------
    ValueError, TypeError
        For unknown or missing parameters, channels that do not fit, impossible settings; the message says the remedy.

    Warns
    -----
    UserWarning
        If outputs whose sizes differ by more than a factor of 20 share one noise.

    Notes
    -----
    Missing measurements (NaN) contribute zero. Parameters with which the ODE cannot be solved have a log-likelihood of
    minus infinity. Use :func:`set_data` to put another record into the model.

    Source: Longbottom, Champneys and Rogers (2024), Eqs. 12-20.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pm_sysid as sid
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    ... )
    >>> t = np.linspace(0.0, 2.0, 21)
    >>> record = sid.TimeSeries(t, None, np.exp(-1.5 * t))
    >>> with pm.Model() as model:
    ...     rate = pm.LogNormal("rate", 0.0, 1.0)
    ...     y = sid.ODEFilter("y", decay, record, dict(rate=rate), noise=0.01, x0=1.0, substeps=2)
    >>> model.rvs_to_values[y].type.ndim
    1
    """

    def __new__(
        cls,
        name: str,
        system: System,
        data: TimeSeries | Sequence[TimeSeries],
        params: Mapping[str, Any],
        *,
        noise: Any,
        x0: Any = None,
        x0_std: Any = None,
        solver: Solver | None = None,
        substeps: int | Literal["auto"] = "auto",
        likelihood: Literal["filter"] = "filter",
        dims: Sequence[str] | str | None = None,
    ) -> Any:
        """Build the random variable and register it in the model on the context stack."""
        model = pm.modelcontext(None)
        if not isinstance(name, str) or not name:
            raise TypeError(f"name is {shown(name)}; give the name of the random variable, such as 'y'.")
        if not among(likelihood, ("filter",)):
            raise ValueError(f"likelihood is {likelihood!r}; the only one so far is 'filter'.")
        if not isinstance(system, System):
            raise TypeError(f"system is {type(system).__name__}; give a pm_sysid.System.")
        if not system.states:
            raise ValueError(
                "the system has no states, so that there is no ODE to filter; give its output to a likelihood of PyMC, such as "
                "pm.Normal(name, pm_sysid.simulate(system, data, params), noise, observed=data.y)."
            )
        solver = EK1() if solver is None else solver
        if not isinstance(solver, Solver):
            raise TypeError(f"solver is {solver!r}; give pm_sysid.EK0(...) or pm_sysid.EK1(...).")
        records = check_records(system, data)
        start = StartSpec.of(x0, x0_std, len(records))
        means, stds = start.states(system, records)
        diffusions = solver.diffusions(system)
        unknowns = Unknowns(
            vector(check_params(system, params)),
            _movable(means, f"{name}::x0"),
            _movable(stds, f"{name}::x0_std"),
            vector(noise_entries(system, noise)),
            vector([1.0] * len(system.chain_states) if diffusions is None else diffusions),
        )
        free = tuple(i for i, column in enumerate(zip(*stds, strict=True)) if any(_uncertain(s) for s in column))
        problem = Problem.build(system, solver, records, free)
        if problem.form.block and solver.covariance == "auto":
            _log.info("covariance='auto' chose one block for each of the %d chains.", len(system.chains))
        chosen = choose_substeps(problem, records, unknowns, substeps, model)
        flat = all(r.y is not None and r.y.ndim == 1 for r in records)
        _warn_of_shared_noise(system, records, noise)

        arrays = problem.data(records, chosen)
        fields = zip(arrays._fields, arrays, arrays.widths, strict=True)
        shared = RecordData(*(pytensor.shared(a, f"{name}::{f}", shape=w) for f, a, w in fields))
        rv = ODEFilterRV.rv_op(problem, unknowns, shared, flat=flat, substeps=chosen, start=start.numeric())
        y = np.concatenate([r.output_matrix for r in records])
        observed = pytensor.shared(y[:, 0] if flat else y, f"{name}::y")
        if not isinstance(dims, str | tuple | list | None):
            raise TypeError(f"dims is {shown(dims)}; give the name of a dimension, or a tuple of them.")
        if dims is None:
            time, output = f"{name}_time", f"{name}_output"
            model.add_coord(time, time_coordinate(records), length=pytensor.shared(len(y), time))
            if not flat:
                model.add_coord(output, system.outputs)
            dims = (time,) if flat else (time, output)
        return model.register_rv(rv, name, observed=observed, dims=dims)


def time_coordinate(records: Sequence[TimeSeries]) -> np.ndarray:
    """Times of one record; running numbers for several, whose times overlap."""
    return records[0].t if len(records) == 1 else np.arange(sum(len(r) for r in records))


def _movable(rows: Sequence[Sequence[Any]], name: str) -> Any:
    """Matrix of numbers and variables whose numbers are shared, so that another record can bring its own."""
    numbers = np.array([[0.0 if isinstance(v, Variable) else float(v) for v in row] for row in rows])
    matrix = pytensor.shared(numbers, name, shape=numbers.shape)
    for r, row in enumerate(rows):
        for i, v in enumerate(row):
            if isinstance(v, Variable):
                matrix = matrix[r, i].set(pt.cast(v, "float64"))
    return matrix


def _uncertain(std: Any) -> bool:
    return isinstance(std, Variable) or std != 0.0


def noise_entries(system: System, noise: Any) -> list[Any]:
    """Noise standard deviation of each output."""
    n = len(system.outputs)
    if isinstance(noise, Mapping):
        if set(noise) != set(system.outputs):
            raise ValueError(f"noise has the entries {sorted(noise)}; give one for each output: {system.outputs}.")
        values = [noise[o] for o in system.outputs]
    elif isinstance(noise, Variable):
        values = vector_entries("noise", noise, system.outputs)
    elif not np.iterable(noise) or isinstance(noise, str | bytes):
        values = [noise] * n
    else:
        values = list(noise)
        if len(values) != n:
            raise ValueError(f"noise has {len(values)} entries; give one, or one for each output: {system.outputs}.")
    for v in values:
        if not isinstance(v, Variable) and not number(v, "noise", "a standard deviation must be positive and finite") > 0:
            raise ValueError(f"noise is {v!r}; a standard deviation must be positive and finite.")
    return values


def _warn_of_shared_noise(system: System, records: Sequence[TimeSeries], noise: Any) -> None:
    """One standard deviation for outputs of quite different size is seldom meant: their units differ."""
    shared = not isinstance(noise, Mapping) and (
        noise.type.ndim == 0 if isinstance(noise, Variable) else not np.iterable(noise)
    )
    if len(system.outputs) == 1 or not shared:
        return
    y = np.concatenate([r.output_matrix for r in records])
    spreads = [float(np.std(column[~np.isnan(column)])) if not np.isnan(column).all() else 0.0 for column in y.T]
    large = max(spreads)
    small = min((s for s in spreads if s > 0), default=large)
    if large > UNEQUAL * small:
        sizes = ", ".join(f"{name} {s:.2g}" for name, s in zip(system.outputs, spreads, strict=True))
        example = ", ".join(f'"{name}": ...' for name in system.outputs)
        warnings.warn(
            f"one noise is given for outputs of different size (standard deviations: {sizes}); if their units differ, give "
            f"each its own: noise={{{example}}}. If they do share it, say so with a vector, noise=[s, s].",
            stacklevel=3,
        )


def filter_variable(name: str, model: pm.Model | None = None) -> tuple[ODEFilterRV, Any, pm.Model]:
    """Find the op, the random variable and the model of an :class:`ODEFilter` by name."""
    model = model_of(model)
    rv = model.named_vars.get(name) if isinstance(name, str) else None
    if rv is None or rv.owner is None or not isinstance(rv.owner.op, ODEFilterRV):
        names = [v.name for v in model.observed_RVs if v.owner is not None and isinstance(v.owner.op, ODEFilterRV)]
        raise ValueError(f"the model has no ODEFilter named {name!r}; it has {names}.")
    return rv.owner.op, rv, model


def set_data(new_data: Mapping[str, TimeSeries | Sequence[TimeSeries]], model: pm.Model | None = None) -> None:
    """Put new records, of any length, into the ODE filters of a model: ``pm.set_data`` for records.

    The record's input is evaluated where the filter needs it; measurements, time coordinate and what of the initial
    state was read off the record are replaced. The sampling must have the same character as before (intersample
    behaviour, uniform or not).

    Parameters
    ----------
    new_data : mapping
        Record (or list of records, as many as before) by the name of the filter.
    model : pm.Model, optional
        Default: the model on the context stack.
    """
    if not isinstance(new_data, Mapping):
        raise TypeError(f"new_data is {type(new_data).__name__}; give a dict of records by the name of their filter.")
    for name, data in new_data.items():
        op, rv, owner = filter_variable(name, model)
        records = check_records(op.problem.system, data)
        form = _solver_like(op.problem).form(op.problem.system, records, op.problem.form.free)
        if form != op.problem.form:
            raise ValueError(
                f"the new record for {name!r} differs from the old one in intersample behaviour or in being uniformly "
                "sampled, for which the filter was built; build a new model for it."
            )
        arrays = op.problem.data(records, op.substeps)
        n_records = rv.owner.inputs[8].get_value(borrow=True).shape[0]
        if len(records) != n_records:
            raise ValueError(
                f"{name!r} was built for {n_records} records and got {len(records)}; give as many, or build a new model."
            )
        starts = op.start.states(op.problem.system, records)  # may refuse, before anything has changed
        for variable, array in zip(rv.owner.inputs[6:], arrays, strict=True):
            variable.set_value(array)
        for matrix, rows in zip(rv.owner.inputs[2:4], starts, strict=True):
            shared = next(
                v for v in ancestors([matrix]) if isinstance(v, SharedVariable) and (v.name or "").startswith(f"{name}::x0")
            )
            shared.set_value(np.array(rows, dtype=float))
        y = np.concatenate([r.output_matrix for r in records])
        owner.rvs_to_values[rv].set_value(y[:, 0] if op.flat else y)
        time = f"{name}_time"
        if time in owner.dim_lengths:
            owner.set_dim(time, len(y), coord_values=time_coordinate(records))


def _solver_like(problem: Problem) -> Solver:
    """Solver whose form for new records can be compared with an existing problem's."""
    from pm_sysid.solver import EK0

    form = problem.form
    diffusion = "mle" if problem.calibrated else "dynamic" if form.dynamic else 1.0
    cls = EK1 if form.linearisation else EK0
    return cls(order=form.order, diffusion=diffusion, covariance="block" if form.block else "dense")
