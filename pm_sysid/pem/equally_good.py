"""Unknowns whose outputs are those of an optimum, as far as the noise tells: looked for without noise, a few samples first."""

from __future__ import annotations

import numpy as np

from pm_sysid.pem.filters import KalmanFilter, Motion, Want
from pm_sysid.pem.objective import Evaluation, Layout, Objective, SquaredErrors
from pm_sysid.pem.side_by_side import Coordinates, explore
from pm_sysid.pem.unseen import sizes
from pm_sysid.progress import doing

#: Turning points of the fastest output in the first samples; the longer the run, the more optima its errors have.
TURNS = (2, 8, 32)
#: Fewest samples, over unknowns.
FEWEST = 3
#: An optimum this much less likely, in log-likelihood, is as good as the best: exp(-8) is 1 in 3000.
AS_GOOD = 8.0
#: Mean squared errors that are none where there is no noise, over the variance of the outputs.
NONE = 1e-8
#: Ends are one where all unknowns are the same but for this share; and how many others go on to more samples.
NEAR, GO_ON = 1e-3, 8
#: Samples in all that searches begin with, over which fewer of them begin: slow solutions turn late.
SAMPLES = 100_000


class Noiseless(SquaredErrors):
    """Squared errors of a free run by whatever its filter gives."""

    def __init__(self, filter: KalmanFilter, layout: Layout, want: Want) -> None:
        super().__init__(filter, layout)
        self.want = want

    def of(self, values: np.ndarray, rates: np.ndarray) -> Evaluation:
        """See :class:`Objective`."""
        m = self.measured.shape[1]
        return super().of(values[..., :m], rates[..., :m])


def free_run(objective: Objective) -> bool:
    """Whether predictions are those of a free run."""
    return isinstance(objective.filter, KalmanFilter) and objective.filter.form.certain


def equally_good(
    objective: Objective, x: np.ndarray, starts: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> tuple[np.ndarray, int]:
    """Other unknowns (E, k) with the outputs of those at ``x``, found from ``starts`` (S, k); and evaluations.

    For predictions by a free run.

    Notes
    -----
    A model may have two solutions that no record of its inputs and outputs tells apart, such as a chain of masses that is
    pushed at one and measured at another. The second fits exactly as well, but where the run is long its optimum is so narrow
    that starts at random miss it. Without noise a few samples tell as much as all do, and their errors have few optima: the
    searches begin with these, and go on to more from what fits them.
    """
    filter, layout = objective.filter, objective.layout
    found = np.empty((0, x.size))
    assert isinstance(filter, KalmanFilter) and free_run(objective)
    params, x0 = layout.place(x)
    m, rest, own = len(filter.system.outputs), ~layout.positive, layout.without_noise(params, x0)
    y = np.concatenate([r.output_matrix for r in filter.records])
    with np.errstate(all="ignore"):
        errors = filter.run(params, x0, Motion.none(params.size, x0), objective.want)[0][:, :m]
    seen = objective.measured.any(axis=0)
    spread = float(np.nanvar(y[:, seen], axis=0).sum())
    errors = np.where(objective.measured, errors, 0.0)
    noise = float(np.sum(errors**2) / objective.count)
    runs = np.split(y - errors, np.cumsum([len(r) for r in filter.records])[:-1])
    lengths, evaluated = _lengths(runs, FEWEST * int(rest.sum())), 0
    points = starts[: max(GO_ON, SAMPLES // lengths[0])]
    for length in lengths:
        doing(f"equally good fits ({length} samples)")
        records = [r[: len(o[:length])].replace(y=o[:length]) for r, o in zip(filter.records, runs, strict=True)]
        roots = np.zeros((len(records), len(filter.system.states), len(filter.system.states)))
        short = KalmanFilter(filter.system, filter.form, records, filter.substeps, roots, filter.interval)
        target = Noiseless(short, own, objective.want)
        ends, n = explore(Coordinates(target, lower[rest], upper[rest], spread), points[:, rest], lambda _, __: False)
        evaluated += n
        limit = max(NONE * spread, 2 * AS_GOOD * noise / target.count)
        good = sorted((e for e in ends if e.evaluation.value < limit), key=lambda e: e.evaluation.value)
        others = _distinct([x[rest], *(e.x for e in good)])[1:][:GO_ON]
        points = np.tile(x, (len(others), 1))
        if not others:
            break
        points[:, rest] = others
        found = points if length == lengths[-1] else found
    return found, evaluated


def _distinct(points: list[np.ndarray]) -> list[np.ndarray]:
    """Those that are not near an earlier one."""
    found: list[np.ndarray] = []
    for x in points:
        if not any(np.all(np.abs(x - other) <= NEAR * sizes(other)) for other in found):
            found.append(x)
    return found


def _lengths(runs: list[np.ndarray], fewest: int) -> list[int]:
    """Numbers of first samples of each record within which some output turns often enough, and enough is measured."""
    longest = max(len(r) for r in runs)
    turned, measured = np.zeros(longest), np.zeros(longest)
    for run in runs:
        slopes = np.diff(np.where(np.isnan(run), 0.0, run), axis=0)
        turns = np.cumsum(slopes[1:] * slopes[:-1] < 0, axis=0).max(axis=1, initial=0)
        turned[: len(run)] = np.maximum(turned[: len(run)], np.concatenate([[0.0, 0.0], turns])[: len(run)])
        measured[: len(run)] += np.cumsum(~np.isnan(run).all(axis=1))
    enough = int(np.searchsorted(np.maximum.accumulate(measured), fewest)) + 1
    turned = np.maximum.accumulate(turned)
    return sorted({min(max(int(np.searchsorted(turned, n)) + 1, enough), longest) for n in TURNS})
