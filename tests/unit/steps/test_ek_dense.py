"""The filter against dense formulas in 60 digits: a square root that loses digits, a missing term or a sign shows here."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from pm_sysid.solve import options
from pm_sysid.solve.filter_graph import Problem
from pm_sysid.solve.options import EK0, EK1
from pm_sysid.steps.ek import Output
from support.dense import Linearisation, Reference, everywhere, mean_squares, reference
from support.linear_cases import PYTHON, SYSTEMS, Case, linearisation_of, prepare, unknowns

TOLERANCE = 1e-9


def package(case: Case, output: Output, compiled: bool = False, diffusion: Any = 1.0) -> np.ndarray:
    """Output (T, n) of the package's filter for all records of a case."""
    linear, records, settings = prepare(case)
    solver = case.solver(order=case.order, diffusion=diffusion, covariance=case.covariance)
    problem = Problem.build(linear.system, solver, records, case.uncertain)
    assert problem.form.block == (case.covariance == "block")
    assert problem.form.linearisation == int(case.solver is EK1)
    y = np.concatenate([r.output_matrix for r in records])
    outputs, _ = problem.run(y, unknowns(linear, settings), problem.data(records, case.substeps), output)
    return outputs.eval() if compiled else outputs.eval(mode=PYTHON)


@cache
def expected(case: Case, linearisation: Linearisation) -> Reference:
    """Reference for all records of a case, joined along time."""
    linear, records, settings = prepare(case)
    parts = [reference(linear, s, r, linearisation) for r, s in zip(records, settings, strict=True)]
    return Reference(*(np.concatenate(p) for p in zip(*parts, strict=True)))


def moments(case: Case, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean (T, D) and covariance (T, D, D) of the package, level by level; NaN where a block form has none."""
    n_chains, levels = len(SYSTEMS[case.system].chains), case.order + 1
    size = n_chains * levels
    if case.covariance == "dense":
        blocks = [np.arange(size)]
    else:
        blocks = [np.arange(levels) * n_chains + c for c in range(n_chains)]
    mean = np.full((len(outputs), size), np.nan)
    covariance = np.full((len(outputs), size, size), np.nan)
    at = size
    mean[:, np.concatenate(blocks)] = outputs[:, :size]
    for block in blocks:
        part = outputs[:, at : at + len(block) ** 2]
        covariance[np.ix_(np.arange(len(outputs)), block, block)] = part.reshape(-1, len(block), len(block))
        at += len(block) ** 2
    assert at == outputs.shape[1]
    return mean, covariance


def deviations(case: Case, loglik: np.ndarray, outputs: np.ndarray, truth: Reference) -> dict[str, float]:
    """Largest deviations, each relative to the scale of its quantity."""
    mean, covariance = moments(case, outputs)
    std = np.sqrt(np.maximum(np.diagonal(truth.covariance, axis1=1, axis2=2), 0.0))
    size = np.maximum(np.abs(truth.mean), std).max(axis=0)
    spread = std.max(axis=0)
    spread = np.where(spread > 1e-20 * size, spread, size)  # EK0 knows the derivative for certain
    drift = np.abs(covariance - truth.covariance) / np.outer(spread, spread)
    return {
        "loglik": float(np.max(np.abs(loglik - np.nan_to_num(truth.loglik)) / (1 + np.abs(np.nan_to_num(truth.loglik))))),
        "mean": float(np.max(np.abs(mean - truth.mean) / size)),
        "covariance": float(np.nanmax(drift)),
    }


def check(case: Case, linearisation: Linearisation, compiled: bool = False) -> None:
    """Compare log-likelihood and moments with the reference."""
    truth = expected(case, linearisation)
    worst = deviations(case, package(case, "loglik", compiled), package(case, "moments", compiled), truth)
    assert max(worst.values()) < TOLERANCE, worst


KNOWN = [
    # Every order, and every way the input may go between the samples.
    Case("oscillator, acceleration", EK1, 2, missing="channels"),
    Case("oscillator, acceleration", EK1, 3, "foh", substeps=3),
    Case("oscillator, acceleration", EK1, 4, "bl", missing="ends"),
    Case("oscillator, acceleration", EK1, 4, "bl", ("nine",), periodic=True, missing="rows"),
    Case("oscillator", EK1, 5, "zoh", ("gap",), 3, missing="rows"),
    Case("oscillator", EK1, 6, "foh", ("uneven",), missing="ends"),
    Case("oscillator", EK1, 5, "bl", ("nine",)),
    Case("lag", EK1, 1, "zoh", substeps=3),
    Case("lag", EK1, 6, "zoh", ("gap",)),
    Case("third", EK1, 3, "zoh", ("uneven",)),
    Case("third", EK1, 4, "foh", missing="channels"),
    Case("unforced", EK1, 3, times=("gap",), substeps=3),
    # Coupled chains.
    Case("mixed", EK1, 2, "zoh", substeps=3, missing="channels"),
    Case("mixed", EK1, 3, "foh", ("gap",), 3, missing="rows"),
    Case("mixed", EK1, 2, "bl", ("uneven",)),
    Case("two", EK1, 2, "zoh", missing="channels"),
    Case("first-order form", EK1, 1, "zoh", substeps=3),
    Case("first-order form", EK1, 2, "foh", ("uneven",)),
    # Records that restart, of another sampling rate too, and one of a single sample.
    Case("oscillator", EK1, 3, "zoh", ("uniform", "uniform"), 3, missing="ends"),
    Case("mixed", EK1, 2, "foh", ("uniform", "gap"), 1, missing="rows"),
    Case("oscillator", EK1, 2, "zoh", ("one", "uneven", "one")),
    # Silverbox: mass 5e-6, so that the derivatives span twelve orders of magnitude.
    Case("silverbox", EK1, 3, "zoh", substeps=3),
    Case("silverbox", EK1, 4, "bl", missing="channels", step=0.45),
    # EK0.
    Case("oscillator, acceleration", EK0, 2, "zoh", substeps=3, missing="channels"),
    Case("oscillator", EK0, 4, "foh", ("gap",)),
    Case("oscillator", EK0, 5, "bl"),
    Case("lag", EK0, 6, "foh"),
    Case("lag", EK0, 1, "bl", ("uneven",)),
    Case("mixed", EK0, 2, "zoh", ("uneven",), 3, missing="rows"),
    Case("two", EK0, 2, "foh", missing="channels"),
    Case("silverbox", EK0, 4, "zoh", substeps=3),
    # Relations.
    Case("closed", EK1, 3, "zoh", substeps=3, missing="channels"),
    Case("closed", EK0, 3, "foh", ("uneven",), missing="rows"),
    Case("tied", EK1, 4, "zoh", ("gap", "uniform"), 3),
    Case("tied twice", EK1, 2, "foh", ("uneven",), missing="channels"),
]
FREE = [
    Case("oscillator", EK1, 2, "zoh", uncertain=(0, 1), missing="ends"),
    Case("oscillator, acceleration", EK1, 4, "foh", ("gap",), 3, uncertain=(1,), missing="channels"),
    Case("oscillator, acceleration", EK1, 5, "bl", uncertain=(0, 1)),
    Case("lag", EK1, 3, "zoh", ("uneven", "uniform"), 1, uncertain=(0,), missing="rows"),
    Case("mixed", EK1, 2, "zoh", substeps=3, uncertain=(0, 1, 2), missing="channels"),
    Case("mixed", EK1, 2, "foh", ("uneven",), uncertain=(1,)),
    Case("two", EK1, 2, "bl", uncertain=(0, 1, 2, 3), missing="channels"),
    Case("silverbox", EK1, 4, "zoh", uncertain=(0, 1), missing="ends"),
    Case("oscillator", EK0, 3, "zoh", substeps=3, uncertain=(0, 1)),
    Case("mixed", EK0, 2, "foh", ("gap",), uncertain=(0, 2), missing="rows"),
    Case("oscillator", EK1, 3, "zoh", uncertain=(0, 1), missing="all"),
    Case("closed", EK1, 2, "zoh", ("uneven", "uniform"), 3, uncertain=(0, 1, 2), missing="channels"),
    Case("closed", EK0, 2, "foh", uncertain=(0, 1, 2)),
    Case("tied", EK1, 3, "bl", uncertain=(0, 1), missing="ends"),
    Case("tied", EK1, 3, "foh", uncertain=(1,), missing="rows"),
    Case("tied twice", EK1, 2, "zoh", uncertain=(0, 1, 2, 3), missing="channels"),
]
BLOCK = [
    # Exact: one chain, chains that do not see each other, EK0.
    Case("oscillator, acceleration", EK1, 4, "zoh", substeps=3, covariance="block", missing="channels"),
    Case("oscillator", EK1, 3, "foh", ("gap",), covariance="block", uncertain=(0, 1)),
    Case("decoupled", EK1, 3, "zoh", ("uneven",), 3, covariance="block", missing="channels"),
    Case("decoupled", EK1, 2, "foh", covariance="block", uncertain=(0, 1, 2)),
    Case("mixed, local", EK0, 3, "zoh", substeps=3, covariance="block", missing="channels"),
    Case("two, local", EK0, 4, "foh", ("gap",), covariance="block"),
    Case("two, local", EK0, 2, "zoh", covariance="block", uncertain=(0, 1, 2, 3), missing="ends"),
]
APPROXIMATE = [
    Case("mixed, local", EK1, 3, "zoh", ("uneven",), 3, covariance="block", missing="channels"),
    Case("two, local", EK1, 4, "foh", covariance="block", missing="rows"),
    Case("mixed, local", EK1, 2, "bl", covariance="block", uncertain=(0, 1, 2)),
]
COMPILED = [
    Case("oscillator, acceleration", EK1, 4, "zoh", ("gap", "uniform"), 3, missing="channels"),
    Case("mixed", EK1, 2, "foh", substeps=3, uncertain=(0, 2), missing="channels"),
    Case("two, local", EK0, 3, "bl", covariance="block", missing="ends"),
    Case("silverbox", EK1, 3, "zoh", substeps=3),
]


@pytest.mark.parametrize("case", KNOWN, ids=str)
def test_known_start(case: Case) -> None:
    """Would fail for a wrong prior, start, residual, jump transfer, gain, missing value, restart or unit."""
    check(case, linearisation_of(case))


@pytest.mark.parametrize("case", FREE, ids=str)
def test_uncertain_start(case: Case) -> None:
    """Would fail if the ODE were evidence on the initial state, or the data were none."""
    check(case, linearisation_of(case))


@pytest.mark.parametrize("case", BLOCK, ids=str)
def test_block_form_where_it_is_exact(case: Case) -> None:
    """Would fail if the block form dropped more than the covariance between chains."""
    check(case, linearisation_of(case))


@pytest.mark.parametrize("case", APPROXIMATE, ids=str)
def test_block_form_of_coupled_chains(case: Case) -> None:
    """Would fail if the block form of EK1 were not the filter with the block-diagonal Jacobian (and exact residuals)."""
    check(case, "ek1 own chain")
    ek1 = expected(case, "ek1")
    assert not np.allclose(expected(case, "ek1 own chain").loglik, ek1.loglik, rtol=1e-6, equal_nan=True)


@pytest.mark.parametrize("case", [case for case in KNOWN if not SYSTEMS[case.system].relations], ids=str)
def test_given_the_ode_everywhere(case: Case) -> None:
    """Would fail if the density were not that of the record given the ODE at all times, sample by sample."""
    linear, records, settings = prepare(case)
    truth = [everywhere(linear, s, r, r.output_matrix, linearisation_of(case)) for r, s in zip(records, settings, strict=True)]
    problem = Problem.build(linear.system, case.solver(order=case.order, diffusion=1.0, covariance=case.covariance), records)
    problem = problem.everywhere()
    y = np.concatenate([r.output_matrix for r in records])
    outputs, _ = problem.run(y, unknowns(linear, settings), problem.data(records, case.substeps))
    found, expected = outputs.eval(mode=PYTHON).sum(axis=1), np.concatenate(truth)
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_compiled(case: Case) -> None:
    """Would fail if machine code gave anything but what the interpreted program gives."""
    check(case, linearisation_of(case), compiled=True)


@pytest.mark.parametrize("case", [case for case in (*KNOWN, *FREE, *COMPILED) if case.covariance == "dense"], ids=str)
def test_loops(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would fail if the algebra of large filters were not that of small ones, where that is not zero by its form either."""
    monkeypatch.setattr(options, "UNROLLED", 0)
    check(case, linearisation_of(case), compiled=case in COMPILED)


@pytest.mark.parametrize("case", [*BLOCK, *APPROXIMATE, COMPILED[2]], ids=str)
def test_loop_over_chains(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would fail if many blocks were not predicted and conditioned as few are."""
    monkeypatch.setattr(options, "UNROLLED_CHAINS", 0)
    check(case, "ek1 own chain" if case in APPROXIMATE else linearisation_of(case), compiled=case in COMPILED)


@pytest.mark.parametrize(
    "case", [FREE[4], COMPILED[0], Case("oscillator", EK0, 2, "foh", uncertain=(1,), missing="rows")], ids=str
)
def test_innovations(case: Case) -> None:
    """Would fail if innovations or their standard deviations were those for a known start, or outputs were mixed up."""
    truth = expected(case, linearisation_of(case))
    outputs = package(case, "innovations")
    z, s = outputs[:, 0::2], outputs[:, 1::2]
    seen = ~np.isnan(truth.loglik)
    assert np.array_equal(np.isnan(z), ~seen)
    np.testing.assert_allclose(s[seen], truth.deviation[seen], rtol=TOLERANCE)
    scale = np.abs(prepare(case)[1][0].output_matrix[~np.isnan(prepare(case)[1][0].output_matrix)]).max()
    np.testing.assert_allclose(z[seen], truth.innovation[seen], rtol=TOLERANCE, atol=TOLERANCE * scale)


@pytest.mark.parametrize(
    "case",
    [
        Case("oscillator, acceleration", EK1, 3, "zoh", ("uneven",), 3, missing="channels"),
        Case("oscillator", EK0, 2, "foh", substeps=3),
        Case("mixed", EK1, 2, "foh", ("gap",)),
        Case("two, local", EK0, 3, "zoh", covariance="block"),
    ],
    ids=str,
)
@pytest.mark.parametrize("looped", [False, True])
def test_dynamic_diffusion(case: Case, looped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would fail if the diffusion of a step were not z^2 over what unit diffusion lets the residual be."""
    if looped:
        monkeypatch.setattr(options, "UNROLLED_CHAINS", 0)
    linear, [record], [setting] = prepare(case)
    dynamic = setting._replace(diffusion=None)
    truth = reference(linear, dynamic, record, linearisation_of(case), recursive=True)
    loglik, outputs = (package(case, output, diffusion="dynamic") for output in ("loglik", "moments"))
    worst = deviations(case, loglik, outputs, truth)
    assert max(worst.values()) < TOLERANCE, worst


@pytest.mark.parametrize(
    "case",
    [
        Case("oscillator", EK1, 3, "zoh", substeps=3),
        Case("oscillator", EK0, 4, "foh", ("gap",), uncertain=(0, 1)),
        Case("mixed", EK0, 2, "foh", ("uniform", "uneven"), 3),
        Case("two", EK0, 3, "bl"),
        Case("decoupled", EK1, 2, "zoh", ("uneven",), 3),
        Case("two", EK1, 3, "zoh", substeps=3),
        Case("silverbox", EK1, 4, "foh", step=0.45),
        Case("tied", EK1, 3, "zoh", ("uneven",), 3, uncertain=(0, 1)),
        Case("tied", EK0, 2, "foh"),
        Case("closed", EK1, 2, "zoh", substeps=3, uncertain=(0, 1, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("looped", [False, True])
def test_calibration(case: Case, looped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Would fail if the diffusion were not the mean of z^2 / s of each chain over all substeps of all records.

    Of coupled chains the package takes the variances of the block-diagonal filter, on which this reference is built.
    """
    if looped:
        monkeypatch.setattr(options, "UNROLLED", 0)
    linear, records, settings = prepare(case)
    problem = Problem.build(linear.system, case.solver(order=case.order), records, case.uncertain)
    data = problem.data(records, case.substeps)
    diffusion = problem.calibrate(unknowns(linear, settings), data).eval(mode=PYTHON)
    coupled = case.solver is EK1 and len(linear.chains) > 1
    kind: Linearisation = "ek1 own chain" if coupled else linearisation_of(case)
    parts = [mean_squares(linear, s, r, kind) for r, s in zip(records, settings, strict=True)]
    total = sum(average * count for average, count in parts) / sum(count for _, count in parts)
    np.testing.assert_allclose(diffusion, np.sqrt(total), rtol=TOLERANCE)
    # With this diffusion the residuals are as large as they should be: nothing is left to calibrate.
    assert np.all(diffusion > 0)


@pytest.mark.parametrize(
    "case", [FREE[4], BLOCK[0], Case("oscillator", EK1, 2, "zoh", ("uniform", "gap"), uncertain=(1,))], ids=str
)
def test_draws_have_the_density_of_the_likelihood(case: Case) -> None:
    """Would fail if a random record were drawn from anything but the density that is evaluated, output after output."""
    linear, records, settings = prepare(case)
    solver = case.solver(order=case.order, diffusion=1.0, covariance=case.covariance)
    problem = Problem.build(linear.system, solver, records, case.uncertain)
    data = problem.data(records, case.substeps)
    normal = np.random.default_rng(0).normal(size=(len(data.counts), len(linear.C)))
    y = problem.run(normal, unknowns(linear, settings), data, "draw")[0].eval(mode=PYTHON)
    z = problem.run(y, unknowns(linear, settings), data, "innovations")[0].eval(mode=PYTHON)
    np.testing.assert_allclose(z[:, 0::2] / z[:, 1::2], normal, rtol=1e-8, atol=1e-8)


def test_reference_agrees_with_itself() -> None:
    """Would fail if the joint Gaussian and the Kalman recursion of the reference were not the same filter."""
    for case in (Case("mixed", EK1, 2, "zoh", missing="channels"), FREE[4]):
        linear, [record], [setting] = prepare(case)
        recursive = reference(linear, setting, record, "ek1", recursive=True)
        for a, b in zip(expected(case, "ek1"), recursive, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * np.nanmax(np.abs(b)))


def test_known_start_is_the_limit_of_an_uncertain_one() -> None:
    """Would fail if a spread of zero were a special case."""
    case = Case("oscillator", EK1, 3, "zoh", missing="ends")
    linear, [record], [setting] = prepare(case)
    problem = Problem.build(linear.system, EK1(order=3, diffusion=1.0), [record], (0, 1))
    data = problem.data([record], 1)
    loglik, _ = problem.run(record.output_matrix, unknowns(linear, [setting]), data)
    assert not np.any(setting.x0_std)
    np.testing.assert_allclose(loglik.eval(mode=PYTHON), package(case, "loglik"), rtol=1e-12)
