"""A PyMC model as functions of many particles: what the samplers evaluate.

Particles live in the unconstrained space of the model's value variables. The likelihood is a sum over time, and can be had
for the first n samples only, block by block, and carried on from where an earlier call ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph import ancestors, clone_replace
from pytensor.graph.basic import Apply, Variable

from pm_sysid.arguments import shown, whole
from pm_sysid.likelihood.coordinates import Coordinates, check_continuous, checked, model_of
from pm_sysid.likelihood.filter_rv import ODEFilterRV
from pm_sysid.likelihood.filter_view import value_of
from pm_sysid.likelihood.kept import once
from pm_sysid.likelihood.prior_draws import draw_prior
from pm_sysid.progress import announced
from pm_sysid.recurrence.batch_op import BatchRecurrence
from pm_sysid.recurrence.functions import compiled, together
from pm_sysid.recurrence.op import substeps_by_run
from pm_sysid.recurrence.threads import default_threads, thread_count

#: Fewest samples by which a diffusion is calibrated.
MIN_DIFFUSION_SAMPLES = 64

#: Functions that are compiled, in words.
PRIOR, PARAMETERS, OTHERS = "log prior", "parameters of the filters", "log-likelihood of other data"


class Progress(NamedTuple):
    """Where the filters of each particle stand, to go on from there.

    One entry a filter: ``params`` (B, P), ``starts`` (B, R, n) and ``state`` (B, R, n_carry).
    """

    params: tuple[np.ndarray, ...]
    starts: tuple[np.ndarray, ...]
    state: tuple[np.ndarray, ...]

    def take(self, index: np.ndarray) -> Progress:
        """Progress of the particles picked (resampled) by an index or a mask."""
        return Progress(*(tuple(a[index] for a in arrays) for arrays in self))

    def join(self, other: Progress) -> Progress:
        """These particles, then others."""
        pairs = zip(self, other, strict=True)
        return Progress(*(tuple(np.concatenate(pair) for pair in zip(a, b, strict=True)) for a, b in pairs))


def as_series(log_likelihood: Variable, samples: int) -> Variable:
    """Log-likelihood of each sample; where it is one number for all, the first sample has it."""
    if log_likelihood.type.ndim:
        return log_likelihood
    series: Variable = pt.concatenate([log_likelihood[None], pt.zeros((samples - 1,))])  # type: ignore[index]
    return series


def _common_length(lengths: dict[str, int]) -> int:
    """Number of samples of the series that are observed; one where there is none."""
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"the observed variables have different numbers of samples: {lengths}; the data are taken in one sample after "
            "the other, so give all the same number (several records of one system go into one ODEFilter as a list; of "
            "different systems, let the shorter ones go on with missing samples, NaN)."
        )
    return next(iter(lengths.values()), 1)


class TargetGraphs:
    """Log prior and log-likelihoods of many particles as graphs and functions, made once a model.

    Parameters
    ----------
    coordinates : Coordinates
        Of the model; nothing here refers to it afterwards.
    sizes : sequence of tuple
        Length of the first dimension of each observed value; an empty tuple for a number.

    Attributes
    ----------
    n_samples : int
        Number of samples T.
    filters : list of Apply
        Likelihoods of filters, which can be carried on.
    others : list of (Variable, int)
        Log-likelihoods of whatever else is observed, and the number of axes of each.
    diffusions : dict
        Calibrations of diffusions, and what takes their place where the first samples calibrate.
    """

    def __init__(self, coordinates: Coordinates, sizes: Sequence[tuple[int, ...]]) -> None:
        model = coordinates.model
        terms = model.logp(vars=model.observed_RVs, sum=False)
        named = zip(model.observed_RVs, terms, sizes, strict=True)
        self.n_samples = _common_length({rv.name: size[0] for rv, term, size in named if term.type.ndim})
        terms = [as_series(term, self.n_samples) for term in terms]
        prior = model.logp(vars=[*model.free_RVs, *model.potentials], jacobian=True)
        self.particles = pt.dmatrix("particles")
        self.prior, *batched = coordinates.vectorised([checked(g) for g in (prior, *terms)], self.particles)
        self.prior = pt.switch(pt.isnan(self.prior), -np.inf, self.prior)
        self.edges, self.threads = pt.lvector("edges"), pt.lscalar("threads")
        self.diffusion_samples = pt.lscalar("diffusion_samples")
        self.filters, self.others = [], []
        self.diffusions: dict[Variable, Variable] = {}
        for rv, term, core in zip(model.observed_RVs, batched, (t.type.ndim for t in terms), strict=True):
            nodes = [
                v.owner
                for v in ancestors([term])
                if v.owner is not None and isinstance(v.owner.op, BatchRecurrence) and v is v.owner.outputs[0]
            ]
            # The one whose outputs the term is; others calibrate its diffusion.
            main = [n for n in nodes if n.op.recurrence.role == "loglik"]
            if isinstance(rv.owner.op, ODEFilterRV) and main:
                self.filters += main
                self.diffusions |= self._shortened(main[0])
            else:
                self.others.append((term, core))

    def _shortened(self, node: Apply) -> dict[Variable, Variable]:
        """Calibrations of a filter's diffusion, each by the mean over the first samples only."""
        shortened: dict[Variable, Variable] = {}
        for final in ancestors(node.inputs):
            batch = final.owner
            if batch is None or not isinstance(batch.op, BatchRecurrence) or final is not batch.outputs[1]:
                continue
            params, starts, state, _, counts, *rest = batch.inputs
            steps = pt.maximum(counts, 0)
            part = pt.sum(steps[: self.diffusion_samples])
            edges = pt.stack([pt.zeros_like(self.diffusion_samples), self.diffusion_samples])
            sums = batch.op(params, starts, state, edges, counts, *rest)[1]
            # The model divides by all substeps; runs that were not reached are NaN.
            share = pt.sum(steps) / pt.maximum(part, 1)
            if params.type.shape[1] != 1:  # type: ignore[attr-defined]
                n = starts.shape[1]  # type: ignore[attr-defined]
                share = substeps_by_run(counts, n) / pt.maximum(substeps_by_run(counts[: self.diffusion_samples], n), 1)
                share = share[None, :, None]
            shortened[final] = pt.switch(pt.isnan(sums), 0.0, sums) * share
        return shortened

    @property
    def missing(self) -> list[str]:
        """What samplers compile and has not been compiled yet, in words."""
        filters = {PARAMETERS: "prepare"} | dict.fromkeys(map(self._of_filter, range(len(self.filters))), "runs")
        words = (filters if self.filters else {}) | ({OTHERS: "pointwise"} if self.others else {}) | {PRIOR: "log_prior"}
        return [word for word, name in words.items() if name not in vars(self)]

    def _of_filter(self, k: int) -> str:
        """Which log-likelihood that of a filter is, in words."""
        return "log-likelihood" if len(self.filters) == 1 else f"log-likelihood of filter {k + 1}"

    def _compile(self, what: str, inputs: Sequence[Variable], outputs: Any) -> Any:
        return announced(what, lambda: compiled(list(inputs), outputs, trust_input=True))

    def _threaded(self, outputs: Sequence[Variable]) -> list[Variable]:
        """Take the number of threads from an input; by name, since an unpickled graph has a variable of its own."""
        threads = {v: self.threads for v in ancestors(outputs) if v.name == thread_count().name}
        result: list[Variable] = clone_replace(list(outputs), threads)
        return result

    @cached_property
    def log_prior(self) -> Any:
        """Particles to log prior densities."""
        return self._compile(PRIOR, [self.particles, self.threads], self._threaded([self.prior])[0])

    @cached_property
    def prepare(self) -> Any:
        """Particles to parameters and starts of each filter."""
        outputs = [v for node in self.filters for v in node.inputs[:2]]
        outputs = self._threaded(clone_replace(outputs, self.diffusions) if self.diffusions else outputs)
        return self._compile(PARAMETERS, [self.particles, self.threads, self.diffusion_samples], outputs)

    @cached_property
    def runs(self) -> list[Any]:
        """Each filter alone: parameters, starts, state, edges to sums and state."""
        functions = []
        for k, node in enumerate(self.filters):
            params, starts, state = pt.dtensor3("params"), pt.dtensor3("starts"), pt.dtensor3("state")
            sums, final = node.op(params, starts, state, self.edges, *node.inputs[4:7], self.threads)
            inputs = [params, starts, state, self.edges, self.threads]
            functions.append(self._compile(self._of_filter(k), inputs, [sums.sum(axis=2), final]))
        return functions

    def _pointwise(self) -> list[Variable]:
        """Log-likelihood (B or 1, n) of each sample between the outer edges, of what is not a filter."""
        terms = []
        for term, core in self.others:
            batched = term if term.type.ndim > core else term[None]  # type: ignore[index]
            part = batched[:, self.edges[0] : self.edges[-1]]
            part = part.sum(axis=tuple(range(2, part.type.ndim))) if part.type.ndim > 2 else part
            terms.append(pt.switch(pt.isnan(part), -np.inf, part))
        return terms

    @cached_property
    def pointwise(self) -> Any:
        """Particles and edges to log-likelihoods of each sample, of what is not a filter."""
        return self._compile(OTHERS, [self.particles, self.edges, self.threads], self._threaded(self._pointwise()))

    @cached_property
    def gradient(self) -> Any:
        """Log prior, log-likelihood between two edges, and their gradients."""
        sums = []
        for node in self.filters:
            inputs = [*node.inputs[:3], self.edges, *node.inputs[4:]]
            sums.append(node.op(*inputs)[0].sum(axis=(1, 2)))
        sums += [term.sum(axis=1) for term in self._pointwise()]
        likelihood = pt.add(*sums) if len(sums) > 1 else sums[0]
        outputs = [self.prior, pytensor.grad(self.prior.sum(), self.particles, disconnected_inputs="ignore")]
        outputs += [likelihood, pytensor.grad(likelihood.sum(), self.particles, disconnected_inputs="ignore")]
        return self._compile("gradients", [self.particles, self.edges, self.threads], self._threaded(outputs))


@dataclass(eq=False)
class Target:
    """Batched log prior and cumulative log-likelihood of a model, in unconstrained space.

    Parameters
    ----------
    model : pm.Model, optional
        Model whose observed variables have log-likelihoods of one common number of samples along their first dimension:
        ODE filters, or anything else that is (time,)-shaped. A log-likelihood that is one number (a parameter that was
        measured directly, a multivariate normal) is taken in with the first sample. Default: the model on the context stack.
    threads : int, optional
        Threads for a batch. Default: the environment's choice (see :func:`set_threads`).

    Attributes
    ----------
    n_samples : int
        Number of samples T.
    size : int
        Dimension d of the unconstrained space.
    labels : list of str
        Name of each coordinate.

    Raises
    ------
    ValueError
        For models without observed variables, with discrete free variables, or with series of different lengths.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pm_sysid as sid
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu")
    ...     y = pm.Normal("y", mu, 1.0, observed=[0.5, -0.5, 1.0])
    >>> target = sid.Target(model)
    >>> particles = target.draw_prior(5, random_seed=1)
    >>> target.log_likelihood(particles).shape, target.log_likelihood(particles, edges=[0, 1, 3]).shape
    ((5,), (5, 2))
    """

    model: pm.Model | None = None
    threads: int | None = None
    n_samples: int = field(init=False)
    size: int = field(init=False)
    labels: list[str] = field(init=False)
    coordinates: Coordinates = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the model and take its graphs apart."""
        self.model = model = model_of(self.model)
        self.threads = default_threads() if self.threads is None else self.threads
        if not model.observed_RVs:
            raise ValueError("the model has no observed variable; give it a likelihood, such as pm_sysid.ODEFilter.")
        check_continuous(model, "the samplers here move continuous ones only")
        self.coordinates = Coordinates(model)
        self.labels, self.size = self.coordinates.labels, self.coordinates.size
        sizes = tuple(np.shape(value_of(model.rvs_to_values[rv]))[:1] for rv in model.observed_RVs)
        build = partial(TargetGraphs, self.coordinates, sizes)
        self._graphs: TargetGraphs = once(model, self.coordinates.point, (Target, sizes), build)
        self.n_samples = self._graphs.n_samples

    def __repr__(self) -> str:
        return f"Target({self.size} unknowns, {self.n_samples} samples, {self.threads} threads)"

    @property
    def calibrates_diffusion(self) -> bool:
        """Whether a filter's diffusion comes from the record (``diffusion="mle"``)."""
        return bool(self._graphs.diffusions)

    @property
    def functions(self) -> list[str]:
        """What samplers compile and have not yet, in words."""
        return self._graphs.missing

    # -- what samplers call -------------------------------------------------------------------------------------------

    def _check(self, particles: Any) -> np.ndarray:
        try:
            kind = np.asarray(particles).dtype.kind
        except ValueError:
            kind = "O"
        if kind not in "biuf":
            raise TypeError(f"particles are {shown(particles)}; give real numbers, one row a particle.")
        array = np.ascontiguousarray(particles, dtype=np.float64)
        if array.ndim != 2 or array.shape[1] != self.size or not len(array):
            raise ValueError(
                f"particles have the shape {np.shape(particles)}; give one row a particle and {self.size} columns, in the "
                f"order {self.labels}."
            )
        return array

    def _check_edges(self, edges: Any) -> np.ndarray:
        array = np.asarray(edges)
        fine = array.ndim == 1 and array.size >= 2 and array.dtype.kind in "iu"
        if not fine or array[0] < 0 or array[-1] > self.n_samples or np.any(np.diff(array) < 0):
            raise ValueError(
                f"edges are {edges!r}; give at least two whole numbers between 0 and {self.n_samples} that do not decrease."
            )
        return array.astype(np.int64)

    @property
    def _n_threads(self) -> np.ndarray:
        if not whole(self.threads):
            raise ValueError(
                f"threads is {shown(self.threads)}; give a positive integer, or None for the environment's choice."
            )
        return np.asarray(self.threads, dtype=np.int64)

    def log_prior(self, particles: Any) -> np.ndarray:
        """Log prior density (with Jacobians and potentials) of particles (B, d), shape (B,).

        Minus infinity more than half a turn from ``coordinates.centre`` for angles of circular variables (``pm.VonMises``), of
        which PyMC's transform takes all turns for one.
        """
        array = self._check(particles)
        result: np.ndarray = np.asarray(self._graphs.log_prior(array, self._n_threads))
        return self.coordinates.once(result, array)

    def log_likelihood(self, particles: Any, n: int | None = None, *, edges: Any = None) -> np.ndarray:
        """Log-likelihood of the first ``n`` samples (default: all), or of each block of samples between ``edges``.

        Parameters
        ----------
        particles : array, shape (B, d)
        n : int, optional
            Only these first samples are evaluated, and only they cost time.
        edges : sequence of K + 1 ints, optional
            Borders of blocks, not decreasing; the first must be 0 (use :meth:`advance` to go on from a later one).

        Returns
        -------
        numpy.ndarray, shape (B,) or (B, K)
            Minus infinity where the ODE cannot be solved.
        """
        if n is not None and edges is not None:
            raise ValueError("give either n or edges, not both.")
        borders = self._check_edges([0, self.n_samples if n is None else n] if edges is None else edges)
        sums, _ = self.start(particles, borders)
        return sums[:, 0] if edges is None else sums

    def start(self, particles: Any, edges: Any, *, diffusion_samples: int | None = None) -> tuple[np.ndarray, Progress]:
        """Log-likelihood (B, K) of blocks of samples from the first one on, and where that leaves the filters.

        ``diffusion_samples`` is the number of samples by which a filter with ``diffusion="mle"`` calibrates its diffusion:
        all of them in the model, fewer to save time.
        """
        array, borders = self._check(particles), self._check_edges(edges)
        if borders[0] != 0:
            raise ValueError(f"edges start at {borders[0]}; start at sample 0, or go on from earlier progress with advance.")
        by = np.asarray(self.n_samples if diffusion_samples is None else diffusion_samples, dtype=np.int64)
        prepared = self._graphs.prepare(array, self._n_threads, by) if self._graphs.filters else []
        starts = tuple(np.broadcast_to(s, (len(array), *s.shape[1:])) for s in prepared[1::2])
        empty = tuple(np.empty((0, 0, 0)) for _ in self._graphs.filters)
        return self.advance(array, borders, Progress(tuple(prepared[0::2]), starts, empty))

    def advance(self, particles: Any, edges: Any, progress: Progress) -> tuple[np.ndarray, Progress]:
        """Log-likelihood (B, K) of later blocks of samples, from where ``progress`` of the same particles ended."""
        array, borders = self._check(particles), self._check_edges(edges)
        sums = np.zeros((len(array), borders.size - 1))
        states = []
        for run, *args in zip(self._graphs.runs, *progress, strict=True):
            part, state = run(*(np.ascontiguousarray(a) for a in args), borders, self._n_threads)
            sums += part
            states.append(state)
        if self._graphs.others:
            size = together(int(borders[-1] - borders[0]))
            for first in range(0, len(array), size):
                part = slice(first, first + size)
                for values in self._graphs.pointwise(array[part], borders, self._n_threads):
                    sums[part] += _block_sums(values, borders)
        sums[np.isnan(sums)] = -np.inf
        return sums, progress._replace(state=tuple(states))

    def value_and_gradient(self, particles: Any, n: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Log prior (B,), its gradient (B, d), log-likelihood of the first ``n`` samples (B,) and its gradient (B, d)."""
        borders = self._check_edges([0, self.n_samples if n is None else n])
        with np.errstate(all="ignore"):
            array = self._check(particles)
            results = self._graphs.gradient(array, borders, self._n_threads)
        prior, d_prior, likelihood, d_likelihood = results
        prior = self.coordinates.once(prior, array)
        likelihood = np.where(np.isnan(likelihood), -np.inf, likelihood)
        return prior, d_prior, likelihood, d_likelihood

    def draw_prior(self, draws: int, random_seed: Any = None) -> np.ndarray:
        """Draws from the prior in unconstrained space, shape (draws, d)."""
        return draw_prior(self.coordinates, draws, random_seed)

    def constrained(self, particles: Any) -> dict[str, np.ndarray]:
        """Free and deterministic variables of particles (B, d), by name, each of shape (B, ...)."""
        return self.coordinates.constrained(self._check(particles))

    def unconstrained(self, values: Mapping[str, Any]) -> np.ndarray:
        """Particles (B, d) for values (B, ...) of all free variables, by name."""
        return self.coordinates.unconstrained(values)


def _block_sums(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Sums (B, K) of the columns between edges, of which the first column belongs to the first edge."""
    sums = np.zeros((len(values), len(edges) - 1))
    filled = np.diff(edges) > 0
    with np.errstate(invalid="ignore", over="ignore"):  # squares of far predictions sum up to minus infinity
        sums[:, filled] = np.add.reduceat(values, (edges[:-1] - edges[0])[filled], axis=1) if filled.any() else 0.0
    return sums
