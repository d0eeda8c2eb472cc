"""Whether a record says that its inputs move between the samples in another way than the model was told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pm_sysid.arguments import count
from pm_sysid.idata import posterior_of, some_draws
from pm_sysid.likelihood.coordinates import Coordinates, model_of
from pm_sysid.likelihood.filter_view import FilterView, filter_view
from pm_sysid.posterior.reweighting import standardised
from pm_sysid.progress import announced
from pm_sysid.records.timeseries import InterSample, TimeSeries
from pm_sysid.recurrence.functions import compiled
from pm_sysid.solve.filter_graph import RecordData
from pm_sysid.solve.substeps import cut

#: Logarithm of how much more likely a record must be with other inputs between the samples to prefer them, and less likely to
#: rule them out.
MORE_LIKELY, POSSIBLE = 8.0, -5.0
#: Posterior standard deviations by which a mean may move for all purposes, by which it makes conclusions other ones, and from
#: which on it counts that the record cannot tell.
SMALL, WRONG, COUNTS = 0.3, 1.0, 3.0
#: Steps towards the best parameters of another behaviour, from draws that are this share as far from each other as those given.
STEPS, NEARER = 40, 0.3
#: A step is no longer than this in posterior standard deviations of all parameters together, and halved so many times where it
#: makes the record less likely; from this gain of the log density on there is nothing left to gain.
LONGEST, HALVINGS, ARRIVED = 300.0, 8, 0.05
#: Log density by which linear innovations may be wrong at half of the draws.
FORESEEN = 2.0
#: Innovations that are so many times as large as half of them are outliers, where the noise has some.
OUTLIER = 6.0
#: Most samples that are filtered: fewer draws of long records.
MOST_SAMPLES = 2 * 10**7
#: Draws for each parameter, at least, that tell how the likelihood changes with it.
FOR_EACH = 4


@dataclass(frozen=True, repr=False)
class IntersampleCheck:
    """Outcome of :func:`check_intersample`; printing it gives a verdict in words.

    Attributes
    ----------
    intersample : str
        What the model was told: ``"zoh"``, ``"foh"`` or ``"bl"``.
    log_ratio : dict of str to float
        Logarithm of how much more likely the record is, parameters integrated out, for each of the others.
    shift : dict of str to dict of str to float
        By about how many posterior standard deviations the mean of each parameter would move, for each of the others.
    unknown : tuple of str
        Those that could not be compared: solutions diverge, or are too far from linear in the parameters.
    """

    intersample: str
    log_ratio: dict[str, float]
    shift: dict[str, dict[str, float]]
    unknown: tuple[str, ...] = ()

    def moved(self, other: str) -> tuple[str, float]:
        """The parameter that another behaviour moves most, and by how many standard deviations."""
        return max(self.shift[other].items(), key=lambda item: abs(item[1]), default=("", 0.0))

    @property
    def preferred(self) -> str:
        """What the record prefers to what the model was told, clearly enough; empty if nothing."""
        best = max(self.log_ratio, key=self.log_ratio.__getitem__, default="")
        return best if best and self.log_ratio[best] > MORE_LIKELY else ""

    @property
    def most_likely(self) -> float:
        """The largest log ratio; minus infinity without any."""
        return max(self.log_ratio.values(), default=-np.inf)

    @property
    def undecided(self) -> str:
        """What the record cannot tell from what the model was told, and what moves a parameter most; empty if nothing."""
        even = [o for o, ratio in self.log_ratio.items() if POSSIBLE < ratio <= MORE_LIKELY]
        return max(even, key=lambda o: abs(self.moved(o)[1]), default="")

    @property
    def level(self) -> Literal["good", "look", "bad"]:
        """``"good"``, ``"look"`` or ``"bad"``."""
        if self.preferred:
            size = abs(self.moved(self.preferred)[1])
            return "bad" if size > WRONG else "look" if size > SMALL or self.unknown else "good"
        return "look" if self.unknown or (self.undecided and abs(self.moved(self.undecided)[1]) > COUNTS) else "good"

    @property
    def verdict(self) -> str:
        """What it means, in a sentence."""
        told, other = f"intersample={self.intersample!r}", self.preferred or self.undecided
        missing = " and ".join(f"intersample={o!r}" for o in self.unknown)
        if missing:
            missing = f" {missing} could not be compared: solutions diverge, or are too far from linear."
        size = abs(self.moved(other)[1]) if other else 0.0
        if not self.log_ratio:
            return f"Inputs between the samples: nothing is known against {told}.{missing}"
        if self.preferred and size <= SMALL:
            matters = f"no parameter moves by more than {SMALL:g} sd"
            return f"The record prefers intersample={other!r} to {told}, but {matters}.{missing}"
        if not self.preferred and size <= COUNTS:
            return f"Nothing in the record prefers other inputs between the samples to {told}, or it does not matter.{missing}"
        moves = f"the mean of {self.moved(other)[0]} would move by about {size:.2g} posterior standard deviations"
        if self.preferred:
            return (
                f"Inputs between the samples: the record is e^{self.log_ratio[other]:.3g} times as likely with "
                f"intersample={other!r} as with {told}, and {moves}. Build the model with the one that is true "
                f"(record.replace(intersample=...)); a delay, or a term that is missing, may do the same.{missing}"
            )
        return (
            f"Inputs between the samples: the record cannot tell intersample={other!r} from {told}, and {moves}. The posterior "
            f"holds given {told}.{missing}"
        )

    @property
    def details(self) -> str:
        """The numbers, for people."""
        rows = []
        for other, ratio in self.log_ratio.items():
            shifts = ", ".join(f"{name} {size:+.2g}" for name, size in self.shift[other].items())
            rows.append(f"  intersample={other!r}: log ratio {ratio:+.3g}; shift in posterior standard deviations: {shifts}")
        return "\n".join(rows)

    def __repr__(self) -> str:
        return f"{self.verdict}\n{self.details}"


def check_intersample(
    idata: Any,
    *,
    model: pm.Model | None = None,
    name: str | None = None,
    data: TimeSeries | Sequence[TimeSeries] | None = None,
    draws: int = 200,
) -> IntersampleCheck:
    """Compare a posterior with what it would be if the inputs moved between the samples in another way.

    An input that is held comes half a sample later than one that is not, and straight lines lose a part of fast changes.
    Masses, dampings and starts explain both, so that the innovations may stay white while parameters are off by many
    standard deviations; the likelihoods tell.

    Parameters
    ----------
    idata : xarray.DataTree or xarray.Dataset
        Posterior draws, with dims ``chain`` and ``draw``.
    model : pm.Model, optional
        Default: the model on the context stack.
    name : str, optional
        Name of the :class:`ODEFilter`; needed if the model has several.
    data : TimeSeries or list of them, optional
        The records of the filter. By default they are read back from the model, which no longer knows whether a record is
        periodic.
    draws : int, default 200
        About this many draws, evenly spaced; fewer of long records, but at least eight for each parameter.

    Returns
    -------
    IntersampleCheck

    Raises
    ------
    ValueError
        If there is no such filter, no input or no posterior, or if there are too few draws.

    Notes
    -----
    For each behaviour of the inputs steps of Gauss and Newton, with the prior, lead to the most likely parameters, each a step
    that makes the record more likely; the innovations of the filter are linearised over the draws, which are moved there and
    drawn together, and so are the logarithms of their standard deviations. The evidences are those of normal posteriors
    (Laplace's approximation). Where noise has outliers
    these are left out, and the rest counts as normal; so are samples at a limit of the sensor.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr, pm_sysid as sid
    >>> lag = sid.System(
    ...     lambda t, x, u, p: p.rate * (u.F - x.y),
    ...     states=("y",),
    ...     inputs=("F",),
    ...     params=("rate",),
    ...     observe=lambda t, x, dx, u, p: x.y,
    ... )
    >>> t, rng = np.arange(80) / 4.0, np.random.default_rng(1)
    >>> held = sid.TimeSeries(t, rng.normal(size=80), None, inputs="F", intersample="zoh")
    >>> y = sid.simulate(lag, held, {"rate": 1.0}, x0=0.0, substeps=4)["y"].to_numpy()
    >>> record = held.replace(y=y + 0.02 * rng.normal(size=80), intersample="foh")
    >>> with pm.Model() as model:
    ...     _ = sid.ODEFilter(
    ...         "y", lag, record, {"rate": pm.LogNormal("rate")}, noise=0.02, x0=0.0, substeps=4
    ...     )
    >>> posterior = xr.Dataset({"rate": (("chain", "draw"), rng.normal(0.9, 0.01, (2, 100)))})
    >>> sid.check_intersample(posterior, model=model).preferred
    'zoh'
    """
    model = model_of(model)
    count(draws, "draws", 2)
    view = filter_view(name, model)
    if not view.system.inputs:
        raise ValueError(f"{view.name!r} has no inputs, so that nothing moves between its samples.")
    posterior = posterior_of(idata)
    records = view.records_or(data)
    view.check_same(idata)
    passes = (1 + 2 * STEPS) * sum(len(r) for r in records)
    needed = 2 * FOR_EACH * sum(int(np.prod(posterior[v.name].shape[2:])) for v in model.free_RVs if v.name in posterior)
    few, points = some_draws(posterior, model.free_RVs, max(min(draws, MOST_SAMPLES // passes), needed))
    cloud = _Cloud.of(Coordinates(model), points)
    if len(points) < FOR_EACH * cloud.elements:
        raise ValueError(
            f"idata has {len(points)} draws for {cloud.elements} parameters; {FOR_EACH} for each are needed to see what it "
            "does."
        )
    function = _innovations(view, records, None if data is not None else view.arrays())
    told = function(points)
    if told is None:
        raise ValueError("the innovations are not finite at all of the draws; does idata belong to this model and its data?")
    inner = told.inner(_outputs(view)) if view.problem.form.sensors.heavy else np.ones(told.e.shape[1], dtype=bool)
    likely = _Likely(cloud, _Prior(_log_prior(cloud.coordinates), cloud), inner)
    here = likely.climbed(function, np.zeros(cloud.white.shape[1]))
    if here is None or not likely.foreseen(here, told):
        raise ValueError(
            "the draws are not around one mode, or far from normal: what other inputs would do to them is not known."
        )
    (before,), spread = cloud.natural(here.white[None]), cloud.natural(cloud.white).std(axis=0)
    names, own = standardised(few, len(points))[0], records[0].intersample
    log_ratio, shift, unknown = dict[str, float](), dict[str, dict[str, float]](), list[str]()
    for other in (how for how in get_args(InterSample) if how != own):
        moved = [r.replace(intersample=other) for r in records]
        # Records that are too short for a spline have straight lines in its place.
        if len({r.smoothness for r in moved}) > 1 or moved[0].smoothness == records[0].smoothness:
            continue
        best = likely.climbed(_innovations(view, moved), here.white)
        if best is None:
            unknown.append(other)
            continue
        log_ratio[other] = best.log_evidence - here.log_evidence
        by = (cloud.natural(best.white[None])[0] - before) / np.where(spread > 0, spread, 1.0)
        shift[other] = dict(zip(names, by.tolist(), strict=True))
    return IntersampleCheck(own, log_ratio, shift, tuple(unknown))


class _Innovations(NamedTuple):
    """Innovations (n, N) of measured values at n draws, and their standard deviations."""

    e: np.ndarray
    std: np.ndarray

    def of(self, chosen: np.ndarray) -> _Innovations:
        """Those of some values (N,)."""
        return _Innovations(self.e[:, chosen], self.std[:, chosen])

    @np.errstate(all="ignore")  # of steps that go too far
    def log_density(self) -> np.ndarray:
        """Of each draw (n,)."""
        return np.asarray(-0.5 * np.sum((self.e / self.std) ** 2, axis=1) - np.sum(np.log(self.std), axis=1))

    def inner(self, output: np.ndarray) -> np.ndarray:
        """Which values (N,), each of an output, are no outliers, on average over the draws."""
        z = np.abs(np.mean(self.e / self.std, axis=0))
        typical = np.array([np.median(z[output == i]) if np.any(output == i) else 1.0 for i in range(max(output) + 1)])
        return np.asarray(z < OUTLIER * typical[output])


_AtPoints = Callable[[Sequence[Sequence[np.ndarray]]], _Innovations | None]


class _Best(NamedTuple):
    """Where steps lead, in coordinates of unit variance; log density there (of a step: its gain), and log volume around."""

    white: np.ndarray
    density: float
    volume: float
    linear: _Linear

    @property
    def log_evidence(self) -> float:
        """Laplace's approximation."""
        return self.density + self.volume


@dataclass(frozen=True, eq=False)
class _Cloud:
    """Draws (n, d) in coordinates ``white`` of zero mean and unit covariance, fewer where draws depend on each other."""

    coordinates: Coordinates
    mean: np.ndarray
    spread: np.ndarray
    white: np.ndarray

    @classmethod
    def of(cls, coordinates: Coordinates, points: Sequence[Sequence[np.ndarray]]) -> _Cloud:
        """Of points of a model."""
        values = zip(coordinates.model.free_RVs, zip(*points, strict=True), strict=True)
        x = coordinates.unconstrained({v.name: np.array(each) for v, each in values})
        mean = x.mean(axis=0)
        z = x - mean
        scale = np.where((std := z.std(axis=0)) > 0, std, 1.0)
        eigenvalues, vectors = np.linalg.eigh((z / scale).T @ (z / scale) / len(z))
        kept = eigenvalues > 1e-9 * max(eigenvalues.max(), 1.0)
        root = np.sqrt(eigenvalues[kept])
        return cls(coordinates, mean, scale[:, None] * (vectors[:, kept] * root), z / scale @ (vectors[:, kept] / root))

    @property
    def elements(self) -> int:
        """Number of coordinates of a sampler."""
        return self.mean.size

    def at(self, white: np.ndarray) -> np.ndarray:
        """Points (n, elements) of the sampler."""
        return np.asarray(self.mean + white @ self.spread.T)

    def points(self, white: np.ndarray) -> list[list[np.ndarray]]:
        """Points of the model."""
        values = self.coordinates.constrained(self.at(white))
        return [[values[v.name][i] for v in self.coordinates.model.free_RVs] for i in range(len(white))]

    def natural(self, white: np.ndarray) -> np.ndarray:
        """All elements (n, P) of points of the model, variable by variable."""
        return np.array([np.concatenate([np.ravel(value) for value in point]) for point in self.points(white)])


class _Prior(NamedTuple):
    """Log density of the prior in the coordinates of a sampler, and those in which it is wanted."""

    log_density: Callable[[np.ndarray], np.ndarray]
    cloud: _Cloud

    def value(self, white: np.ndarray) -> float:
        """At a point (d,)."""
        return float(self.log_density(self.cloud.at(white[None]))[0])

    def derivatives(self, white: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient (d,) and precision (d, d), without what is not convex, by differences over half a standard deviation."""
        d, h = white.size, 0.5
        one, both = h * np.eye(d), h * (np.eye(d)[:, None] + np.eye(d))
        points = np.concatenate([white[None], white + one, white - one, (white + both).reshape(-1, d)])
        values = self.log_density(self.cloud.at(points))
        at, up, down = values[0], values[1 : d + 1], values[d + 1 : 2 * d + 1]
        mixed = (values[2 * d + 1 :].reshape(d, d) - up[:, None] - up + at) / h**2
        mixed[np.diag_indices(d)] = (up - 2 * at + down) / h**2
        eigenvalues, vectors = np.linalg.eigh(-mixed)
        return (up - down) / (2 * h), (vectors * np.maximum(eigenvalues, 0.0)) @ vectors.T


@dataclass(frozen=True)
class _Linear:
    """Innovations ``e + slope w`` and logarithms of their standard deviations ``log_std + swelling w``, at parameters ``w``."""

    e: np.ndarray
    slope: np.ndarray
    log_std: np.ndarray
    swelling: np.ndarray

    @classmethod
    def through(cls, white: np.ndarray, at: _Innovations, near: np.ndarray, found: _Innovations) -> _Linear:
        """Exact at a point (d,), with slopes by least squares over others (n, d)."""
        moved, (e,), (log_std,) = near - white, at.e, np.log(at.std)
        slope, swelling = (np.linalg.lstsq(moved, b, rcond=None)[0].T for b in (found.e - e, np.log(found.std) - log_std))
        return cls(e - slope @ white, slope, log_std - swelling @ white, swelling)

    def at(self, white: np.ndarray) -> _Innovations:
        """At parameters (n, d)."""
        return _Innovations(self.e + white @ self.slope.T, np.exp(self.log_std + white @ self.swelling.T))

    @np.errstate(all="ignore")
    def best(self, prior: _Prior, near: np.ndarray) -> _Best | None:
        """Where a step of Gauss, Newton and Fisher leads from some parameters, with the prior; and what it gains."""
        (e,), (std,) = self.at(near[None])
        z, slope = e / std, self.slope / std[:, None]
        gradient, precision = prior.derivatives(near)
        information = slope.T @ slope + 2.0 * self.swelling.T @ self.swelling + precision
        towards = gradient - slope.T @ z + self.swelling.T @ (z**2 - 1.0)
        if not np.isfinite(information).all() or not np.isfinite(towards).all():
            return None
        step = np.linalg.pinv(information, hermitian=True) @ towards
        gain = 0.5 * float(towards @ step)
        return _Best(near + step, gain, -0.5 * float(np.linalg.slogdet(information)[1]), self)


@dataclass(frozen=True, eq=False)
class _Likely:
    """How likely innovations make a record, and where they lead, among draws; of values (N,) the ``inner`` ones count."""

    cloud: _Cloud
    prior: _Prior
    inner: np.ndarray

    def climbed(self, function: _AtPoints, white: np.ndarray) -> _Best | None:
        """The most likely parameters, step by step; None where steps do not arrive, or solutions diverge."""
        here, nearer = self.density(function, white), NEARER
        for _ in range(STEPS):
            linear = self.linear(function, white, nearer)
            best = None if linear is None else linear.best(self.prior, white)
            if best is not None:
                if best.density < ARRIVED:
                    return best._replace(white=white, density=here)
                step = best.white - white
                step *= min(1.0, LONGEST / float(np.linalg.norm(step)))
                for share in 0.5 ** np.arange(HALVINGS):
                    if (there := self.density(function, white + share * step)) > here:
                        white, here = white + share * step, there
                        break
                else:
                    best = None
            if best is None:
                nearer *= 0.5  # of draws that are too far from each other slopes say little
        return None

    def linear(self, function: _AtPoints, white: np.ndarray, nearer: float) -> _Linear | None:
        """Innovations about a point (d,), by draws as far from it as those given, times ``nearer``; None where some diverge."""
        near = white + nearer * self.cloud.white
        at, found = function(self.cloud.points(white[None])), function(self.cloud.points(near))
        if at is None or found is None:
            return None
        return _Linear.through(white, at.of(self.inner), near, found.of(self.inner))

    def density(self, function: _AtPoints, white: np.ndarray) -> float:
        """Log density at a point (d,), minus infinity where solutions diverge."""
        found = function(self.cloud.points(white[None]))
        return -np.inf if found is None else float(found.of(self.inner).log_density()[0]) + self.prior.value(white)

    def foreseen(self, best: _Best, told: _Innovations) -> bool:
        """Whether half of the draws are about as likely as innovations that are linear about the best point say."""
        exact, linear = told.of(self.inner).log_density(), best.linear.at(self.cloud.white).log_density()
        return bool(np.median(np.abs(exact - linear)) < FORESEEN)


def _log_prior(coordinates: Coordinates) -> Callable[[np.ndarray], np.ndarray]:
    """Log density of the prior, potentials included, of particles (B, d)."""
    model, particles = coordinates.model, pt.dmatrix()
    graph = model.logp([*model.free_RVs, *model.potentials])
    (many,) = coordinates.vectorised([graph], particles)
    function: Callable[[np.ndarray], np.ndarray] = compiled([particles], many)
    return function


def _innovations(view: FilterView, records: Sequence[TimeSeries], known: RecordData | None = None) -> _AtPoints:
    """Of a filter on records, at points of its model; ``known`` are the arrays of these records, if the model has them.

    None where not all are finite.
    """
    problem = replace(view.problem, form=replace(view.problem.form, smoothness=records[0].smoothness))
    now = problem.data(records, cut(view.op.grid.choice.grids, view.op.substeps)) if known is None else known
    arrays, free, sensors = RecordData.symbolic(), view.model.free_RVs, problem.form.sensors
    measured = _measured(view)
    columns = 2 if sensors.plain else 3  # numbers of an output
    outputs, _ = problem.run(view.y, view.unknowns, arrays, "innovations")
    function = announced("innovations", lambda: compiled([*free, *arrays], outputs))

    def at(points: Sequence[Sequence[np.ndarray]]) -> _Innovations | None:
        each = np.array([function(*p, *now) for p in points])
        e, std = each[:, :, 0::columns][:, measured], each[:, :, 1::columns][:, measured]
        return _Innovations(e, std) if np.isfinite(e).all() and np.all(std > 0) else None

    return at


def _measured(view: FilterView) -> np.ndarray:
    """Marks (T, n_y) the values that are known, and at no limit of a sensor."""
    return np.asarray(np.isfinite(view.measured()) & ~view.problem.form.sensors.censored(view.measured()))


def _outputs(view: FilterView) -> np.ndarray:
    """Number of the output of each value (N,)."""
    measured = _measured(view)
    return np.asarray(np.broadcast_to(np.arange(measured.shape[1]), measured.shape)[measured])
