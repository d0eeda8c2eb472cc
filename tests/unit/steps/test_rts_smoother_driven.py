"""Smoothing and drawing an input that is a process, against the dense Gaussian of its kernel in 60 digits."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest

from pm_sysid.posterior.passes import every_substep
from pm_sysid.solve.options import EK1
from pm_sysid.steps.rts_smoother import Smoother
from support.combined import combined
from support.dense import DIGITS
from support.driven import (
    APART,
    OSCILLATOR,
    PRIORS,
    TWO,
    expected,
    problem_of,
    record_of,
    reference,
    setting_of,
    unknowns_of,
)
from support.linear_cases import PYTHON

TOLERANCE = 1e-8
CASES = [
    ("oscillator", "ou", 3, (), 2, "zoh"),
    ("oscillator", "matern 3/2", 3, (), 2, "zoh"),
    ("oscillator", "matern 5/2", 3, (), 2, "zoh"),
    ("oscillator", "periodic", 3, (), 2, "zoh"),
    ("oscillator", "trend", 3, (), 2, "zoh"),
    ("two", "matern 3/2", 2, (0, 1, 2), 1, "foh"),
]


SYSTEMS = {"two": TWO, "oscillator": OSCILLATOR, "apart": APART}


def run(case: Any, normal: Any = None, **options: Any) -> tuple[Any, Any, Smoother, np.ndarray, np.ndarray]:
    """Smoothed components, or drawn ones for each set of normal numbers; ``options`` of the solver."""
    name, prior_name, order, free, substeps, intersample = case
    linear, prior = SYSTEMS[name], PRIORS[prior_name]()
    record, setting = record_of(linear, intersample), setting_of(linear, order, free, substeps)
    problem, values = problem_of(linear, EK1(order=order, **({"diffusion": 1.0} | options)), record, prior, free)
    data = problem.data([record], substeps)
    grid = every_substep(problem, data, record.output_matrix)
    table = problem.run(grid.y, unknowns_of(linear, setting, values), grid.data, "states")[0].eval(mode=PYTHON)
    smoother = Smoother(problem.system, problem.form)
    trace = smoother.unpack(table)
    sizes = smoother.sizes(data.scale)
    [one] = problem.system.latents
    weights = np.array(one.kind.value([float(v) for v in values]))
    # components level by level, then the value of the process
    pick = np.zeros((len(smoother.level) + 1, len(sizes)))
    order_ = np.lexsort((smoother.chain, smoother.level))
    pick[np.arange(len(order_)), order_] = sizes[order_]
    pick[-1, smoother.processes] = weights
    if normal is None:
        mean, root = smoother.run(grid.path, trace)
        return pick @ mean, pick @ root, smoother, sizes, np.zeros(0)
    basis = np.eye(len(grid.y) * (len(smoother.level) + smoother.n_new)).reshape(
        -1, len(grid.y), len(smoother.level) + smoother.n_new
    )
    zero = sum(smoother.run(grid.path, trace, np.zeros(basis.shape[1:])))[..., 0]
    paths = np.array([sum(smoother.run(grid.path, trace, z))[..., 0] - zero for z in basis])
    return pick @ zero[..., None], paths @ pick.T, smoother, sizes, zero


@pytest.mark.parametrize("case", CASES, ids=str)
def test_moments_are_those_of_the_joint_gaussian(case: Any) -> None:
    name, prior_name, order, free, substeps, intersample = case
    truth = expected(SYSTEMS[name], prior_name, order, free, substeps, intersample)
    mean, root, *_ = run(case)
    covariance = np.einsum("tic,tjc->tij", mean[..., 1:], mean[..., 1:])
    blocks = np.einsum("tic,tjc->tij", root, root)
    compare(mean[..., 0], covariance + blocks, truth)


def compare(mean: np.ndarray, covariance: np.ndarray, truth: Any) -> None:
    spread = np.sqrt(np.einsum("titi->ti", truth.covariance)).max(axis=0)
    size = np.maximum(np.abs(truth.mean).max(axis=0), spread)
    own = np.einsum("titj->tij", truth.covariance)
    assert np.max(np.abs(mean - truth.mean) / size) < TOLERANCE
    assert np.max(np.abs(covariance - own) / np.outer(spread, spread)) < TOLERANCE


@pytest.mark.parametrize("case", CASES[1:], ids=str)
def test_paths_have_the_joint_covariance_of_all_samples(case: Any) -> None:
    name, prior_name, order, free, substeps, intersample = case
    truth = expected(SYSTEMS[name], prior_name, order, free, substeps, intersample)
    mean, paths, *_ = run(case, normal=True)
    compare_paths(mean, paths, truth)


def compare_paths(mean: np.ndarray, paths: np.ndarray, truth: Any) -> None:
    covariance = np.einsum("zti,zsj->tisj", paths, paths)
    spread = np.sqrt(np.einsum("titi->ti", truth.covariance)).max(axis=0)
    size = np.maximum(np.abs(truth.mean).max(axis=0), spread)
    assert np.max(np.abs(mean[..., 0] - truth.mean) / size) < TOLERANCE
    worst = np.abs(covariance - truth.covariance) / spread[:, None, None] / spread
    assert np.max(worst) < TOLERANCE


@pytest.mark.parametrize("free", [(), (0, 2)])
def test_blocks_of_chains_apart_are_smoothed_together(free: tuple[int, ...]) -> None:
    """What a path does to both chains is in the smoothed covariance between them."""
    case = ("apart", "matern 3/2", 2, free, 2, "zoh")
    mean, root, smoother, *_ = run(case, covariance="block")
    covariance = np.einsum("tic,tjc->tij", mean[..., 1:], mean[..., 1:])
    blocks = np.einsum("tic,tjc->tij", root, root)
    chain = np.append(smoother.chain[np.lexsort((smoother.chain, smoother.level))], -1)  # as compare has them
    compare(mean[..., 0], covariance + blocks * (chain[:, None] == chain), expected(APART, *case[1:]))


def test_paths_of_blocks_have_the_joint_covariance_of_all_samples() -> None:
    case = ("apart", "ou", 2, (), 1, "zoh")
    mean, paths, *_ = run(case, normal=True, covariance="block")
    compare_paths(mean, paths, expected(APART, *case[1:]))


def test_a_diffusion_for_each_step_is_that_of_the_filter() -> None:
    """The smoother takes what each step has found for known."""
    case = ("oscillator", "matern 3/2", 2, (1,), 2, "zoh")
    setting, record, prior = setting_of(OSCILLATOR, 2, (1,), 2), record_of(OSCILLATOR), PRIORS["matern 3/2"]()
    steps = combined(OSCILLATOR, setting._replace(diffusion=None), record, prior).intensities
    with mpmath.workdps(DIGITS):
        truth = reference(OSCILLATOR, setting, record, prior, steps)
    mean, root, *_ = run(case, diffusion="dynamic")
    spread = (np.einsum("tic,tjc->tij", a, a) for a in (mean[..., 1:], root))
    compare(mean[..., 0], sum(spread), truth)
    compare_paths(*run(case, normal=True, diffusion="dynamic")[:2], truth)
