"""Smoothing and drawing an input that is a process, against the dense Gaussian of its kernel in 60 digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pm_sysid.posterior.states import every_substep
from pm_sysid.solve.options import EK1
from pm_sysid.steps.rts_smoother import Smoother
from support.driven import OSCILLATOR, PRIORS, TWO, expected, problem_of, record_of, setting_of, unknowns_of
from support.linear_cases import PYTHON

TOLERANCE = 1e-8
CASES = [
    ("oscillator", "ou", 3, (), 2, "zoh"),
    ("oscillator", "matern 3/2", 3, (), 2, "zoh"),
    ("oscillator", "periodic", 3, (), 2, "zoh"),
    ("oscillator", "trend", 3, (), 2, "zoh"),
    ("two", "matern 3/2", 2, (0, 1, 2), 1, "foh"),
]


def run(case: Any, normal: Any = None) -> tuple[Any, Any, Smoother, np.ndarray, np.ndarray]:
    """Smoothed components, or drawn ones for each set of normal numbers."""
    name, prior_name, order, free, substeps, intersample = case
    linear, prior = {"two": TWO, "oscillator": OSCILLATOR}[name], PRIORS[prior_name]()
    record, setting = record_of(linear, intersample), setting_of(linear, order, free, substeps)
    problem, values = problem_of(linear, EK1(order=order, diffusion=1.0), record, prior, free)
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
    truth = expected({"two": TWO, "oscillator": OSCILLATOR}[name], prior_name, order, free, substeps, intersample)
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


@pytest.mark.parametrize("case", CASES[1::3], ids=str)
def test_paths_have_the_joint_covariance_of_all_samples(case: Any) -> None:
    name, prior_name, order, free, substeps, intersample = case
    truth = expected({"two": TWO, "oscillator": OSCILLATOR}[name], prior_name, order, free, substeps, intersample)
    mean, paths, *_ = run(case, normal=True)
    covariance = np.einsum("zti,zsj->tisj", paths, paths)
    spread = np.sqrt(np.einsum("titi->ti", truth.covariance)).max(axis=0)
    size = np.maximum(np.abs(truth.mean).max(axis=0), spread)
    assert np.max(np.abs(mean[..., 0] - truth.mean) / size) < TOLERANCE
    worst = np.abs(covariance - truth.covariance) / spread[:, None, None] / spread
    assert np.max(worst) < TOLERANCE
