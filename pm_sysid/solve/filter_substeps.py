"""How many steps a filter needs, judged by the log-likelihood where the record can be explained."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import cycle
from typing import Any, NamedTuple, override

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph import ancestors

from pm_sysid.progress import announced
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.functions import compiled
from pm_sysid.solve.consistent_start import consistent_points
from pm_sysid.solve.driven_runs import coloured_noise, driven_runs
from pm_sysid.solve.explaining import explaining_points
from pm_sysid.solve.filter_graph import Problem, RecordData, Unknowns
from pm_sysid.solve.passed_over import RunsBeside, dense_run, runs_beside, said, some
from pm_sysid.solve.run_substeps import MOST_GRADED, STIFF, needed_steps, uneven
from pm_sysid.solve.stiffness import pilot_grid
from pm_sysid.solve.substeps import (
    FOR_EACH,
    MOST,
    Criterion,
    StepChoice,
    counted,
    cut,
    evaluate_at_initial_point,
    given_steps,
    in_words,
    named,
    say_chosen,
    searched_substeps,
    settled_substeps,
    warn,
)
from pm_sysid.steps.grid import StepGrid
from pm_sysid.steps.integrate import Method, method_inputs, run_batch

#: A log-likelihood may move by this much when the substeps are doubled.
LOGLIK_TOLERANCE = 0.1
#: Order of the differences in which noise stands out from a signal, and how many of them tell its level.
DIFFERENCE, FEWEST = 4, 20
#: Samples of a record that a log-likelihood is computed for while steps are searched; what it moves by is extrapolated to all.
MOST_SAMPLES = 20_000
#: Draws of the prior whose free runs are compared with the record, their steps a sample, and by how many samples.
DRAWS, RUN_STEPS, RANKED_SAMPLES = 512, 8, 2_000
#: The draws that come nearest to the record, at which the steps are judged: at least two, fewer for long records.
NEAREST = 8
#: Other points that explain the record, at most, at which the log-likelihood may move by so much: more is a cliff.
PASSED, CLIFF = 16, 1.0
#: Draws explain a record as well as the nearest one if their log-likelihood is lower by at most this.
AS_WELL = 2.0
#: Draws that explicit runs have lost, of which the fastest decays are looked at.
LOOKED_AT = 4
#: Times that a record moves more than half of these runs, and than 95 % of them, from which on it is said; a run that moves
#: less than this share of the record stands still.
FAR_FROM_HALF, FAR_FROM_MOST, STILL = 20.0, 7.0, 1e-8
#: A number that is chosen has to do for the first share of them, one that was asked for for the second: they are near the
#: posterior, not in it, and a warning needs more evidence than one more doubling.
SHARE, ASKED = 0.75, 0.5
#: Equal steps a sample from which on a stiff system takes steps that follow its solution, if these will do.
MANY = 8
#: Implicit steps of test records for each of an adaptive solver, and points whose solutions such steps follow.
FINE, FOLLOWED = 8, 4
#: Fewest filter steps for each of an adaptive solver: with fewer, the gradient may be wrong where the value is right.
LEAST = 4
#: Share by which a slope may change when steps that follow a solution are doubled; relative changes of the parameters that
#: tell it, far smaller than any posterior: where the steps on a front are too long, the value is right but for ripples whose
#: height nobody would notice, and the gradient is that of the ripples.
SLOPE_TOLERANCE, SLOPE_STEP = 0.01, 1e-8

#: Posterior standard deviations between a point and the solution that its displaced test record comes from, and the share of
#: the way to another point that tells in which direction.
BESIDE, SMALL_WAY = 2.0, 1e-4

#: What is said where a filter has no likelihood for a record that a solution has made.
LOST = " The filter does not get through where a simulation does; order one may (solver=EK1(order=1))."

_log = logging.getLogger("pm_sysid")


@lru_cache(maxsize=32)
def loglik_function(problem: Problem, own: bool) -> Callable[..., Any]:
    """The log-likelihood of measurements (T, n_y), unknowns and record arrays, which serves every number of substeps."""
    unknowns = Unknowns.symbolic(own)
    data, measured = RecordData.symbolic(), pt.dmatrix("y")
    loglik, _ = problem.run(measured, unknowns, data)
    function: Callable[..., Any] = announced(
        "log-likelihood by number of steps", lambda: compiled([measured, *unknowns, *data], pt.sum(loglik))
    )
    return function


@dataclass(frozen=True)
class LogLikelihoodCriterion(Criterion):
    """Log-likelihoods of records at some points: unknowns and measurements (T, n_y) for each, ``where`` in words.

    The change is that of all samples, which ``share`` of the points stay below; ``scale`` samples stand for each that is
    computed. ``solved`` says that each record comes from an accurate solution at its point, through which a filter has to get.
    ``beside`` are measurements from beside the points, for which each counts as well: where a record comes from the very point,
    a predictive variance that is too large by a share e costs e^2 / 4 a sample and goes unseen, and the posterior is too wide.
    """

    problem: Problem
    records: Sequence[TimeSeries]
    at: Sequence[Unknowns]
    y: Sequence[np.ndarray]
    where: str
    share: float
    scale: float = 1.0
    who: str = ""
    grids: Sequence[StepGrid] | None = None
    known: int | None = None
    solved: bool = False
    beside: Sequence[np.ndarray] = ()
    steps, otherwise, tolerance = "filter steps", MOST, LOGLIK_TOLERANCE

    @property
    def per(self) -> str:  # type: ignore[override]
        """What they are counted by."""
        return "a sample" if self.grids is None else FOR_EACH

    def value(self, substeps: int) -> np.ndarray:
        """Log-likelihoods of the points, then those of the measurements from beside them."""
        function, data = (
            loglik_function(self.problem, self.at[0].own),
            self.problem.data(self.records, cut(self.grids, substeps)),
        )
        unknowns = [[np.asarray(v, float) for v in at] for at in self.at]
        return np.array([float(function(y, *u, *data)) for y, u in zip([*self.y, *self.beside], cycle(unknowns))])

    def change(self, coarse: np.ndarray, fine: np.ndarray) -> float:
        """Quantile of the absolute differences; a point that cannot be solved either way says nothing, unless it is solved.

        Such a part of the prior would be ruled out by the filter alone.
        """
        known = np.isfinite(coarse) | np.isfinite(fine) | self.solved
        if not known.any():
            return np.inf
        with np.errstate(all="ignore"):
            change = np.nan_to_num(np.where(known, np.abs(fine - coarse), 0.0), nan=np.inf, posinf=np.inf)
        told = known.reshape(-1, len(self.at)).any(axis=0)
        worst = change.reshape(-1, len(self.at)).max(axis=0)[told]
        return self.scale * float(np.quantile(worst, self.share, method="higher"))

    @override
    def unseen(self, finest: int) -> float:
        return self._moved(self._beside(finest))

    def _beside(self, finest: int, doubled: bool = True) -> list[RunsBeside | None]:
        """For each record free runs at some points by such steps, beside runs that are dense where these miss something."""
        found, at = [], [self.at[i] for i in some(len(self.at))]
        for r, record in enumerate(self.records):
            start = np.array([u.x0[r] for u in at], dtype=float)
            grid = None if self.grids is None else self.grids[r]
            method: Method = "rk4" if grid is None else "implicit"
            found.append(runs_beside(self.problem.system, record, parameter_sets(at, r), start, finest, grid, method, doubled))
        return found

    def _moved(self, beside: Sequence[RunsBeside | None]) -> float:
        """By how much a log-likelihood moves if its runs move from the ones to the others, in nats.

        The residuals of a right run are as large as the noise: what they have in common with the difference counts, and the
        square of that.
        """
        places, ends = some(len(self.at)), np.cumsum([0, *map(len, self.records)])
        at = [self.at[i] for i in places]
        squares = np.zeros(len(at))
        for r, runs in enumerate(beside):
            if runs is not None:
                there = ~np.isnan(np.stack([self.y[i][ends[r] : ends[r + 1]] for i in places]))
                n_y = there.shape[2]
                noise = np.array([u.noise_of(r)[:n_y] for u in at], dtype=float)[:, None]
                clipped = self.problem.form.sensors.clipped
                with np.errstate(all="ignore"):
                    apart = (clipped(runs.steps[:, :, :n_y]) - clipped(runs.dense[:, :, :n_y])) / noise
                squares += np.sum(np.where(there & np.isfinite(apart), apart, 0.0) ** 2, axis=(1, 2))
        moved = np.sqrt(squares) + squares / 2
        return self.scale * float(np.quantile(moved, self.share, method="higher"))

    def event(self, substeps: int) -> str:
        """What a number of steps, and twice as many, pass over, in words; empty if that is nothing."""
        beside = self._beside(2 * substeps, doubled=False)
        found = [r for r in beside if r is not None]
        return "" if self._moved(beside) < self.tolerance else said(found[0].event)

    def slopes(self, substeps: int) -> np.ndarray:
        """Derivatives of the log-likelihoods by the logarithms of the parameters, in one direction, by minute differences."""
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=np.shape(self.at[0].params))
        ends = []
        for step in (SLOPE_STEP, -SLOPE_STEP):
            at = [point._replace(params=np.asarray(point.params, float) * (1.0 + step * signs)) for point in self.at]
            ends.append(replace(self, at=at).value(substeps))
        with np.errstate(all="ignore"):
            return np.asarray((ends[0] - ends[1]) / (2 * SLOPE_STEP))

    def smooth(self, substeps: int) -> bool:
        """Whether slopes stay when the steps are doubled, at ``share`` of the points that have any."""
        coarse, fine = self.slopes(substeps), self.slopes(2 * substeps)
        known = np.isfinite(coarse) & np.isfinite(fine) & (fine != 0)
        if not known.any():
            return True
        change = np.abs(coarse - fine)[known] / np.abs(fine)[known]
        return bool(np.quantile(change, self.share, method="higher") <= SLOPE_TOLERANCE)

    @override
    def too_coarse(self, substeps: int, change: float) -> str:
        event = self.event(substeps)
        how = "doubled, or dense where the equations change" if event else "doubled"
        found = self.problem.calibrated or self.problem.form.dynamic
        own = "" if found else " A diffusion of your own that stands for process noise may be meant for this number of steps."
        return (
            f"{named(substeps, self.grids)}: {self.where} the log-likelihood moves by {in_words(change)} when the substeps are "
            f"{how} (more than {LOGLIK_TOLERANCE}); the posterior may be biased by integration error. "
            f"Use more substeps, a higher order, or substeps='auto'.{event}{own}"
        )

    @override
    def unsettled(self, change: float) -> str:
        return (
            f"substeps='auto': {self.where} the log-likelihood moves by {in_words(change)} even when {MOST} substeps are "
            f"doubled; using {MOST}. The priors may be far from the record (give initval=... to them), or the system is "
            f"stiff, chaotic or not smooth.{'' if math.isfinite(change) else LOST}{self.event(MOST // 2)}"
        )

    @override
    def reached(self, change: float) -> str:
        return f", judged {self.where}: the log-likelihood moves by {change:.2g} if they are refined"


def parameter_sets(at: Sequence[Unknowns], record: int) -> np.ndarray:
    """Parameters (N, P) of a record at points."""
    return np.array([u.params_of(record) for u in at], dtype=float).reshape(len(at), -1)


class DrawnRecords(NamedTuple):
    """Records with known parameters: points, and the measurements (T, n_y) for each.

    Attributes
    ----------
    at : list of Unknowns
        Points that have a solution.
    y : list of ndarray
        Accurate solutions there, and drawn noise.
    beside : list of ndarray
        The same with the solutions displaced.
    """

    at: list[Unknowns]
    y: list[np.ndarray]
    beside: list[np.ndarray]


def drawn_records(
    problem: Problem,
    records: Sequence[TimeSeries],
    at: Sequence[Unknowns],
    grids: Sequence[StepGrid] | None = None,
    seed: int = 0,
    run_steps: int = 2 * MOST,
    apart: float = BESIDE,
) -> DrawnRecords:
    """Draw records at points, with the inputs, times and gaps of ``records``.

    The solutions are by ``run_steps`` Runge-Kutta steps a sample, or on given grids by implicit ones; processes are drawn. They
    are displaced by ``apart`` standard deviations that the noise leaves of the parameters; not where there are processes or a
    diffusion of the user's, which make predictions uncertain by intent.
    """
    rng = np.random.default_rng(seed)
    outputs, displaced = _solutions(problem, records, at, grids, run_steps, rng)
    parts: list[list[np.ndarray]] = [[], []]
    scale = _deviations(displaced, records, at, apart) if problem.calibrated or problem.form.dynamic else np.zeros(len(at))
    for r, record in enumerate(records):
        n_y, length = outputs[r].shape[2], len(record)
        noise = np.array([u.noise_of(r)[:n_y] for u in at])[:, None] * rng.standard_normal((length, n_y))
        if problem.system.latents:
            noise = noise + coloured_noise(problem.system, record, parameter_sets(at, r), rng)
        with np.errstate(all="ignore"):
            moved = np.where(scale[:, None, None] > 0, scale[:, None, None] * displaced[r], 0.0)
        for part, solution in zip(parts, (outputs[r], outputs[r] + moved), strict=True):
            part.append(np.where(np.isnan(record.output_matrix), np.nan, problem.form.sensors.clipped(solution + noise)))
    missing = np.isnan(np.concatenate([r.output_matrix for r in records]))
    drawn = zip(at, *(np.concatenate(part, axis=1) for part in parts), strict=True)
    solved = [(u, y, beside) for u, y, beside in drawn if np.all(np.isfinite(y) | missing)]
    return DrawnRecords(*map(list, zip(*solved, strict=True))) if solved else DrawnRecords([], [], [])


def _solutions(
    problem: Problem,
    records: Sequence[TimeSeries],
    at: Sequence[Unknowns],
    grids: Sequence[StepGrid] | None,
    run_steps: int,
    rng: np.random.Generator,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Accurate outputs (N, T, n_y) of each record at points, and by how much they differ a small way towards another point."""
    n_y, towards = len(problem.system.g), _towards(at)
    outputs, displaced = [], []
    for r, record in enumerate(records):
        theta, start = parameter_sets(at, r), np.array([u.x0[r] for u in at], dtype=float)
        if problem.system.driving:  # the paths of both would have to be the same
            outputs.append(driven_runs(problem.system, record, theta, start, MOST // 2, rng).values[:, :, :n_y])
            displaced.append(np.zeros_like(outputs[r]))
            continue
        thetas = np.concatenate([theta, parameter_sets(towards, r)])
        starts = np.concatenate([start, np.array([u.x0[r] for u in towards], dtype=float)])
        if grids is None:
            runs = dense_run(problem.system, record, thetas, starts, run_steps)[:, :, :n_y]
        else:
            inputs = method_inputs(record, grids[r].refined(FINE), "implicit")
            runs = run_batch(problem.system, thetas, starts, inputs, method="implicit")[:, :, :n_y]
        outputs.append(runs[: len(at)])
        with np.errstate(all="ignore"):
            displaced.append(runs[len(at) :] - runs[: len(at)])
    return outputs, displaced


def _towards(at: Sequence[Unknowns]) -> list[Unknowns]:
    """Points a small way from each of some points towards the next; a single point has its parameters moved by small shares."""
    following = [at[(i + 1) % len(at)] for i in range(len(at))]
    if len(at) == 1:
        params = np.asarray(at[0].params, float)
        following = [at[0]._replace(params=params * (1 + np.random.default_rng(0).choice([-1.0, 1.0], size=params.shape)))]

    def between(one: Any, other: Any) -> np.ndarray:
        return np.asarray(one, float) + SMALL_WAY * (np.asarray(other, float) - np.asarray(one, float))

    return [
        one._replace(params=between(one.params, other.params), x0=between(one.x0, other.x0))
        for one, other in zip(at, following, strict=True)
    ]


def _deviations(
    displaced: Sequence[np.ndarray], records: Sequence[TimeSeries], at: Sequence[Unknowns], apart: float
) -> np.ndarray:
    """What differences (N, T, n_y) of solutions are multiplied by so that ``apart`` posterior deviations lie between them.

    Zero where a solution is lost, or does not depend on what differs.
    """
    squares = np.zeros(len(at))
    for r, (part, record) in enumerate(zip(displaced, records, strict=True)):
        noise = np.array([u.noise_of(r)[: part.shape[2]] for u in at], dtype=float)[:, None]
        with np.errstate(all="ignore"):
            squares += np.sum(np.where(np.isnan(record.output_matrix), 0.0, (part / noise) ** 2), axis=(1, 2))
    with np.errstate(all="ignore"):
        scale = apart / np.sqrt(squares)
    return np.where(np.isfinite(scale), scale, 0.0)


def noise_level(records: Sequence[TimeSeries]) -> np.ndarray:
    """Standard deviation (n_y,) of the noise of each output, roughly, without a model: what fourth differences leave.

    The median of their size, so that outliers do not count; never less than a thousandth of the signal, and infinite where
    too little is measured. A fast signal adds to it: it is an upper limit.
    """
    y = [r.output_matrix for r in records]
    differences = np.concatenate([_differences(r.t, v) for r, v in zip(records, y, strict=True)])
    levels = np.full(y[0].shape[1], np.inf)
    for i, d in enumerate(differences.T):
        d, seen = d[np.isfinite(d)], np.concatenate([v[:, i] for v in y])
        if len(d) >= FEWEST:
            rough = float(np.median(np.abs(d))) / 0.6745
            levels[i] = max(rough, 1e-3 * float(np.nanstd(seen))) or np.inf
    return levels


def _differences(t: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Divided differences (m, n_y) of neighbours, over their standard deviation for unit noise: regular times or not."""
    if len(t) <= DIFFERENCE:
        return np.empty((0, y.shape[1]))
    near = np.lib.stride_tricks.sliding_window_view(t, DIFFERENCE + 1)
    apart = near[:, :, None] - near[:, None, :]
    apart = apart / np.abs(apart).max(axis=(1, 2), keepdims=True) + np.eye(DIFFERENCE + 1)
    weights = 1 / np.prod(apart, axis=2)
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    values = np.lib.stride_tricks.sliding_window_view(y, DIFFERENCE + 1, axis=0)
    differences: np.ndarray = np.einsum("mk,mjk->mj", weights, values)
    return differences


# -- where to judge ----------------------------------------------------------------------------------------------------


def shortened(records: Sequence[TimeSeries], most: int) -> list[TimeSeries]:
    """The first samples of records, in proportion, ``most`` in all."""
    total = sum(len(r) for r in records)
    return [r[: max(2, most * len(r) // total)] if total > most else r for r in records]


def drawn_unknowns(unknowns: Unknowns, model: pm.Model, draws: int, seed: int = 0) -> list[Unknowns]:
    """Numbers for the unknowns at draws of a model's prior; none where the prior cannot be drawn from."""
    graphs = [pt.as_tensor_variable(v) for v in unknowns]
    mode = pytensor.compile.Mode(linker="py", optimizer=None)
    try:
        columns = pm.draw(graphs, draws, random_seed=seed, mode=mode)
    except NotImplementedError:  # flat priors, and densities without draws
        return []
    return [Unknowns(*row) for row in zip(*columns, strict=True)]


class Nearness(NamedTuple):
    """How near free runs come to records.

    Attributes
    ----------
    log_likelihood : array, shape (N,)
        With the noise that suits each run best; minus infinity where it diverges.
    swing : array, shape (N, outputs)
        Standard deviation of each run's outputs, divided by that of the record's; over the records, or over their second
        halves, where the initial state, which may have been read off the record, is mostly forgotten: the one nearer to one.
    """

    log_likelihood: np.ndarray
    swing: np.ndarray


def nearness(
    problem: Problem,
    records: Sequence[TimeSeries],
    at: Sequence[Unknowns],
    grids: Sequence[StepGrid] | None = None,
    run_steps: int = RUN_STEPS,
    method: Method = "rk4",
) -> Nearness:
    """Free runs at points of a prior, by equal steps or implicit ones on ``grids``, compared with records."""
    shape = len(at), len(problem.system.g)
    squares, measured = np.zeros(shape), np.zeros(shape[1])
    spread, moved = np.zeros((2, *shape)), np.zeros((2, 1, shape[1]))  # over the records, and over their second halves
    for r, record in enumerate(records if grids else shortened(records, RANKED_SAMPLES)):
        theta, start, y = parameter_sets(at, r), np.array([u.x0[r] for u in at], dtype=float), record.output_matrix
        if grids is None:
            runs = run_batch(problem.system, theta, start, method_inputs(record, run_steps, method), method=method)
        else:
            runs = run_batch(problem.system, theta, start, method_inputs(record, grids[r], "implicit"), method="implicit")
        late = np.arange(len(y))[:, None] >= len(y) // 2
        runs, there = problem.form.sensors.clipped(runs[:, :, : y.shape[1]]), ~np.isnan(y)
        with np.errstate(all="ignore"):
            squares += np.sum(np.where(there, runs - y, 0.0) ** 2, axis=1)
            spread += [_scatter(runs, there), _scatter(runs, there & late)]
        measured += np.sum(there, axis=0)
        moved += [[_scatter(y, there)], [_scatter(y, there & late)]]
    with np.errstate(all="ignore"):
        near = -np.log(squares / np.maximum(measured, 1) + 1e-300) @ measured / 2
        whole, second = np.sqrt(spread / moved)
        swing = np.where(np.abs(np.log(second)) < np.abs(np.log(whole)), second, whole)
    return Nearness(np.where(np.isfinite(near), near, -np.inf), swing)


def _scatter(y: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Sum of squares about the mean of what is measured, over the samples of (..., T, outputs)."""
    count = np.maximum(np.sum(there, axis=0), 1)
    mean = np.sum(np.where(there, y, 0.0), axis=-2, keepdims=True) / count
    return np.asarray(np.sum(np.where(there, y - mean, 0.0) ** 2, axis=-2))


def warn_of_other_units(records: Sequence[TimeSeries], swing: np.ndarray, name: str) -> None:
    """Say which outputs move far more in the records than in most free runs of the prior."""
    for i, output in enumerate(records[0].outputs):
        ratios = swing[:, i][np.isfinite(swing[:, i]) & (swing[:, i] > STILL)]
        if len(ratios) < DRAWS // 2:
            continue
        half, most = np.quantile(ratios, [0.5, 0.95])
        if half > 1 / FAR_FROM_HALF or most > 1 / FAR_FROM_MOST:
            continue
        unit = records[0].units.get(output, "")
        channel, times = f"{output!r}{f' [{unit}]' if unit else ''}", float(f"{1 / half:.2g}")
        warn(
            f"{name}{': ' if name else ''}the record of {channel} moves {times:,.0f} times more than the free runs "
            "of most prior draws. Are the record's inputs and outputs in the units of the priors "
            "(TimeSeries.from_csv(..., scale=...) converts)? If so, look at the priors.",
            UserWarning,
        )


def nearest_unknowns(
    problem: Problem,
    records: Sequence[TimeSeries],
    unknowns: Unknowns,
    model: pm.Model | None,
    grids: Sequence[StepGrid] | None = None,
    name: str = "",
    draws: list[Unknowns] | None = None,
) -> tuple[list[Unknowns], str, bool]:
    """Points of a prior that can explain records: of many draws and the initial point, the few that come nearest.

    The middle of a prior is where nothing was measured: there, a relaxation oscillator may not oscillate at all, and a
    population may die out.

    With ``grids`` the free runs take implicit steps on them; ``draws`` are those of the prior, if there are any yet.

    Returns
    -------
    points : list of Unknowns
        Their noise is at most that of the records where the model does not know it: a prior that allows for much more would
        hide an integration error that the data will see.
    where : str
        What they are, in words.
    many : bool
        Whether more points than these explain the records as well, so that each of these stands for a part of the posterior.
    """
    initial = Unknowns(*evaluate_at_initial_point([pt.as_tensor_variable(v) for v in unknowns], model))
    free = set() if model is None else _free_of(unknowns, model)
    if model is None or not free:
        return consistent_points(problem, records, [initial]), "at the values given", False
    draws = drawn_unknowns(unknowns, model, DRAWS) if draws is None else draws
    points = consistent_points(problem, records, [initial, *draws])
    near, swing = nearness(problem, records, points, grids)
    warn_of_other_units(records, swing, name)
    few = int(np.clip(2 * MOST_SAMPLES // max(sum(len(r) for r in records), 1), 2, NEAREST))
    best, many = _far_apart(near, points, few)
    where = f"at the {len(best)} of {len(draws)} prior draws that come nearest to the record"
    if not draws or not best:
        best, where = [0], "at the model's initial point"
    points = [points[i] for i in best]
    if free & set(ancestors([pt.as_tensor_variable(unknowns.noise)])):
        noise = np.array(initial.noise, dtype=float)
        level = noise_level(records)
        noise[..., : len(level)] = np.minimum(noise[..., : len(level)], level)
        points = [point._replace(noise=noise) for point in points]
    return points, where, many


def _free_of(unknowns: Unknowns, model: pm.Model) -> set[Any]:
    """Free variables of a model that unknowns depend on."""
    return set(model.free_RVs) & set(ancestors([pt.as_tensor_variable(v) for v in unknowns]))


def _far_apart(near: np.ndarray, points: Sequence[Unknowns], few: int) -> tuple[list[int], bool]:
    """The few points that come nearest; if more come as near, which is told, half of them are such that lie far apart.

    Where many values of a parameter explain a record, the nearest ones may all lie on one side, and the steps that do for them
    may fail for the others, which would then seem to explain nothing.
    """
    order = [int(i) for i in np.argsort(-near, kind="stable") if np.isfinite(near[i])]
    as_well = [i for i in order if near[i] >= near[order[0]] - AS_WELL] if order else []
    if len(as_well) <= few:
        return order[:few], False
    values = np.array([np.concatenate([np.ravel(points[i].params), np.ravel(points[i].x0)]) for i in as_well])
    ranks = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0, kind="stable")
    ranks = np.where(np.ptp(values, axis=0) > 0, ranks, 0)
    picked = list(range(few - few // 2))
    while len(picked) < few:
        distance = np.min([np.sum((ranks - ranks[p]) ** 2, axis=1) for p in picked], axis=0)
        picked.append(int(np.argmax(distance)))
    return [as_well[p] for p in picked], True


def _lost_to_stiffness(problem: Problem, records: Sequence[TimeSeries], draws: Sequence[Unknowns]) -> bool:
    """Whether some draws of a prior explain records as well as others do, but are too stiff for explicit runs to say so."""
    if not draws or not problem.may_follow or sum(len(r) for r in records) > MOST_GRADED:
        return False
    points = consistent_points(problem, records, draws)
    with np.errstate(all="ignore"):
        near, finer = (nearness(problem, records, points, run_steps=n)[0] for n in (RUN_STEPS, 2 * RUN_STEPS))
        unresolved = np.flatnonzero(~(np.abs(near - finer) < 1.0) & ~(finer > finer.max() - AS_WELL))
    looked_at = unresolved[:: max(1, len(unresolved) // LOOKED_AT)]
    if not any(_stiff(problem, records, points[i]) for i in looked_at):
        return False
    implicit, _ = nearness(problem, records, [points[i] for i in unresolved], run_steps=RUN_STEPS, method="implicit")
    return bool(np.any(implicit > finer.max() - AS_WELL))


def filter_substeps(
    problem: Problem,
    records: Sequence[TimeSeries],
    unknowns: Unknowns,
    substeps: Any,
    model: pm.Model | None,
    name: str = "",
    graded: bool = True,
) -> StepChoice:
    """Filter steps a sample: those asked for (a number, or one for each sampling interval), or the fewest that will do.

    Prior draws that come near the record say with which parameters to judge. The test records are drawn with these (with the
    record's own input, times and missing samples), so that the answer depends on the integration alone and not on how well
    the draws fit the data.

    With ``"auto"`` and a choice that has ``grids``, the steps follow the solution, since equal ones are not enough, or many,
    and the system is stiff; they are for :meth:`Problem.graded`, as are those of an array. ``graded=False`` rules that out.
    """
    substeps = given_steps(substeps, records)
    if isinstance(substeps, tuple):
        return _given_choice(problem, records, unknowns, substeps, model, name)

    @cache
    def follow() -> StepChoice | None:
        return _graded_choice(problem, records, unknowns, model, name) if graded and substeps == "auto" else None

    if all(len(r) < 2 for r in records):
        return StepChoice(1 if substeps == "auto" else substeps, substeps, "nowhere, for a single sample", 0.0, True)
    if any(map(uneven, records)) and (found := follow()) and found.settled:
        return found
    draws = [] if model is None or not _free_of(unknowns, model) else drawn_unknowns(unknowns, model, DRAWS)
    if substeps == "auto" and graded and _lost_to_stiffness(problem, records, draws) and (found := follow()) and found.settled:
        return found
    at, where, many = nearest_unknowns(problem, records, unknowns, model, name=name, draws=draws)
    few = shortened(records, MOST_SAMPLES)
    scale = sum(len(r) for r in records) / sum(len(r) for r in few)
    drawn = drawn_records(problem, few, at, apart=BESIDE / math.sqrt(scale))
    who = f"{name}: " if name else ""
    if not drawn.at:
        if substeps != "auto":
            return StepChoice(substeps, substeps, where, np.nan, False)
        if found := follow():
            return said_unsettled(found, name, problem)
        warn(
            f"substeps='auto': the ODE diverges {where}, or is stiff, so that no step size can be judged there; "
            "using 4 substeps. Give initval=... to the priors, or a number of substeps, and judge it by settle_substeps."
            f"{problem.why_not_follow}"
        )
        return StepChoice(4, "auto", where, np.nan, False)
    share = (1.0 if many else SHARE) if substeps == "auto" else ASKED
    criterion = LogLikelihoodCriterion(
        problem, few, drawn.at, drawn.y, where, share, scale, who, solved=True, beside=drawn.beside
    )
    if substeps == "auto":
        chosen, error = searched_substeps(criterion)
        # A diffusion that is constant describes no solution that jumps and decays fast, and where many steps will do at these
        # draws, none may do where the decay is faster.
        costly = chosen is None or (chosen >= MANY and problem.calibrated)
        if costly and (found := follow()) and (found.settled or (chosen is None and found.error < error)):
            return said_unsettled(found, name, problem)
        if chosen is None and many:  # one of them may be far from what the record says in the end
            chosen, error = searched_substeps(replace(criterion, share=SHARE))
        if chosen is not None and scale > 1:
            if (whole := _on_whole_records(criterion, records, chosen)) is None:
                return StepChoice(chosen, substeps, where, np.nan, False)
            criterion = whole
            chosen, error = _enough_to_the_end(criterion, chosen, error)
        if chosen is None:
            warn(criterion.unsettled(error))
            chosen = criterion.otherwise
        else:
            enough, criterion, cliff = _enough_to_pass(criterion, chosen, draws if scale == 1 else [])
            where = criterion.where
            if cliff > CLIFF:
                warn(criterion.unsettled(cliff))
                return StepChoice(enough, substeps, where, cliff, False)
            if enough > chosen:
                chosen, error = enough, criterion.change(criterion.value(enough), criterion.value(2 * enough))
            say_chosen(criterion, chosen, error)
    else:
        chosen, error = settled_substeps(criterion, substeps)
        if scale > 1 and error < LOGLIK_TOLERANCE and (whole := _on_whole_records(criterion, records, substeps)) is not None:
            _, error = settled_substeps(whole, substeps)
    return StepChoice(chosen, substeps, where, error, error < LOGLIK_TOLERANCE)


def _on_whole_records(
    criterion: LogLikelihoodCriterion, records: Sequence[TimeSeries], substeps: int
) -> LogLikelihoodCriterion | None:
    """How a number of steps that will do for the first samples is judged on all of them; None where no solution goes so far.

    What a record meets late (a contact, a burst) is in no extrapolation from its beginning.
    """
    drawn = drawn_records(criterion.problem, records, criterion.at, run_steps=min(2 * MOST, RUN_STEPS * substeps))
    if not drawn.at:
        warn(
            f"{criterion.who}{counted(substeps, criterion.steps)} a sample will do for the first "
            f"{sum(len(r) for r in criterion.records)} samples, but {criterion.where} no solution goes on to the end of the "
            "record, and they were not judged on the rest. Look at it where the posterior is (settle_substeps)."
        )
        return None
    return replace(criterion, records=records, at=drawn.at, y=drawn.y, beside=drawn.beside, scale=1.0)


def _enough_to_the_end(criterion: LogLikelihoodCriterion, substeps: int, error: float) -> tuple[int | None, float]:
    """A number of steps, looked at once on whole records, or the fewest beyond it that will do there; None if none will do."""
    change = criterion.change(criterion.value(substeps), criterion.value(2 * substeps))
    if change < criterion.tolerance:
        change = max(change, criterion.unseen(2 * substeps))
    if change < criterion.tolerance:
        return substeps, max(change, error)
    return (None, change) if 2 * substeps > MOST else searched_substeps(criterion, 2 * substeps)


def _enough_to_pass(
    criterion: LogLikelihoodCriterion, substeps: int, draws: Sequence[Unknowns]
) -> tuple[int, LogLikelihoodCriterion, float]:
    """A number of steps that will do at the nearest draws, or more where it rules out other points that explain the records.

    With it, how that is judged in the end, and by how much a log-likelihood still moves at such points.

    The nearest draws of a prior may lie on one side of a cliff that the steps make: what a step leaves out may take a state
    where the equations have a pole, for all faster rates. A posterior whose steps end at the cliff looks well from inside.
    """
    problem, records = criterion.problem, criterion.records
    if not draws or not problem.calibrated or problem.form.dynamic or problem.system.driving:
        return substeps, criterion, 0.0
    count = int(np.clip(MOST_SAMPLES // max(sum(map(len, records)), 1), 2, PASSED))
    points = consistent_points(problem, records, draws)
    with np.errstate(all="ignore"):
        found = explaining_points(
            points, nearness(problem, records, points)[0], lambda at: nearness(problem, records, at)[0], count
        )
    found = [point._replace(noise=criterion.at[0].noise) for point in found]
    drawn = drawn_records(problem, records, found, apart=BESIDE) if found else DrawnRecords([], [], [])
    if not drawn.at:
        return substeps, criterion, 0.0
    passed = replace(criterion, at=drawn.at, y=drawn.y, beside=(), share=1.0)
    n, finer = substeps, passed.value(substeps)
    while True:
        value, finer = finer, passed.value(2 * n)
        if (cliff := passed.change(value, finer)) <= CLIFF or 2 * n > MOST:
            break
        n *= 2
    where = f"{criterion.where}, and at {len(drawn.at)} points that explain it"
    return n, criterion if n == substeps and cliff <= CLIFF else replace(criterion, where=where), cliff


def _graded_choice(
    problem: Problem, records: Sequence[TimeSeries], unknowns: Unknowns, model: pm.Model | None, name: str
) -> StepChoice | None:
    """Steps that follow the solution where a system is stiff, judged as equal ones are; None if it is not, or has no solution.

    An adaptive solver runs at the initial point; its steps carry free runs at prior draws, and the steps that it takes at the
    nearest of these are those of the filter.
    """
    if not problem.may_follow or sum(len(r) for r in records) > MOST_GRADED:
        return None
    initial = Unknowns(*evaluate_at_initial_point([pt.as_tensor_variable(v) for v in unknowns], model))
    first = adaptive_steps(problem, records, [initial])
    if first is None:
        return None
    at, where, _ = nearest_unknowns(problem, records, unknowns, model, first)
    if not (any(map(uneven, records)) or any(_stiff(problem, records, point) for point in at)):
        return None
    return following_steps(problem, records, at, where, name, unsettled=True)


def following_steps(
    problem: Problem,
    records: Sequence[TimeSeries],
    at: Sequence[Unknowns],
    where: str,
    name: str,
    say: bool = True,
    unsettled: bool = False,
) -> StepChoice | None:
    """Steps that an adaptive solver takes at the first of some points, each cut into as many as all points need.

    None where there is no solution, or they will not do, unless ``unsettled`` ones are wanted. With ``say`` the choice is
    logged.
    """
    grids = adaptive_steps(problem, records, at[:FOLLOWED])
    criterion = None if grids is None else on_grids(problem, records, at, grids, where, SHARE, name)
    if grids is None or criterion is None:
        return None
    chosen, error = searched_substeps(criterion, LEAST)
    if chosen is None:
        return StepChoice(MOST, "auto", where, error, False, grids) if unsettled and np.isfinite(error) else None
    chosen = enough_for_slopes(criterion, chosen)
    if say:
        say_chosen(criterion, chosen, error)
        follow = "the steps follow the solution, which is stiff or changes by orders of magnitude"
        _log.info("%s%s: %d in all.", criterion.who, follow, chosen * sum(g.total for g in grids))
    return StepChoice(chosen, "auto", where, error, True, grids)


def enough_for_slopes(criterion: LogLikelihoodCriterion, substeps: int) -> int:
    """As many steps as slopes need, where ``substeps`` will do for values, and as many as these if no number settles slopes."""
    n = substeps
    while n <= MOST:
        if criterion.smooth(n):
            return n
        n *= 2
    return substeps


def said_unsettled(choice: StepChoice, name: str, problem: Problem) -> StepChoice:
    """A choice of steps that follow the solution, with a warning if the log-likelihood still moves."""
    if not choice.settled:
        # High derivatives of a stiff solution are large where it has just changed, and rounding in them is.
        lower = f", or take a lower order than {problem.form.order} (2 or 3)" if problem.form.order > 3 else ""
        warn(
            f"{name}{': ' if name else ''}substeps='auto': the steps follow the solution, and {choice.where} the "
            f"log-likelihood moves by {in_words(choice.error)} even when {choice.substeps} for each of an adaptive solver are "
            f"doubled; using {choice.substeps}. Look at it where the posterior is (settle_substeps), or narrow the priors"
            f"{lower}."
        )
    return choice


def _given_choice(
    problem: Problem,
    records: Sequence[TimeSeries],
    unknowns: Unknowns,
    grids: tuple[StepGrid, ...],
    model: pm.Model | None,
    name: str,
) -> StepChoice:
    """Steps that were given for each sampling interval, checked by cutting each in two."""
    at, where, _ = nearest_unknowns(problem, records, unknowns, model, grids)
    criterion = on_grids(problem, records, at, grids, where, ASKED, name)
    if criterion is None:
        return StepChoice(1, "array", where, np.nan, False, grids)
    _, error = settled_substeps(criterion, 1)
    return StepChoice(1, "array", where, error, error < LOGLIK_TOLERANCE, grids)


def on_grids(
    problem: Problem,
    records: Sequence[TimeSeries],
    at: Sequence[Unknowns],
    grids: tuple[StepGrid, ...],
    where: str,
    share: float,
    name: str,
) -> LogLikelihoodCriterion | None:
    """How steps of different lengths are judged at points; None where none of these can be solved."""
    drawn = drawn_records(problem, records, at, grids)
    if not drawn.at:
        return None
    # Fronts of the other points are passed by longer steps: how wide a posterior is there is for steps that follow them to say.
    beside = [*drawn.beside[:FOLLOWED], *drawn.y[FOLLOWED:]]
    who, graded = f"{name}: " if name else "", problem.graded()
    return LogLikelihoodCriterion(graded, records, drawn.at, drawn.y, where, share, 1.0, who, grids, solved=True, beside=beside)


def adaptive_steps(problem: Problem, records: Sequence[TimeSeries], at: Sequence[Unknowns]) -> tuple[StepGrid, ...] | None:
    """Steps of an adaptive solver for each record; None where it finds no solution."""
    found = []
    for r, record in enumerate(records):
        starts = np.array([u.x0[r] for u in at], dtype=float)
        grid = pilot_grid(problem.system, record, parameter_sets(at, r), starts, rests=False)
        if grid is None:
            return None
        found.append(grid)
    return tuple(found)


def _stiff(problem: Problem, records: Sequence[TimeSeries], at: Unknowns) -> bool:
    """Whether stability asks for many explicit steps a sample at a point."""
    record = max(records, key=len)
    r = next(i for i, other in enumerate(records) if other is record)
    found = needed_steps(problem.system, record, np.asarray(at.params_of(r), dtype=float), np.asarray(at.x0[r], dtype=float))
    return found is not None and found[1] > STIFF
