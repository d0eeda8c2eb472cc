"""Whether the linearisation about an uncertain initial state biases the posterior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import scipy
from pytensor.graph import vectorize_graph

from pm_sysid.arguments import count
from pm_sysid.environment import compiling
from pm_sysid.idata import posterior_of, some_draws
from pm_sysid.likelihood.coordinates import model_of
from pm_sysid.likelihood.filter_view import FilterView, filter_view
from pm_sysid.posterior.passes import Passes
from pm_sysid.posterior.reweighting import Reweighted, reweighted
from pm_sysid.recurrence.functions import compiled
from pm_sysid.sampling.smc.resampling import bisect
from pm_sysid.solve.filter_graph import Problem

#: Draws of the initial state in a round of importance sampling (a power of two), and most rounds.
POINTS, ROUNDS = 256, 20
#: Effective share of these draws from which on there are no more rounds; below the other an integral is not believed.
ENOUGH, POOR = 0.4, 0.1
#: Effective share that the weights of a round are tempered to, where they have less.
TEMPERED = 0.15
#: Share of these draws that come from the prior, so that nothing is missed where the smoothed state is wrong.
DEFENCE = 1 / 8
#: Draws of the prior, and of the initial state for each, that look for what the linearisation has ruled out.
FROM_PRIOR, STATES = 1000, 16
#: Degrees of freedom of the others.
FREEDOM = 5
#: Most samples that are filtered: fewer posterior draws for long records, but at least so many.
MOST_SAMPLES, LEAST_DRAWS = 2 * 10**8, 10


@dataclass(frozen=True, repr=False)
class InitialStateCheck(Reweighted):
    """Outcome of :func:`check_initial_state`; printing it gives a verdict in words.

    Attributes
    ----------
    change : ndarray, shape (draws,)
        By how much the log-likelihood of each posterior draw changes, if the initial state is integrated out without
        linearisation.
    shift : dict of str to float
        By how many posterior standard deviations the posterior mean of each parameter moves.
    stretch : dict of str to float
        What the posterior standard deviation of each parameter is multiplied by.
    ess : float
        Effective share of the draws after reweighting; small where the two posteriors hardly overlap.
    believed : float
        Share of the draws for which the integral can be believed.
    """

    believed: float

    @property
    def level(self) -> str:
        """``"good"``, ``"look"`` or ``"bad"``."""
        return "bad" if self.believed < 0.9 else super().level

    @property
    def evidence(self) -> float:
        """By how much the log evidence changes."""
        return float(scipy.special.logsumexp(self.change) - np.log(len(self.change)))

    @property
    def evidence_error(self) -> float:
        """Standard error of that change, by the scatter between the draws; infinite of one."""
        if len(self.change) < 2:
            return float("inf")
        weights = np.exp(self.change - scipy.special.logsumexp(self.change))
        return float(np.sqrt(max(np.sum(weights**2) - 1 / len(weights), 0.0)))

    @property
    def verdict(self) -> str:
        """What it means, in a sentence."""
        remedy = "Make the initial state a PyMC variable (x0={...}) and sample again."
        if self.believed < 0.9:
            return (
                f"For {1 - self.believed:.0%} of the draws the initial state could not be integrated out: how far off the "
                f"linearised likelihood is is not known. {remedy}"
            )
        return self.said("With the initial state integrated out exactly, and not linearised,", "the linearisation", remedy)

    def __repr__(self) -> str:
        return f"{self.verdict}\n{self.details}\n  log evidence changes by {self.evidence:+.3g}"


def check_initial_state(
    idata: Any, *, model: pm.Model | None = None, name: str | None = None, draws: int = 100
) -> InitialStateCheck:
    """Compare a posterior with what it would be if the uncertain initial state were integrated out exactly.

    A filter with an uncertain initial state (``x0_std``, or no ``x0``) marginalises it linearised about the state it has
    reached, and as a Gaussian again after each sample. That is exact in a linear system whose noise is Gaussian and does not
    depend on the output, and without limits. Here the likelihood is integrated over the initial state by importance
    sampling at posterior draws, which are weighted by the result.

    Parameters
    ----------
    idata : xarray.DataTree or xarray.Dataset
        Posterior draws, with dims ``chain`` and ``draw``.
    model : pm.Model, optional
        Default: the model on the context stack.
    name : str, optional
        Name of the :class:`ODEFilter`; needed if the model has several.
    draws : int, default 100
        About this many draws, evenly spaced; fewer for records of more than 2 000 samples.

    Returns
    -------
    InitialStateCheck

    Raises
    ------
    ValueError
        If there is no such filter or no posterior, if the initial state is known or tied by relations of the system, if the
        filter linearises about processes too (:func:`check_processes` integrates out both), or arguments are impossible.

    Notes
    -----
    Rounds of 256 quasi-random draws from a t distribution, first about the smoothed initial state, then about the weighted
    draws of the round before (tempered, where few of them count), and from the prior (one in eight). Initial states of modes
    far apart may be missed, where none is near the smoothed one. A calibrated diffusion (``"mle"``) is that of the model.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr, pm_sysid as sid
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level,
    ...     states=("level",),
    ...     params=("rate",),
    ...     observe=lambda t, x, dx, u, p: x.level,
    ... )
    >>> t = np.linspace(0.0, 2.0, 21)
    >>> with pm.Model() as model:
    ...     rate = {"rate": pm.LogNormal("rate")}
    ...     _ = sid.ODEFilter(
    ...         "y", decay, sid.TimeSeries(t, None, np.exp(-t)), rate, noise=0.1, substeps=2
    ...     )
    >>> posterior = xr.Dataset(
    ...     {"rate": (("chain", "draw"), np.random.default_rng(1).normal(1.0, 0.05, (2, 200)))}
    ... )
    >>> sid.check_initial_state(posterior, model=model).level
    'good'
    """
    view = filter_view(name, model_of(model))
    if unknown := not_checkable(view):
        raise ValueError(unknown)
    if view.problem.linearises_processes:
        raise ValueError(
            f"the filter {view.name!r} linearises about its processes, and an integral over the initial state would do so too: "
            "call check_processes, which integrates out both."
        )
    if not view.problem.form.free:
        raise ValueError(f"the initial state of {view.name!r} is no uncertain one (x0_std): there is nothing to check.")
    count(draws, "draws", 2)
    posterior = posterior_of(idata)
    length = len(view.measured())
    draws = max(LEAST_DRAWS, min(draws, MOST_SAMPLES // (4 * POINTS * length)))
    few, points = some_draws(posterior, view.model.free_RVs, draws)
    integrate = Integral(view)
    with np.errstate(all="ignore"):
        found = [integrate(point) for point in points]
    change = np.array([f.change for f in found])
    if not np.isfinite(change).any():
        raise ValueError("the log-likelihood is not finite at any of the draws; does idata belong to this model and its data?")
    change = np.where(np.isfinite(change), change, -np.inf)
    return InitialStateCheck(*reweighted(few, change), float(np.mean([f.efficiency >= POOR for f in found])))


def prior_evidence(view: FilterView, random_seed: int) -> float:
    """Log evidence by draws of the prior and of the initial state alone; minus infinity where the prior cannot be drawn from.

    Few of them explain a record, and most often the number is much too low. By Markov's inequality it exceeds the log evidence
    by three in one of twenty cases at most, so that a larger one tells of parameters that posterior draws do not know: the
    linearisation has ruled them out.
    """
    draws = min(FROM_PRIOR, MOST_SAMPLES // (10 * STATES * len(view.measured())))
    if draws < 2:
        return -np.inf
    rng = np.random.default_rng(random_seed)
    try:
        with compiling:
            drawn = pm.draw(view.model.free_RVs, draws, random_seed=random_seed, mode="FAST_COMPILE")
    except NotImplementedError:
        return -np.inf
    integrate = Integral(view)
    with np.errstate(all="ignore"):
        values = [integrate.by_prior([v[i] for v in drawn], rng) for i in range(draws)]
    return float(scipy.special.logsumexp(values) - np.log(draws))


def linearises_initial_state(view: FilterView) -> bool:
    """Whether an initial state is uncertain, and what is marginalised no Gaussian: the system is not linear, or a sensor."""
    return bool(view.problem.form.free) and not (view.system.linear and view.problem.form.sensors.gaussian)


def not_checkable(view: FilterView) -> str:
    """Why the linearisation cannot be checked; empty if it can."""
    if not (view.system.relations and linearises_initial_state(view)):
        return ""
    return (
        f"The uncertain initial state of {view.name!r} is restricted to the relations of the system by linearising, and what "
        "that costs cannot be measured. Make the initial state of PyMC variables that obey them (x0={...}) and sample again."
    )


class _Found(NamedTuple):
    """By how much the log-likelihood of a point changes, and the smallest effective share over the records."""

    change: float
    efficiency: float


class Integral:
    """The likelihood of a filter integrated over the initial states of its records.

    Everything is in units of the prior: an initial state is ``x0 + x0_std * xi`` with standard normal ``xi``.
    """

    def __init__(self, view: FilterView) -> None:
        self.free = np.array(view.problem.form.free)
        self.smoothed = Passes(view)
        self.first = np.flatnonzero(np.diff(self.smoothed.record, prepend=-1))
        problem, unknowns, data, variables = view.problem, view.unknowns, view.data, view.free
        linearised, _ = problem.run(view.y, unknowns, data)
        diffusion = problem.calibrate(unknowns, data) if problem.calibrated else unknowns.diffusion
        known = [pt.sum(linearised), unknowns.x0, unknowns.x0_std, diffusion]
        self.known = compiled(variables, known)
        given = Problem(problem.system, replace(problem.form, free=()), False)
        x0, many, value = pt.dmatrix("x0"), pt.dtensor3("x0_many"), diffusion.type("diffusion")
        exact, _ = given.run(view.y, unknowns._replace(x0=x0, diffusion=value), data)
        self.exact: Callable[..., np.ndarray] = compiled(
            [*variables, value, many], vectorize_graph(exact.sum(axis=1), {x0: many})
        )
        uniform = scipy.stats.qmc.Sobol(len(self.free) + 1, seed=1).random(POINTS)
        normal = scipy.stats.norm.ppf(uniform[:, 1:])
        #: Draws of the standard t distribution, and at the end of the normal distribution.
        self.draws = normal / np.sqrt(scipy.stats.chi2.ppf(uniform[:, :1], FREEDOM) / FREEDOM)
        self.defence = round(DEFENCE * POINTS)
        self.draws[-self.defence :] = normal[-self.defence :]
        self.order = [list(view.model.free_RVs).index(v) for v in variables]

    def __call__(self, point: list[np.ndarray]) -> _Found:
        """The change at a point: values of all free variables of the model, in its order."""
        point = [point[i] for i in self.order]
        before, x0, x0_std, diffusion = self.known(*point)
        point = [*point, diffusion]
        centre, root = smoothed_starts(self.smoothed, point[:-1], x0, x0_std, self.free)
        log_prior = 0.0
        for _ in range(ROUNDS):
            xi = centre[:, None] + np.einsum("rij,nj->rni", root, self.draws)
            xi[:, -self.defence :] = self.draws[-self.defence :]
            log_weights = self._log_likelihood(point, x0, x0_std, xi)
            log_prior = scipy.stats.norm.logpdf(xi).sum(axis=2)
            log_weights += log_prior - log_mixture(xi, centre, root, log_prior, self.defence / POINTS)
            log_weights = np.where(np.isnan(log_weights), -np.inf, log_weights)
            efficiency = _efficiency(log_weights)
            if not np.isfinite(efficiency).all():
                return _Found(-np.inf, 0.0)
            if efficiency.min() >= ENOUGH:
                break
            tempered = np.array([_tempered(w) for w in log_weights])
            weights = np.exp(tempered - scipy.special.logsumexp(tempered, axis=1, keepdims=True))
            centre = np.einsum("rn,rni->ri", weights, xi)
            away = xi - centre[:, None]
            root = _roots(np.einsum("rn,rni,rnj->rij", weights, away, away))
        total = np.sum(scipy.special.logsumexp(log_weights, axis=1) - np.log(POINTS))
        return _Found(float(total - before), float(efficiency.min()))

    def by_prior(self, point: list[np.ndarray], rng: np.random.Generator) -> float:
        """Log-likelihood at a point, averaged over a few draws of the initial state of each record."""
        point = [point[i] for i in self.order]
        _, x0, x0_std, diffusion = self.known(*point)
        xi = rng.standard_normal((len(x0), STATES, len(self.free)))
        found = self._log_likelihood([*point, diffusion], x0, x0_std, xi)
        found = np.where(np.isnan(found), -np.inf, found)
        return float(np.sum(scipy.special.logsumexp(found, axis=1) - np.log(STATES)))

    def _log_likelihood(self, point: list[np.ndarray], x0: np.ndarray, x0_std: np.ndarray, xi: np.ndarray) -> np.ndarray:
        """Log-likelihood (R, N) of each record."""
        many = np.repeat(x0[None], xi.shape[1], axis=0)
        many[:, :, self.free] += x0_std[:, self.free] * xi.transpose(1, 0, 2)
        return np.add.reduceat(self.exact(*point, many), self.first, axis=1).T


def smoothed_starts(
    smoothed: Passes, point: list[np.ndarray], x0: np.ndarray, x0_std: np.ndarray, free: Sequence[int] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Smoothed initial states (R, d) and roots of their covariances, in units of the prior; the prior where not known."""
    mean, spread = smoothed.starts(point, np.flatnonzero(np.diff(smoothed.record, prepend=-1)))
    std = x0_std[:, free]
    centre = (mean[:, free] - x0[:, free]) / std
    root = spread[:, free] / std[..., None]
    covariance = np.einsum("rif,rjf->rij", root, root)
    fine = np.isfinite(centre).all(axis=1) & np.isfinite(covariance).all(axis=(1, 2))
    prior = np.eye(len(free))
    return np.where(fine[:, None], centre, 0.0), _roots(np.where(fine[:, None, None], covariance, prior))


def log_mixture(xi: np.ndarray, centre: np.ndarray, root: np.ndarray, log_prior: np.ndarray, share: float) -> np.ndarray:
    """Log density (R, N) of a t distribution about centres (R, d) with roots (R, d, d), mixed with a share of the prior."""
    z = np.linalg.solve(root, (xi - centre[:, None]).transpose(0, 2, 1)).transpose(0, 2, 1)
    d = xi.shape[2]
    density = np.reshape(scipy.stats.multivariate_t(np.zeros(d), np.eye(d), FREEDOM).logpdf(z), log_prior.shape)
    density = density - np.log(np.abs(np.diagonal(root, axis1=1, axis2=2))).sum(axis=1)[:, None]
    mixture: np.ndarray = np.logaddexp(np.log1p(-share) + density, np.log(share) + log_prior)
    return mixture


def _efficiency(log_weights: np.ndarray) -> np.ndarray:
    """Effective share of draws (..., N)."""
    weights = np.exp(log_weights - log_weights.max(axis=-1, keepdims=True))
    share: np.ndarray = weights.sum(axis=-1) ** 2 / (weights.shape[-1] * np.sum(weights**2, axis=-1))
    return share


def _tempered(log_weights: np.ndarray) -> np.ndarray:
    """Weights of which enough draws count for the next proposal to be fitted to them."""
    if _efficiency(log_weights) >= TEMPERED:
        return log_weights
    possible = np.where(log_weights > -np.inf, log_weights, log_weights[log_weights > -np.inf].min())
    return bisect(lambda power: bool(_efficiency(power * possible) >= TEMPERED), 0.0, 1.0) * possible


def _roots(covariance: np.ndarray) -> np.ndarray:
    """Cholesky factors (R, d, d), of covariances in units of the prior that may be singular."""
    return np.linalg.cholesky(covariance + 1e-12 * np.eye(covariance.shape[-1]))
