"""Modes of a posterior from many starts: which draws of the prior to climb from, and which of the ends are one mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from pm_sysid.likelihood.circular import same_turn
from pm_sysid.likelihood.descent import STEPS, Batch, Descent, descend, in_units, newton, units

#: Points whose distances to all others are computed at once.
AT_ONCE = 256
#: Starts differ by this root mean square of their coordinates, in prior standard deviations.
APART = 0.3
#: A draw is a summit if it lies above this many nearest neighbours.
NEIGHBOURS = 10
#: Ends whose squared Mahalanobis distance to a mode is below this are that mode.
SAME = 1.0
#: Ends of searches that ran out of evaluations are taken for a mode within this squared distance.
NEAR = 4.0
#: Ends this much lower in log density than another, and by a factor of this width in each unknown more, hold nothing of the
#: posterior.
LOWER, NARROWER = 20.0, 100.0
#: Shares of the posterior that matter, and by how many nats one may differ between few and many steps.
SHARE, OTHER = 1e-3, 0.3
#: By how many nats the place of a mode is less likely with many steps if these have not that mode.
LOST = 1.0
#: Most evaluations of a search before Newton's method.
ROUNDS = 300
#: Least steps of Newton's method where others have not arrived.
FEW_STEPS = 15
#: Evaluations in each stage of tempering.
STAGE = 60
#: Diffusions of the stages, in units of what the equations say at the starts. From a hundred times as much on,
#: searches forget where they started and end together, rightly or wrongly; with these each remains a chance of its own.
STAGES = (1.0, 0.1, 0.01)


@dataclass(frozen=True, eq=False)
class Peak:
    """An end of searches: negative log posterior, inverse Hessian, whether it is a maximum, and how many searches led there.

    ``circular`` says which coordinates (d,) are angles.
    """

    point: np.ndarray
    covariance: np.ndarray
    value: float
    converged: bool
    searches: int = 1
    circular: np.ndarray | bool = False

    @property
    def log_evidence(self) -> float:
        """Laplace approximation; not a number where there is no maximum."""
        if not self.converged:
            return float("nan")
        _, volume = np.linalg.slogdet(self.covariance)
        return float(-self.value + 0.5 * (self.point.size * np.log(2 * np.pi) + volume))

    def distance(self, points: np.ndarray) -> np.ndarray:
        """Squared Mahalanobis distances (B,) of points (B, d), or of the nearest of their copies in other turns of angles."""
        away = same_turn(points, self.point, self.circular) - self.point
        result: np.ndarray = np.sum(away * np.linalg.solve(self.covariance, away.T).T, axis=1)
        return result


class Tracked:
    """A function that remembers its best point, counts evaluations (for another one, too), and says what it has reached."""

    def __init__(self, batch: Batch, say: Callable[[str], None], other: Tracked | None = None) -> None:
        self.batch, self.say, self.other = batch, say, other
        self.best: np.ndarray | None = None
        self.lowest, self.evaluations = np.inf, 0

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values and gradients."""
        values, gradients = self.batch(points)
        self.saw(points, values)
        return values, gradients

    def saw(self, points: np.ndarray, values: np.ndarray) -> None:
        """Take note of values."""
        self.evaluations += len(points)
        if self.other is not None:
            self.other.evaluations += len(points)
        i = int(np.argmin(values))
        if values[i] < self.lowest:
            self.lowest, self.best = float(values[i]), np.array(points[i])
        self.say(f"{self.evaluations} evaluations, log posterior {-self.lowest:.6g}")


def distinct(points: np.ndarray, values: np.ndarray, scale: np.ndarray, taken: Sequence[int]) -> Iterator[int]:
    """Rows of ``points`` to search from, most promising first, each apart from those before it and from the rows ``taken``."""
    picked = points[list(taken)]
    for i in promising(points, values, scale):
        if np.all(np.sqrt(np.mean(((picked - points[i]) / scale) ** 2, axis=1)) > APART):
            picked = np.concatenate([picked, points[i][None]])
            yield int(i)


def promising(points: np.ndarray, values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Rows of finite value: the lowest, the lowest summit, the next of either, and so on.

    The best draws may all lie on one broad hill. A draw on the slope of a narrow one, however high that is, is known by being
    better than the draws around it.

    Source: Rinnooy Kan and Timmer, Stochastic global optimization methods II (Mathematical Programming 39, 1987), whose
    searches begin at points that have no better one near them.
    """
    best = np.argsort(values, kind="stable")[: np.isfinite(values).sum()]
    high = best[np.isin(best, summits(points, values, scale))]
    turns = np.full((len(best), 2), -1)
    turns[:, 0] = best
    turns[: len(high), 1] = high
    rows = turns[turns >= 0]
    _, first = np.unique(rows, return_index=True)
    return np.asarray(rows[np.sort(first)])


def summits(points: np.ndarray, values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Rows of finite value whose nearest neighbours all have higher values (lower densities)."""
    if len(points) <= NEIGHBOURS:
        return np.empty(0, dtype=int)
    scaled = points / scale
    _, near = scipy.spatial.KDTree(scaled).query(scaled, NEIGHBOURS + 1)
    return np.flatnonzero(np.isfinite(values) & (values < np.min(values[near[:, 1:]], axis=1)))


def far_from_better(points: np.ndarray, values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Rows of finite value, by how many points are nearer than the nearest one that is better; those of most, the best, first.

    The best point of all is followed by the best ones of other basins, however bad these are, down to basins that about ten
    points are in: so many are nearer by chance. A number of points, in the place of a distance, is the same where draws are
    dense and in the tails where they are not.
    """
    z, nearer = points / scale, np.zeros(len(points), dtype=int)
    for i in range(0, len(points), AT_ONCE):  # all distances of many thousand points would take gigabytes
        some = slice(i, i + AT_ONCE)
        away = scipy.spatial.distance.cdist(z[some], z)
        nearest = np.min(np.where(values < values[some, None], away, np.inf), axis=1)
        nearer[some] = np.sum(away < nearest[:, None], axis=1)
    rows = np.flatnonzero(np.isfinite(values))
    return np.asarray(rows[np.argsort(-nearer[rows], kind="stable")])


def climb_all(
    batch: Batch,
    starts: np.ndarray,
    scale: np.ndarray,
    peaks: list[Peak],
    circular: np.ndarray | bool = False,
    near: Descent | None = None,
) -> list[Peak]:
    """Search from each start, and add the ends to the peaks that are known; best evidence first.

    Of coordinates that are angles (``circular``), a mode is found again in every turn: it counts once, between -pi and pi.
    Searches that have come ``near`` to a mode already are polished alone.
    """
    found = [descend(batch, starts, scale, ROUNDS)] if len(starts) else []
    found += [] if near is None else [near]
    ends = Descent(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
    peaks = list(peaks)
    worth = worth_polishing(ends, [p.value for p in peaks if p.converged])
    patience = STEPS
    for k in np.argsort(ends.value, kind="stable"):
        if not worth[k]:
            continue
        limit = SAME if ends.settled[k] and k < len(starts) else NEAR
        if _merged(peaks, ends.x[k], limit):
            continue
        unit = units(scale, ends.x[k])
        point, covariance, converged = newton(in_units(batch, unit), ends.x[k] / unit, patience)
        point, covariance = point * unit, covariance * np.outer(unit, unit)
        # In a bent valley whose width is near rounding, all searches creep along and none arrives.
        patience = STEPS if converged else max(patience // 2, FEW_STEPS)
        point = same_turn(point, np.zeros(point.size), circular)
        if not converged or not _merged(peaks, point, SAME):
            peaks.append(Peak(point, covariance, float(batch(point[None])[0][0]), converged, circular=circular))
    return ranked(peaks)


def hopeless(unknowns: int) -> float:
    """By how much the log density of an end may be lower than that of another, and hold a part of the posterior."""
    return float(LOWER + np.log(NARROWER) * unknowns)


def worth_polishing(ends: Descent, maxima: Sequence[float]) -> np.ndarray:
    """Which ends (B,) may hold a part of the posterior beside the best one, or beside the best that is settled or a maximum.

    The best of all may be no maximum: a density that rises without end, towards an edge or towards no noise.
    """
    tolerance = hopeless(ends.x.shape[1])
    best = np.min(ends.value, initial=np.inf)
    certain = min([*ends.value[ends.settled], *maxima], default=np.inf)
    near = (ends.value <= best + tolerance) | (ends.settled & (ends.value <= certain + tolerance))
    return np.asarray(np.isfinite(ends.value) & near)


def _merged(peaks: list[Peak], point: np.ndarray, limit: float) -> bool:
    """Count a search for the peak that a point is close to, if there is one."""
    for i, peak in enumerate(peaks):
        if peak.converged and peak.distance(point[None])[0] < limit:
            peaks[i] = replace(peak, searches=peak.searches + 1)
            return True
    return False


def ranked(peaks: list[Peak]) -> list[Peak]:
    """Maxima by their evidence, then ends that are none by their density."""
    return sorted(peaks, key=lambda p: (not p.converged, -p.log_evidence if p.converged else p.value))


def other_shares(peaks: Sequence[Peak], others: Sequence[Peak]) -> bool:
    """Whether a share of the posterior that matters differs between modes and the same modes by another likelihood.

    Each of the others is compared with the largest of those that are nearer to it than to the rest.
    """
    first, second = ([p for p in found if np.isfinite(p.log_evidence)] for found in (peaks, others))
    if not first or not second:
        return bool(first) != bool(second)
    before, after = (scipy.special.log_softmax([p.log_evidence for p in found]) for found in (first, second))
    nearest = np.array([np.argmin([q.distance(p.point[None])[0] for q in second]) for p in first])
    for k, share in enumerate(after):
        was = np.max(before[nearest == k], initial=-np.inf)
        if max(was, share) > np.log(SHARE) and abs(was - share) > OTHER:
            return True
    return False


def made_up(peaks: Sequence[Peak], others: Sequence[Peak], values: np.ndarray) -> bool:
    """Whether one of the modes, with a share of the posterior that matters, is none by another likelihood.

    From there one then climbs to a mode that is another's already, and its place itself is less likely: ``values`` (modes,) are
    the log posteriors of the other likelihood at ``peaks``.
    """
    first = [k for k, p in enumerate(peaks) if np.isfinite(p.log_evidence)]
    second = [p for p in others if np.isfinite(p.log_evidence)]
    if not first or not second:
        return False
    share = scipy.special.softmax([peaks[k].log_evidence for k in first])
    lost = np.array([-peaks[k].value - values[k] for k in first])
    nearest = np.array([np.argmin([q.distance(peaks[k].point[None])[0] for q in second]) for k in first])
    for k in range(len(second)):
        here = np.flatnonzero(nearest == k)
        kept = here[np.argmax(share[here])] if here.size else 0
        if any(i != kept and share[i] > SHARE and not lost[i] - lost[kept] < LOST for i in here):
            return True
    return False


def tempered(loosened: Callable[[float], Batch], starts: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Starts moved by searches in which filters follow the record loosely at first, then less and less.

    Source: Beck et al., Diffusion Tempering Improves Parameter Estimation with Probabilistic Integrators for Ordinary
    Differential Equations (ICML 2024).
    """
    for stage in STAGES:
        starts = descend(loosened(stage), starts, scale, STAGE).x
    return starts
