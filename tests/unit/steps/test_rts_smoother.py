"""Smoothing and backward sampling against dense formulas in 60 digits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest

from pm_sysid.posterior.passes import Grid, every_substep
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve import options
from pm_sysid.solve.filter_graph import Problem, Unknowns
from pm_sysid.solve.options import EK0, EK1
from pm_sysid.steps.rts_smoother import Smoother, Trace
from pm_sysid.symbolic.system import System
from support.dense import (
    DIGITS,
    Equations,
    Exact,
    Linear,
    Setting,
    doubles,
    exact,
    factorise,
    forward,
    run,
    start_given_relations,
    zeros,
)
from support.linear_cases import PYTHON, Case, linearisation_of, prepare, unknowns

TOLERANCE = 1e-8

# -- references -------------------------------------------------------------------------------------------------------


class Move(NamedTuple):
    """``X <- A X + b`` plus noise of covariance Q."""

    A: Exact
    b: Exact
    Q: Exact


class See(NamedTuple):
    """``row X`` was ``value``, up to a variance; an ODE residual (without place) is no evidence on the initial state."""

    row: Exact
    value: Any
    variance: Any
    measured: bool


class Keep(NamedTuple):
    """A sample: its state is asked for."""


class Reference(NamedTuple):
    """Means (T, D), covariances of all samples with all samples (T, D, T, D)."""

    mean: np.ndarray
    covariance: np.ndarray


def events(linear: Linear, setting: Setting, record: TimeSeries) -> list[Move | See | Keep]:
    """A linear time-invariant system as a list of events."""
    equations, y, found = Equations(linear, setting), record.output_matrix, []
    n = equations.size

    def on_substep(A: Exact, Q: Exact, forcing: Exact) -> None:
        found.append(Move(A, zeros(n), Q * equations.intensity(setting.diffusion)))
        for c, chain in enumerate(equations.chains):
            found.append(See(equations.residual[c], forcing[chain[-1]], mpmath.mpf(0), False))
        found.extend(See(row, value, mpmath.mpf(0), False) for row, value in equations.relations)

    def on_sample(k: int, jump: Exact) -> None:
        found.append(Move(exact(np.eye(n)), jump, zeros(n, n)))
        for j in np.flatnonzero(~np.isnan(y[k])):
            found.append(See(equations.rows[j], mpmath.mpf(y[k, j]), mpmath.mpf(setting.noise[j]) ** 2, True))
        found.append(Keep())

    run(equations, record, on_substep, on_sample)
    return found


def start_posterior(by_start: Exact, gaps: Exact, variance: Exact, prior: Exact) -> tuple[Exact, Exact]:
    """Mean and root of the initial state's deviation, from innovations ``gaps - by_start d`` and the root of its prior."""
    n = prior.shape[1]
    precision, info = mpmath.matrix(np.eye(n).tolist()), mpmath.matrix(n, 1)
    for row, gap, v in zip(by_start @ prior, gaps, variance, strict=True):
        for i, j in product(range(n), repeat=2):
            precision[i, j] += row[i] * row[j] / v
        for i in range(n):
            info[i] += row[i] * gap / v
    covariance = precision**-1
    root = mpmath.cholesky(covariance)
    as_array = lambda m: np.array(m.tolist(), dtype=object).reshape(m.rows, m.cols)  # noqa: E731
    return prior @ as_array(covariance * info)[:, 0], prior @ as_array(root)


def joint(start: Exact, prior: Exact, found: list[Move | See | Keep]) -> Reference:
    """One joint Gaussian of all that is seen and kept; ``start`` has the mean and its derivative by the initial state.

    ``prior`` is a root of the covariance of that.
    """
    m, P = start.copy(), zeros(len(start), len(start))
    cross: list[Exact] = []  # covariance of the state with what was seen
    V: list[Exact] = []
    gaps: list[Exact] = []
    means: list[Exact] = []
    past: list[Exact] = []  # covariance of kept states with the state now
    seen: list[list[Exact]] = []  # ... and with what was seen
    between: dict[tuple[int, int], Exact] = {}
    for event in found:
        match event:
            case Move(A, b, Q):
                m, P = A @ m, A @ P @ A.T + Q
                m[:, 0] += b
                cross, past = [A @ c for c in cross], [p @ A.T for p in past]
            case See(row, value, variance, _):
                gap = -(row @ m)
                gap[0] += value
                gaps.append(gap)
                V.append(np.array([row @ c for c in cross] + [row @ P @ row + variance], dtype=object))
                cross.append(P @ row)
                for columns, p in zip(seen, past, strict=True):
                    columns.append(p @ row)
            case Keep():
                means.append(m.copy())
                past.append(P.copy())
                seen.append(list(cross))
                between |= {(s, len(past) - 1): p.copy() for s, p in enumerate(past)}
    full = zeros(len(V), len(V))
    for i, row in enumerate(V):
        full[i, : i + 1] = full[: i + 1, i] = row
    L, d = factorise(full)
    e = forward(L, np.array(gaps))
    W = [forward(L, np.array(columns)) for columns in seen]
    after = [mean + (w.T / d) @ e for mean, w in zip(means, W, strict=True)]
    kept = [i for i, event in enumerate(v for v in found if isinstance(v, See)) if event.measured]
    shift, root = start_posterior(-e[kept][:, 1:], e[kept][:, 0], d[kept], prior)
    T, n = len(means), len(start)
    lean = [a[:, 1:] @ root for a in after]
    covariance = np.empty((T, n, T, n))
    for (s, t), p in between.items():
        block = doubles(p - (W[s].T / d) @ W[t] + lean[s] @ lean[t].T)
        covariance[s, :, t], covariance[t, :, s] = block, block.T
    return Reference(np.array([doubles(a[:, 0] + a[:, 1:] @ shift) for a in after]), covariance)


def textbook(linear: Linear, setting: Setting, record: TimeSeries, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Kalman filter and Rauch-Tung-Striebel smoother with covariances and inverses, for any linearisation."""
    equations, y = Equations(linear, setting), record.output_matrix
    rows = {"ek0": equations.pick(own=False), "ek1": equations.residual, "ek1 own chain": equations.pick(own=True)}[kind]
    pick = equations.pick(own=kind != "ek0")
    std = exact(setting.x0_std)
    m, P = (
        equations.start([exact(record.input_at(0, 0.0, i)) for i in range(equations.q)]),
        zeros(equations.size, equations.size),
    )
    steps: list[Any] = []  # at the end of a substep: A, Q before it; mean and covariance after it; jump; whether a sample
    gaps: list[Exact] = []
    variances: list[Any] = []

    def inverse(S: Exact) -> Exact:
        return np.array((mpmath.matrix(S.tolist()) ** -1).tolist(), dtype=object).reshape(S.shape)

    def on_substep(A: Exact, Q: Exact, forcing: Exact) -> None:
        nonlocal m, P
        m = A @ m
        z = equations.residual @ m
        z[:, 0] -= np.array([forcing[chain[-1]] for chain in equations.chains])
        g2 = setting.diffusion
        if g2 is None:
            g2 = np.array([z[c, 0] ** 2 / (pick[c] @ Q @ pick[c]) for c in range(equations.nc)], dtype=object)
        Q = Q * equations.intensity(g2)
        P = A @ P @ A.T + Q
        K = P @ rows.T @ inverse(rows @ P @ rows.T)
        m, P = m - K @ z, P - K @ rows @ P
        steps.append([A, Q, m, P, None])

    def on_sample(k: int, jump: Exact) -> None:
        nonlocal m, P
        m = m.copy()
        m[:, 0] += jump
        for j in np.flatnonzero(~np.isnan(y[k])):
            a = equations.rows[j]
            gap, s = -(a @ m), a @ P @ a + mpmath.mpf(setting.noise[j]) ** 2
            gap[0] += mpmath.mpf(y[k, j])
            K = P @ a / s
            m, P = m + np.outer(K, gap), P - np.outer(K, K) * s
            gaps.append(gap)
            variances.append(s)
        if not steps:
            steps.append([None, None, m, P, jump])
        steps[-1][2:] = m, P, jump

    run(equations, record, on_substep, on_sample)
    smoothed = [(m, P)]
    for (_, _, now, cov, _), (A, Q, _, _, jump) in zip(steps[-2::-1], steps[:0:-1], strict=True):
        after, spread = smoothed[-1]
        after = after.copy()
        after[:, 0] -= 0 if jump is None else jump
        predicted = A @ cov @ A.T + Q
        G = cov @ A.T @ inverse(predicted)
        smoothed.append((now + G @ (after - A @ now), cov + G @ (spread - predicted) @ G.T))
    pairs = [s for s, step in zip(smoothed[::-1], steps, strict=True) if step[4] is not None]
    G = -np.array(gaps)[:, 1:] if gaps else zeros(0, len(std))
    innovation = np.array(gaps)[:, 0] if gaps else zeros(0)
    shift, root = start_posterior(G, innovation, np.array(variances), np.diag(std))
    mean = [doubles(a[:, 0] + a[:, 1:] @ shift) for a, _ in pairs]
    return np.array(mean), np.array([doubles(c + a[:, 1:] @ root @ root.T @ a[:, 1:].T) for a, c in pairs])


@cache
def expected(case: Case) -> list[Reference]:
    """Joint references of the records of a case."""
    linear, records, settings = prepare(case)
    found = []
    with mpmath.workdps(DIGITS):
        for record, setting in zip(records, settings, strict=True):
            equations = Equations(linear, setting)
            start = equations.start([exact(record.input_at(0, 0.0, i)) for i in range(equations.q)])
            found.append(joint(start, start_given_relations(linear, setting)[1], events(linear, setting, record)))
    return found


# -- the package ------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """A filter that has gone forward."""

    problem: Problem
    grid: Grid
    smoother: Smoother
    trace: Trace
    scale: np.ndarray

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean (T, D) and covariance (T, D, D), level by level; across blocks what the initial state makes."""
        mean, root = self.smoother.run(self.grid.path, self.trace)
        T, n, w = root.shape
        wide = np.zeros((T, n, n))
        for i in range(0, n, w):
            wide[:, i : i + w, i : i + w] = root[:, i : i + w]
        full = np.concatenate([wide, mean[..., 1:]], axis=2) * self.scale[:, None]
        order = np.lexsort((self.smoother.chain, self.smoother.level))
        full = full[:, order]
        return (mean[..., 0] * self.scale)[:, order], full @ full.transpose(0, 2, 1)

    def paths(self) -> np.ndarray:
        """How a path (T, n) answers each of the normal numbers it is drawn with; for one record, dense."""
        basis = np.eye(len(self.grid.y) * len(self.scale)).reshape(-1, len(self.grid.y), len(self.scale))
        columns = [self.smoother.run(self.grid.path, self.trace, z)[1][..., 0] for z in basis]
        mean, _ = self.smoother.run(self.grid.path, self.trace)
        columns += [mean[..., 1 + i] for i in range(self.smoother.n_free)]
        return np.array(columns) * self.scale


def go(problem: Problem, records: list[TimeSeries], given: Unknowns, substeps: int) -> Run:
    y = np.concatenate([r.output_matrix for r in records])
    data = problem.data(records, substeps)
    grid = every_substep(problem, data, y)
    table = problem.run(grid.y, given, grid.data, "states")[0].eval(mode=PYTHON)
    smoother = Smoother(problem.system, problem.form)
    return Run(problem, grid, smoother, smoother.unpack(table), data.scale[smoother.level])


def package(case: Case, diffusion: Any = 1.0) -> Run:
    linear, records, settings = prepare(case)
    solver = case.solver(order=case.order, diffusion=diffusion, covariance=case.covariance)
    problem = Problem.build(linear.system, solver, records, case.uncertain)
    assert problem.form.block == (case.covariance == "block")
    return go(problem, records, unknowns(linear, settings), case.substeps)


def compare(mean: np.ndarray, covariance: np.ndarray, truth_mean: np.ndarray, truth: np.ndarray) -> None:
    """Deviations relative to the scale of each component over the record."""
    std = np.sqrt(np.maximum(np.diagonal(truth, axis1=1, axis2=2), 0.0))
    size = np.maximum(np.abs(truth_mean), std).max(axis=0)
    spread = std.max(axis=0)
    spread = np.where(spread > 1e-20 * size, spread, size)
    worst = np.max(np.abs(mean - truth_mean) / size), np.max(np.abs(covariance - truth) / np.outer(spread, spread))
    assert max(worst) < TOLERANCE, worst


EXACT = [
    # Every order, every way the input may go between the samples, every pattern of missing samples.
    Case("oscillator, acceleration", EK1, 2, missing="channels"),
    Case("oscillator, acceleration", EK1, 3, "foh", substeps=3),
    Case("oscillator, acceleration", EK1, 4, "bl", missing="ends"),
    Case("oscillator", EK1, 5, "zoh", ("gap",), 3, missing="rows"),
    Case("oscillator", EK1, 6, "foh", ("uneven",), missing="ends"),
    Case("lag", EK1, 1, "zoh", substeps=3),
    Case("lag", EK1, 6, "zoh", ("gap",)),
    Case("unforced", EK1, 3, times=("gap",), substeps=3),
    # Coupled chains whose states are in no order; several outputs that see all of them.
    Case("mixed", EK1, 2, "zoh", substeps=3, missing="channels"),
    Case("two", EK1, 2, "zoh", ("uneven",), missing="channels"),
    Case("first-order form", EK1, 2, "foh", ("uneven",)),
    # Several records, one of a single sample.
    Case("oscillator", EK1, 3, "zoh", ("uniform", "gap"), 3, missing="ends"),
    Case("oscillator", EK1, 2, "zoh", ("one", "uneven", "one")),
    # Derivatives over twelve orders of magnitude.
    Case("silverbox", EK1, 4, "zoh", missing="channels", step=0.45),
    # Uncertain initial states.
    Case("oscillator", EK1, 2, "zoh", uncertain=(0, 1), missing="ends"),
    Case("oscillator, acceleration", EK1, 4, "foh", ("gap",), 3, uncertain=(1,), missing="channels"),
    Case("lag", EK1, 3, "zoh", ("uneven", "uniform"), uncertain=(0,), missing="rows"),
    Case("mixed", EK1, 2, "zoh", uncertain=(0, 1, 2), missing="channels"),
    Case("oscillator", EK1, 3, "zoh", uncertain=(0, 1), missing="all"),
    # Blocks of chains that do not see each other.
    Case("decoupled", EK1, 3, "zoh", ("uneven",), 3, covariance="block", missing="channels"),
    Case("decoupled", EK1, 2, "foh", covariance="block", uncertain=(0, 1, 2)),
    # Relations.
    Case("closed", EK1, 2, "zoh", substeps=3, uncertain=(0, 1, 2), missing="channels"),
    Case("tied", EK1, 3, "foh", ("uneven",)),
    Case("tied twice", EK1, 2, "foh", uncertain=(0, 1, 2, 3), missing="rows"),
]
RECURSIVE = [
    Case("oscillator, acceleration", EK0, 2, "zoh", substeps=3, missing="channels"),
    Case("oscillator", EK0, 4, "foh", ("gap",)),
    Case("lag", EK0, 6, "foh"),
    Case("mixed", EK0, 2, "zoh", ("uneven",), 3, uncertain=(0, 2), missing="rows"),
    Case("mixed, local", EK0, 3, "zoh", substeps=3, covariance="block", missing="channels"),
    Case("mixed, local", EK1, 3, "zoh", ("uneven",), covariance="block", missing="channels"),
]


@pytest.mark.parametrize("case", EXACT, ids=str)
def test_moments_are_those_of_the_joint_gaussian(case: Case) -> None:
    """Would fail for a wrong gain, order of jump and update, scaling of a step, start or posterior of the initial state."""
    truth = expected(case)
    diagonals = [np.stack([r.covariance[t, :, t] for t in range(len(r.mean))]) for r in truth]
    compare(*package(case).moments(), np.concatenate([r.mean for r in truth]), np.concatenate(diagonals))


@pytest.mark.parametrize("case", [c for c in EXACT if c.covariance == "dense" and len(c.times) == 1][::3], ids=str)
def test_paths_have_the_joint_covariance_of_all_samples(case: Case) -> None:
    """Would fail if draws were right at each time and wrong as paths."""
    run, [truth] = package(case), expected(case)
    columns = run.paths()
    columns = columns.reshape(len(columns), -1)
    covariance, T = truth.covariance.reshape(columns.shape[1], -1), len(truth.mean)
    spread = np.sqrt(np.maximum(np.diagonal(covariance), 0)).reshape(T, -1).max(axis=0)
    scale = np.tile(np.where(spread > 0, spread, 1.0), T)
    assert np.max(np.abs(columns.T @ columns - covariance) / np.outer(scale, scale)) < TOLERANCE
    assert np.linalg.matrix_rank(columns) > len(truth.mean) - 2  # something is uncertain at almost every time


@pytest.mark.parametrize("case", RECURSIVE, ids=str)
def test_other_linearisations_against_textbook_recursion(case: Case) -> None:
    """Would fail if the backward pass of EK0 or of blocks were not that of what their filter carries."""
    kind = "ek1 own chain" if case.solver is EK1 else linearisation_of(case)
    linear, [record], [setting] = prepare(case)
    with mpmath.workdps(DIGITS):
        truth = textbook(linear, setting, record, kind)
    compare(*package(case).moments(), *truth)


@pytest.mark.parametrize("case", [RECURSIVE[4], RECURSIVE[5]], ids=str)
def test_what_a_loop_over_chains_carries(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would fail if the backward pass mixed up the blocks of a filter that holds them side by side."""
    expected_moments = package(case).moments()
    monkeypatch.setattr(options, "UNROLLED_CHAINS", 0)
    for looped, written_out in zip(package(case).moments(), expected_moments, strict=True):
        np.testing.assert_allclose(looped, written_out, rtol=1e-9, atol=1e-9 * np.abs(written_out).max())


@pytest.mark.parametrize("solver", [EK0, EK1])
def test_dynamic_diffusion(solver: Any) -> None:
    """Would fail if the way back used another diffusion than the way there, or that of another substep."""
    case = Case("mixed", solver, 2, "foh", ("gap",), 2)
    linear, [record], [setting] = prepare(case)
    with mpmath.workdps(DIGITS):
        truth = textbook(linear, setting._replace(diffusion=None), record, linearisation_of(case))
    run = package(case, "dynamic")
    compare(*run.moments(), *truth)
    assert len(np.unique(run.trace.diffusion[1:, 0])) == len(run.trace.diffusion) - 1


def test_calibrated_diffusion_is_that_of_the_likelihood() -> None:
    """Would fail if the samples that were put in changed the calibration."""
    case = Case("two", EK1, 3, "zoh", ("uneven",), 3)
    linear, records, settings = prepare(case)
    problem = Problem.build(linear.system, EK1(order=3), records)
    given = unknowns(linear, settings)
    run = go(problem, records, given, 3)
    diffusion = problem.calibrate(given, problem.data(records, 3)).eval(mode=PYTHON)
    used = np.where(run.smoother.chain == 0, *diffusion)
    np.testing.assert_allclose(run.trace.diffusion[1:], np.broadcast_to(used, run.trace.diffusion[1:].shape), rtol=1e-12)


@pytest.mark.parametrize("case", [EXACT[1], EXACT[3], EXACT[17], EXACT[19]], ids=str)
def test_the_way_there_is_the_filter_of_the_likelihood(case: Case) -> None:
    """Would fail if a sample that was put in changed the filter; at the last sample nothing is left to smooth."""
    run = package(case)
    linear, records, settings = prepare(case)
    y = np.concatenate([r.output_matrix for r in records])
    data = run.problem.data(records, case.substeps)
    filtered = run.problem.run(y, unknowns(linear, settings), data, "moments")[0].eval(mode=PYTHON)
    n = len(run.scale)
    mean = run.trace.mean[run.grid.path.kept, :, 0] * run.scale
    np.testing.assert_allclose(mean, filtered[:, :n], rtol=1e-9, atol=1e-12 * np.abs(filtered[:, :n]).max())
    smoothed, _ = run.smoother.run(run.grid.path, run.trace)
    assert np.array_equal(smoothed[-1, :, 0] * run.scale, mean[-1])
    assert not np.allclose(smoothed[1:-1, :, 0] * run.scale, mean[1:-1], rtol=1e-6)


# -- an input that multiplies a state: the jump then depends on it ----------------------------------------------------

RATE = 0.8


def bilinear_events(record: TimeSeries, noise: float, diffusion: float) -> Iterator[Move | See | Keep]:
    """``z' = w (1 - a z)`` with a held input and a twice integrated Wiener process, one substep a sample."""
    a, h, w = mpmath.mpf(RATE), exact(record.dt), exact(record.u)
    for k in range(len(record)):
        if k:
            A, Q = zeros(3, 3), zeros(3, 3)
            for i, j in product(range(3), repeat=2):
                e = 5 - i - j
                A[i, j] = h[k - 1] ** (j - i) / mpmath.factorial(j - i) if j >= i else mpmath.mpf(0)
                noise_ij = h[k - 1] ** e / (e * mpmath.factorial(2 - i) * mpmath.factorial(2 - j))
                Q[i, j] = mpmath.mpf(diffusion) ** 2 * noise_ij
            yield Move(A, zeros(3), Q)
            yield See(np.array([a * w[k - 1], mpmath.mpf(1), mpmath.mpf(0)]), w[k - 1], mpmath.mpf(0), False)
            J, b = exact(np.eye(3)), zeros(3)
            J[1, 0], J[2, 0] = -a * (w[k] - w[k - 1]), a**2 * (w[k] ** 2 - w[k - 1] ** 2)
            b[1], b[2] = w[k] - w[k - 1], -a * (w[k] ** 2 - w[k - 1] ** 2)
            yield Move(J, b, zeros(3, 3))
        yield See(exact([0.5, 0.1, 0.0]), mpmath.mpf(record.y[k]), mpmath.mpf(noise) ** 2, True)
        yield Keep()


@pytest.mark.parametrize("std", [0.0, 0.4])
def test_a_jump_that_depends_on_the_state(std: float) -> None:
    """Would fail if the jump were not taken back, or only from the mean, or after the measurement's turn."""
    system = System(
        lambda t, x, u, p: u.w * (1 - p.a * x.z),
        states=("z",),
        inputs=("w",),
        params=("a",),
        observe=lambda t, x, dx, u, p: 0.5 * x.z + 0.1 * dx.z,
    )
    rng = np.random.default_rng(4)
    t = np.array([0.0, 0.2, 0.5, 0.8, 1.1])
    record = TimeSeries(t, [2.0, -1.5, 3.0, 0.5, -1.0], rng.normal(size=5), intersample="zoh")
    problem = Problem.build(system, EK1(order=2, diffusion=1.7), [record], (0,) if std else ())
    run = go(problem, [record], Unknowns([RATE], np.array([[0.3]]), np.array([[std]]), np.array([0.2]), np.array([1.7])), 1)
    with mpmath.workdps(DIGITS):
        z, w, a = mpmath.mpf(0.3), mpmath.mpf(2), mpmath.mpf(RATE)
        start = np.array([[z, 1], [w * (1 - a * z), -a * w], [-a * w * w * (1 - a * z), a * a * w * w]], dtype=object)
        truth = joint(start, exact([[std]]), list(bilinear_events(record, 0.2, 1.7)))
    compare(*run.moments(), truth.mean, np.stack([truth.covariance[t, :, t] for t in range(5)]))
    columns = run.paths().reshape(-1, 15)
    np.testing.assert_allclose(columns.T @ columns, truth.covariance.reshape(15, 15), atol=1e-9)
    assert np.abs(run.trace.jump[1:, 1:, 1]).min() > 0.02


def test_nothing_is_lost_when_almost_nothing_is_uncertain() -> None:
    """Would fail if a variance were a difference of numbers, or a zero diffusion a division by zero."""
    case = Case("oscillator", EK1, 4, "foh", ("nine",), 2)
    linear, records, settings = prepare(case)
    given = unknowns(linear, settings)
    problem = Problem.build(linear.system, EK1(order=4, diffusion=1.0), records)
    small = given._replace(diffusion=given.diffusion * 1e-40)
    mean, covariance = go(problem, records, small, 2).moments()
    big = go(problem, records, given._replace(noise=given.noise * 1e40), 2)  # the same ratio of the two
    np.testing.assert_allclose(covariance[2:] * 1e80, big.moments()[1][2:], rtol=1e-6)
    assert np.all(np.isfinite(mean)) and np.all(covariance[2:, 0, 0] > 0)
