"""Paths of states and processes given a record, where the linearisation about the processes makes their bands wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pm_sysid.likelihood.filter_view import FilterView
from pm_sysid.posterior.particle_filter import Guide, Motion, ParticleFilter, Sets, drawn_paths
from pm_sysid.posterior.passes import Passes

#: Posterior draws at which paths are compared, and the paths of each: at first, and at most and at least in the end.
DRAWS, PATHS, MOST_PATHS, FEWEST_PATHS = 4, 8, 32, 4
#: Particles of the first round; each round has so many times more than the last. Most steps of particles in a round.
FIRST, MORE, MOST_STEPS = 64, 4, 2 * 10**7
#: Particles of a path, at least and at most.
LEAST_PARTICLES, MOST_PARTICLES = 128, 256
#: Standard error of the log-likelihood of so many samples that is small enough, and above which nothing is known. What a path
#: does is decided by the measurements near it: how uncertain the likelihood of a whole long record is has no bearing on it.
QUIET, UNKNOWN, NEAR = 0.5, 1.0, 64
#: How many times as large the mean square of the paths' distance from the linearised mean may be as it should be, over the
#: record and over a part of it, either way; and how many standard errors a deviation has to have, not to be chance.
TOLERATED, TOLERATED_PART, SURE, PARTS = 1.25, 1.6, 4.5, 8
#: A log-likelihood that is higher by this on average has seen what another estimate has missed.
SEEN = 0.1
#: Runge-Kutta steps in a sampling interval up to which particles can follow.
STIFF = 64
#: Most samples that particles follow for a comparison; of longer records the first ones, of which the first half is compared,
#: since what comes later has its say at the end.
LONG = 400
#: Half of the width of a 90 % band, in standard deviations.
BAND = 1.645
#: A standard deviation below this part of the largest over the record is that of a state that is known; and so is one of
#: which paths have less than that part: it is the error of integration alone.
NO_SPREAD, INTEGRATION = 1e-6, 0.05
#: Posterior draws whose particles are prepared together.
TOGETHER = 64


class Judged(NamedTuple):
    """What the linearisation does to bands of states and processes.

    Paths are to be drawn by so many ``particles``, led or not, with so many ``substeps``; zero where the linearised ones are as
    good. ``said`` is what was found, in words, and a ``problem`` where that could not be told.
    """

    particles: int
    led: bool
    substeps: int
    said: str
    problem: bool = False


class Paths(NamedTuple):
    """Paths (D, M, T, n) of states and processes at D draws, and the standard error of the log-likelihood near a sample."""

    z: np.ndarray
    log_likelihood: np.ndarray

    @property
    def noise(self) -> float:
        """Standard error of an estimate of the log-likelihood."""
        return float(np.sqrt(np.mean(np.var(self.log_likelihood, axis=1, ddof=1))))


class Prepared(NamedTuple):
    """What moves the particles of each record at some draws, and what leads them, or None."""

    motions: Sequence[Motion]
    guided: Sequence[list[Guide] | None]

    def drawn(self, particles: int, rngs: Sequence[np.random.Generator], which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Paths (N, T, n) through all records at draws ``which`` (N,), and log-likelihoods (N,)."""
        with np.errstate(all="ignore"):
            pairs = zip(self.motions, self.guided, strict=True)
            each = [drawn_paths(motion, guide, which, particles, rngs) for motion, guide in pairs]
        return np.concatenate([z for z, _ in each], axis=1), np.sum([total for _, total in each], axis=0)

    def paths(self, draws: int, particles: int, count: int) -> Paths | None:
        """So many paths at each of the draws, the same for every caller; None where no particle explains a record."""
        rngs = [np.random.default_rng(s) for s in np.random.SeedSequence(0).spawn(draws * count)]
        z, total = self.drawn(particles, rngs, np.repeat(np.arange(draws), count))
        if not np.isfinite(total).all():
            return None
        return Paths(z.reshape(draws, count, *z.shape[1:]), total.reshape(draws, count))


class PathSampler:
    """Paths by particles at posterior draws.

    Parameters
    ----------
    view : FilterView
        A filter that linearises about processes.
    passes : Passes
        Its smoother.
    """

    def __init__(self, view: FilterView, passes: Passes) -> None:
        self.view, self.filters = view, ParticleFilter(view, passes)
        self.lengths = [len(record) for record in self.filters.records]

    def judged(self, points: Sequence[list[np.ndarray]]) -> Judged:
        """Compare linearised bands with paths by particles, at a few values of the free variables of the filter."""
        none = Judged(0, False, 0, "")
        if self.view.problem.form.free and self.view.system.relations:
            return none._replace(said="not compared: the uncertain initial state is tied by relations of the system.")
        sets = self.filters.own_sets(points)
        finite = np.isfinite(sets.smoothed).all(axis=(1, 2)) & np.isfinite(sets.smoothed_std).all(axis=(1, 2))
        sets = Sets._make(part[finite] for part in sets)
        if not finite.any():
            return none._replace(said="not compared: the filter has no finite states.")
        substeps = self.filters.substeps(sets)
        if substeps > STIFF:
            return none._replace(said=f"not compared: particles would take {substeps} steps in a sampling interval.")
        share = min(1.0, LONG / sum(self.lengths))
        lengths = [max(1, round(share * n)) for n in self.lengths]
        cost = substeps * sum(lengths) * len(sets.params)  # of a particle of a path at each draw
        prepared = {led: self._prepared(sets, led, substeps, lengths) for led in (True, False)}

        def paths(led: bool, particles: int, most: int = PATHS) -> Paths | None:
            count = int(np.clip(MOST_STEPS // (cost * particles), FEWEST_PATHS, most))
            ready = prepared[led]
            return None if ready is None else ready.paths(len(sets.params), particles, count)

        def near(found: Paths) -> float:
            return found.noise * float(np.sqrt(min(1.0, NEAR / sum(lengths))))

        particles = FIRST
        more = MORE * FIRST if MORE * FIRST * cost * FEWEST_PATHS <= MOST_STEPS else FIRST
        led, free = paths(True, particles), paths(False, more)
        way = led is not None and (free is None or not better(free, led))
        found, particles = (led, particles) if way else (free, more)
        while found is not None and near(found) > QUIET and MORE * particles * cost * FEWEST_PATHS <= MOST_STEPS:
            particles *= MORE
            found = paths(way, particles)
        if found is None or near(found) > UNKNOWN:
            said = (
                "whether that makes the bands of its states wrong could not be measured, since too few particles follow the "
                "record. Look at a shorter part of it."
            )
            return none._replace(said=said, problem=True)
        found = paths(way, particles, MOST_PATHS) or found
        compared = [n if share >= 1 else max(1, n // 2) for n in lengths]
        z = found.z[:, :, _first(lengths, compared)]
        mean, std = (v[:, _first(self.lengths, compared)] for v in (sets.smoothed, sets.smoothed_std))
        part = "" if share >= 1 else f" (compared at the first {sum(compared)} samples)"
        ratio, wrong = deviation(z, mean, std)
        if not wrong:
            return none._replace(said=f"linearised: paths by particles lie in the same bands{part}.")
        distance = np.abs(scaled(z, mean, std))
        inside = 100 * float(np.nanmean(np.where(np.isnan(distance), np.nan, distance < BAND)))
        size = f"{'only ' if ratio < 1 else 'up to '}{np.sqrt(ratio):.2g} times as far from its mean as it says"
        said = f"its 90 % bands hold {inside:.0f} % of the states by particles, and parts of the record are {size}{part}"
        return Judged(int(np.clip(particles, LEAST_PARTICLES, MOST_PARTICLES)), way, substeps, said)

    def _prepared(self, sets: Sets, led: bool, substeps: int, lengths: Sequence[int] | None = None) -> Prepared | None:
        """What moves particles, and leads them if it can: None where the linearisation cannot."""
        motions = self.filters.motions(sets, substeps, lengths or self.lengths)
        guided: Sequence[list[Guide] | None] = self.filters.guides(motions, sets) if led else [None] * len(motions)
        return None if led and any(guide is None for guide in guided) else Prepared(motions, guided)

    def at(
        self, points: Sequence[list[np.ndarray]], judged: Judged, rngs: Sequence[np.random.Generator]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Parameters of the system and a path (T, n) at each point; NaN where none could be drawn."""
        found: list[tuple[np.ndarray, np.ndarray]] = []
        for first in range(0, len(points), TOGETHER):
            found += self._together(points[first : first + TOGETHER], judged, rngs[first : first + TOGETHER])
        return found

    def _together(
        self, points: Sequence[list[np.ndarray]], judged: Judged, rngs: Sequence[np.random.Generator]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        sets = self.filters.own_sets(points)
        paths = np.full(sets.smoothed.shape, np.nan)
        kept = np.flatnonzero(np.isfinite(sets.smoothed).all(axis=(1, 2))).tolist()
        if kept:
            few, own = Sets._make(part[kept] for part in sets), [rngs[k] for k in kept]
            ready = self._prepared(few, judged.led, judged.substeps)
            if ready is None and len(points) > 1:  # each by itself: some of them the linearisation cannot lead
                return [one for k in range(len(points)) for one in self._together(points[k : k + 1], judged, rngs[k : k + 1])]
            ready = ready or self._prepared(few, False, judged.substeps)
            assert ready is not None  # nothing leads
            paths[kept] = ready.drawn(judged.particles, own, np.arange(len(kept)))[0]
        return list(zip(sets.params, paths, strict=True))


def _first(lengths: Sequence[int], some: Sequence[int]) -> np.ndarray:
    """Places of the first samples of each of several records that follow each other."""
    starts = np.cumsum([0, *lengths[:-1]])
    return np.concatenate([start + np.arange(n) for start, n in zip(starts, some, strict=True)])


def better(free: Paths, led: Paths) -> bool:
    """Whether particles that nothing leads have seen what those have missed that the linearisation leads, or are less noisy.

    Estimates of a likelihood are right on average, and their logarithms too low by half of their variance; beyond that, the
    lower ones have missed a part of what may have happened.
    """
    if free.noise < led.noise:
        return True
    gain = float(np.mean(free.log_likelihood) - np.mean(led.log_likelihood))
    variances = [float(np.mean(np.var(one.log_likelihood, axis=1, ddof=1))) for one in (free, led)]
    chance = 3 * np.sqrt(sum(v / one.log_likelihood.size for v, one in zip(variances, (free, led), strict=True)))
    missed = gain + (variances[0] - variances[1]) / 2 if free.noise < UNKNOWN else gain
    return missed > max(SEEN, float(chance))


def scaled(z: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Distances of paths (D, M, T, n) from means (D, T, n), in standard deviations; NaN where there is no spread."""
    known = std > NO_SPREAD * std.max(axis=1, keepdims=True)
    known &= np.any(known & (z.std(axis=1) > INTEGRATION * std), axis=1, keepdims=True)
    distance: np.ndarray = (z - mean[:, None]) / np.where(known, std, np.nan)[:, None]
    return distance


def deviation(z: np.ndarray, mean: np.ndarray, std: np.ndarray) -> tuple[float, bool]:
    """Mean square of the paths' distances from the mean where it is worst, and whether bands are wrong by no chance.

    The mean square is one where paths are as far from the mean as their standard deviation says: each path counts as one
    observation of it, for each state and process, over the record and over parts of it.
    """
    squares = scaled(z, mean, std) ** 2
    squares = squares.reshape(-1, *squares.shape[2:])
    worst, wrong = 1.0, False
    for parts, tolerated in ((1, TOLERATED), (PARTS, TOLERATED_PART)):
        for part in np.array_split(squares, min(parts, squares.shape[1]), axis=1):
            known = np.isfinite(part).any(axis=(0, 1))
            each = np.nanmean(part[..., known], axis=1)
            middle, error = each.mean(axis=0), each.std(axis=0, ddof=1) / np.sqrt(len(each))
            off = np.maximum(middle, 1 / np.maximum(middle, 1e-300)) > tolerated
            sure = np.abs(middle - 1) > SURE * np.maximum(error, 1e-300)
            if (off & sure).any():
                wrong = True
                candidates = middle[off & sure]
                value = float(candidates[np.argmax(np.abs(np.log(candidates)))])
                worst = value if abs(np.log(value)) > abs(np.log(worst)) else worst
    return worst, wrong
