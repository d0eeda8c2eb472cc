"""Whether the linearisation about processes biases the posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import scipy
import xarray as xr

from pm_sysid.arguments import count, whole_seed
from pm_sysid.idata import posterior_of, some_draws
from pm_sysid.likelihood.coordinates import model_of
from pm_sysid.likelihood.filter_view import filter_view
from pm_sysid.posterior.particle_filter import ParticleFilter, Sets, log_likelihood
from pm_sysid.posterior.reweighting import FINE, HALF, MOST, STRETCHED, WIDE, Reweighted, reweighted, standardised

#: A posterior mean that moves by more standard deviations than this is doubted.
TOLERATED = 0.3
#: So is a log evidence that changes by more than this.
MUCH = 2.0
#: Standard errors from which on a change is no chance.
SURE = 3.0
#: Standard errors of an average over the draws, and of the log-likelihood of a draw, that are small enough.
SMALL, QUIET = 0.05, 0.5
#: Above these a change is not known: standard error of the shift, of the log evidence, and of the log-likelihood of a draw.
VAGUE, ROUGH, UNKNOWN = 0.2, 0.4, 1.0
#: A log-likelihood that is higher by this on average has seen what another estimate has missed.
SEEN = 0.1
#: Two estimates that are farther apart than this say nothing; share of the draws at which one of the two may have lost the
#: record, so that the other one counts alone.
APART, LOST = 10.0, 1 / 16
#: Share of the variance over the draws that chance may have, for the variance to say that the posterior is another one.
BY_CHANCE = 0.4
#: What to do about it.
REMEDY = (
    "Ways around it: describe the force by a few parameters (a spline of time in the equations), or turn the record of the "
    "sensor back into what it measures."
)
#: Particles of the first round; each round has so many times more than the last.
FIRST, MORE = 64, 4
#: Most steps of particles in a round; fewer draws for long records, but at least so many, and the beginning of longer ones.
MOST_STEPS, LEAST_DRAWS = 6 * 10**7, 16
#: Least share of the draws, and steps in a sampling interval, for which anything can be said.
FINITE, STIFF = 0.9, 64


@dataclass(frozen=True, repr=False)
class ProcessCheck(Reweighted):
    """Outcome of :func:`check_processes`; printing it gives a verdict in words.

    Attributes
    ----------
    change : ndarray, shape (draws,)
        By how much the log-likelihood of each posterior draw changes, if the processes (and an uncertain initial state) are
        integrated out by particles, without linearisation.
    shift, stretch : dict of str to float
        By how many posterior standard deviations the posterior mean of each parameter moves, and what its standard deviation
        is multiplied by. A shift is that of the weighted draws, or to first order the covariance of ``change`` with the
        parameter: whichever has the smaller standard error.
    ess : float
        Effective share of the draws after reweighting, as it would be with any number of particles.
    noise : float
        Standard error of ``change`` at a draw: that of the particles.
    shift_error, stretch_error : dict of str to float
        Standard errors of ``shift`` and of the logarithm of ``stretch``.
    evidence, evidence_error : float
        By how much the log evidence changes, and the standard error of that.
    share : float
        Share of the samples that were looked at: the first ones. The changes are those of all, in proportion.
    """

    noise: float
    shift_error: dict[str, float]
    stretch_error: dict[str, float]
    evidence: float
    evidence_error: float
    share: float

    @property
    def biased(self) -> bool:
        """Whether more than chance says that the posterior is another one."""
        if self.noise > UNKNOWN:
            return False
        moved = any(abs(s) > max(TOLERATED, SURE * self.shift_error[name]) for name, s in self.shift.items())
        wide = any(
            abs(np.log(max(s, 1e-300))) > max(np.log(WIDE), SURE * self.stretch_error[name]) for name, s in self.stretch.items()
        )
        other = self.ess < HALF and self.noise**2 < BY_CHANCE * float(np.var(self.change[np.isfinite(self.change)]))
        return moved or wide or other

    @property
    def incomparable(self) -> bool:
        """Whether the log evidence says nothing in a comparison with other models."""
        return abs(self.evidence) > max(MUCH, SURE * self.error_of_particles)

    @property
    def error_of_particles(self) -> float:
        """Standard error of the change of the log evidence, also where estimates at draws are too uncertain for weights."""
        return float(np.hypot(self.evidence_error, self.noise if self.noise > UNKNOWN else 0.0))

    @property
    def known(self) -> bool:
        """Whether the particles were enough to tell."""
        shifts = max(self.shift_error.values())
        return shifts < VAGUE and self.evidence_error < ROUGH and self.noise < UNKNOWN

    @property
    def settled(self) -> bool:
        """Whether more particles would tell no more: what they leave uncertain is an average over the draws."""
        return bool(self.noise < min(QUIET, SMALL * np.sqrt(len(self.change))))

    def better(self, other: ProcessCheck) -> bool:
        """Whether this is the better estimate at the same draws: it is less noisy, or has found what the other has missed.

        Estimates of a likelihood are right on average, and their logarithms too low by half of their variance; beyond that, the
        lower ones have missed a part of what may have happened.
        """
        if self.noise < other.noise:
            return True
        gain = (self.change - other.change)[np.isfinite(self.change) & np.isfinite(other.change)]
        chance = SURE * float(np.std(gain)) / np.sqrt(max(len(gain), 1))
        missed = float(np.mean(gain)) + (self.noise**2 - other.noise**2) / 2
        return self.noise < UNKNOWN and missed > max(SEEN, chance)

    @property
    def level(self) -> str:
        """``"good"``, ``"look"`` or ``"bad"``."""
        if self.biased or self.incomparable:
            return "bad"
        visible = any(abs(s) > max(FINE, 2 * self.shift_error[name]) for name, s in self.shift.items())
        other = any(
            abs(np.log(max(s, 1e-300))) > max(np.log(STRETCHED), 2 * self.stretch_error[name])
            for name, s in self.stretch.items()
        )
        shaped = self.ess < MOST and self.noise < QUIET
        return "look" if visible or other or shaped or not self.known else "good"

    @property
    def verdict(self) -> str:
        """What it means, in a sentence or two."""
        change = f"{self.evidence:+.0f}" if abs(self.evidence) >= 100 else f"{self.evidence:+.2g}"
        evidence = f"The log evidence would change by {change} ± {self.evidence_error:.1g}.{self._part}"
        instead = "With the processes integrated out by particles, and not linearised,"
        if self.biased or (self.known and not self.incomparable):
            return f"{self.said(instead, 'the linearisation', REMEDY)} {evidence}"
        if self.incomparable:
            return f"{instead} the log evidence would be another one: do not compare this model with others by it. {evidence}"
        return (
            f"What linearising about the processes costs is not known well: too few particles could be followed. The "
            f"means are known to {max(self.shift_error.values()):.1g} posterior standard deviations, the log evidence to "
            f"{self.error:.1g}.{self._part}"
        )

    @property
    def _part(self) -> str:
        """What numbers are of, where a record is too long for all of it."""
        if self.share >= 1:
            return ""
        first = f"The record is long, and only the first {100 * self.share:.0f} % of its samples were measured"
        return f" {first}: the numbers hold for all of it if the others are like these."

    @property
    def error(self) -> float:
        """What the log evidence is known to with the linearisation."""
        return float(np.hypot(self.evidence, self.error_of_particles))

    def __repr__(self) -> str:
        return (
            f"{self.verdict}\n{self.details}\n  log-likelihood of a draw known to ± {self.noise:.2g}, shifts to ± "
            f"{max(self.shift_error.values()):.2g}\n  log evidence changes by {self.evidence:+.3g} ± {self.evidence_error:.2g}"
        )


def check_processes(
    idata: Any, *, model: pm.Model | None = None, name: str | None = None, draws: int = 64, random_seed: int | None = None
) -> ProcessCheck:
    """Compare a posterior with what it would be if processes were integrated out by particles, and not linearised.

    A filter with processes (``latent``, ``varying``, ``coloured``) linearises about their mean at each sample, as an extended
    Kalman filter does. That is exact where the system is linear in states and processes, and what the sensors see is Gaussian.
    Elsewhere a particle filter estimates the likelihood at posterior draws, and the draws are weighted by the result.
    An uncertain initial state is integrated out with the processes.

    Parameters
    ----------
    idata : xarray.DataTree or xarray.Dataset
        Posterior draws, with dims ``chain`` and ``draw``.
    model : pm.Model, optional
        Default: the model on the context stack.
    name : str, optional
        Name of the :class:`ODEFilter`; needed if the model has several.
    draws : int, default 64
        About this many draws, evenly spaced; fewer for long records.
    random_seed : int, optional
        Of the particles.

    Returns
    -------
    ProcessCheck

    Raises
    ------
    ValueError
        If the filter has no processes that it linearises about, or there is no posterior, or arguments are impossible; where
        the system is stiff, or its uncertain initial state is tied by relations.

    Notes
    -----
    Each draw has two independent particle filters, whose difference says how well the log-likelihood is known. The smoothed
    states and their linearisation lead the particles; where they lead astray, particles follow the prior of the processes
    alone. Their number grows until shifts are known to 0.05 posterior standard deviations, or 60 million steps have been taken.
    Where that is not enough the result says so.

    Sources: Gordon, Salmond and Smith (1993), Novel approach to nonlinear/non-Gaussian Bayesian state estimation; Guarniero,
    Johansen and Lee (2017), The iterated auxiliary particle filter.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr, pm_sysid as sid
    >>> pushed = sid.System(
    ...     lambda t, x, u, p: u.d - p.rate * x.z**3,
    ...     states=("z",),
    ...     inputs=("d",),
    ...     params=("rate",),
    ...     observe=lambda t, x, dx, u, p: x.z,
    ... )
    >>> record = sid.TimeSeries(np.arange(8) / 4, None, [0.0, 0.1, 0.2, 0.2, 0.1, 0.1, 0.0, 0.1])
    >>> with pm.Model() as model:
    ...     rate = {"rate": pm.LogNormal("rate")}
    ...     force = {"d": sid.OU(scale=0.5, length=1.0)}
    ...     _ = sid.ODEFilter(
    ...         "y", pushed, record, rate, noise=0.1, x0=0.0, latent=force, substeps=4
    ...     )
    >>> draws = np.random.default_rng(1).lognormal(0.0, 1.0, (2, 100))
    >>> posterior = xr.Dataset({"rate": (("chain", "draw"), draws)})
    >>> sid.check_processes(posterior, model=model, random_seed=1).level
    'good'
    """
    view = filter_view(name, model_of(model))
    if not view.problem.linearises_processes:
        what = "is exact for its processes" if view.system.latents else "has no processes (latent, varying, coloured)"
        raise ValueError(f"the filter {view.name!r} {what}: there is nothing to check.")
    if view.problem.form.free and view.system.relations:
        raise ValueError(
            f"the uncertain initial state of {view.name!r} is tied by relations of the system, to which particles cannot be "
            "held; make it of PyMC variables that obey them (x0={...}) and sample again."
        )
    count(draws, "draws", 2)
    rng = np.random.default_rng(whole_seed(random_seed))
    filters = ParticleFilter(view)
    posterior = posterior_of(idata)
    length = sum(map(len, filters.records))
    point = some_draws(posterior, view.model.free_RVs, 1)[1]
    substeps = filters.substeps(filters.sets(point))
    if substeps > STIFF:
        raise ValueError(
            f"the system is stiff: particles would take {substeps} Runge-Kutta steps in a sampling interval; what linearising "
            "about its processes costs cannot be measured."
        )
    cost = 2 * substeps * length  # of a particle at each draw
    draws = max(LEAST_DRAWS, min(draws, MOST_STEPS // (cost * max(length, FIRST))))
    few, points = some_draws(posterior, view.model.free_RVs, draws)
    sets = filters.sets(points)
    share = min(1.0, MOST_STEPS / (cost * len(points) * max(FIRST, min(length, 4 * FIRST))))
    run = _Run(filters, few, sets, substeps, share, rng)
    particles = FIRST
    found, free = run(True, particles), run(False, particles)
    if found is not None and free is not None and free.noise > UNKNOWN:  # too noisy to say whether the others are led astray
        free = run(False, MORE * particles)
    led = found is not None and (free is None or not free.better(found))
    found = found if led else free
    while found is not None and not found.settled:
        more = min(MORE * particles, int(MOST_STEPS / (cost * share * len(points))))
        if more < 2 * particles:
            break
        particles, found = more, run(led, more) or found
    if found is None:
        raise ValueError(
            "no particle explains the record at many draws: what linearising about the processes costs cannot be measured."
        )
    return found


class _Run:
    """Two particle filters at each draw, for the first samples of the records."""

    def __init__(
        self, filters: ParticleFilter, few: xr.Dataset, sets: Sets, substeps: int, share: float, rng: np.random.Generator
    ) -> None:
        lengths = [max(1, round(share * len(record))) for record in filters.records]
        self.share = sum(lengths) / sum(map(len, filters.records))
        self.few, self.rng, self.before = few, rng, filters.linearised(sets, lengths)
        self.motions = filters.motions(sets, substeps, lengths)
        self.guides = filters.guides(self.motions, sets)

    def __call__(self, led: bool, particles: int) -> ProcessCheck | None:
        """What particles say that the linearisation leads, or not; None where there is nothing that they say."""
        n, share = len(self.before), self.share
        twice, total = np.tile(np.arange(n), 2), np.zeros(2 * n)
        for motion, guides in zip(self.motions, self.guides, strict=True):
            if led and guides is None:
                return None
            total += log_likelihood(motion, guides if led else None, twice, particles, self.rng)
        both = total.reshape(2, n)
        change = (scipy.special.logsumexp(both, axis=0) - np.log(2) - self.before) / share
        finite = np.isfinite(change)
        if finite.mean() < FINITE:
            return None
        change = np.where(finite, change, -np.inf)
        apart = np.sort(np.minimum(np.abs(both[0] - both[1])[finite] / share, APART))
        noise = float(np.sqrt(np.mean(apart[: round((1 - LOST) * len(apart))] ** 2)) / 2)
        weighted = reweighted(self.few, change)
        moved = np.exp(change - scipy.special.logsumexp(change)) - 1 / n
        names, z = standardised(self.few, n)
        shift, shift_error = _shift(z, np.where(finite, change, np.min(change[finite])), moved)
        stretch_error = np.sqrt(moved**2 @ (z**2 - 1) ** 2) / 2
        return ProcessCheck(
            change,
            dict(zip(names, map(float, shift), strict=True)),
            weighted[2],
            min(1.0, weighted[3] * float(np.exp(min(noise, 2.0) ** 2))),
            noise,
            dict(zip(names, map(float, shift_error), strict=True)),
            dict(zip(names, map(float, stretch_error), strict=True)),
            float(scipy.special.logsumexp(change) - np.log(n)),
            float(np.sqrt(np.sum(moved**2))),
            share,
        )


def _shift(z: np.ndarray, change: np.ndarray, moved: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By how many standard deviations each mean moves, and the standard errors of that.

    Weights say it without further assumptions, but where they are unlike, few draws count. To first order in the change it is
    the covariance with the parameter, to which all draws count, and which chance makes uncertain where the change is noisy.
    What the two differ by, beyond chance, is what the first order leaves out, and counts as an error of it.
    """
    slopes = z * (change - change.mean())[:, None]
    both = np.array([moved @ z, slopes.mean(axis=0)])
    errors = np.array([np.sqrt(moved**2 @ z**2), slopes.std(axis=0) / np.sqrt(len(z))])
    left_out = np.maximum((both[1] - both[0]) ** 2 - errors[0] ** 2, 0.0)
    errors[1] = np.sqrt(errors[1] ** 2 + left_out)
    better = np.argmin(errors, axis=0)[None]
    return np.take_along_axis(both, better, axis=0)[0], np.take_along_axis(errors, better, axis=0)[0]
