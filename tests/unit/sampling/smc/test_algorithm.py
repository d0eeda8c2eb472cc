"""One stage of a sequential run: which proposals are taken for its moves."""

from __future__ import annotations

import numpy as np
import pymc as pm

import pm_sysid as sid
from pm_sysid.sampling.smc.algorithm import Sequential
from pm_sysid.sampling.smc.particle_state import SequentialState, Start
from pm_sysid.sampling.smc.proposals import Mixture

SMALL = 0.02  # share of a narrow mode, far from the other


def two_modes() -> Sequential:
    with pm.Model() as model:
        parts = [pm.Normal.dist(0, 1), pm.Normal.dist(8, 0.05)]
        x = pm.Mixture("x", [1 - SMALL, SMALL], parts)
        pm.Normal("y", x, 1e3, observed=np.zeros(5))
    return Sequential(sid.Target(model), 1000)


def given(sequential: Sequential, small: int, rng: np.random.Generator) -> tuple[SequentialState, np.ndarray]:
    x = rng.standard_normal((1000, 1))
    x[:small] = 8 + 0.05 * rng.standard_normal((small, 1))
    return sequential.init(Start(x, sequential.target.n_samples)), x


def test_proposals_reach_what_the_particles_know_of() -> None:
    sequential, rng, equal = two_modes(), np.random.default_rng(0), np.full(1000, 1e-3)
    broad = Mixture(np.ones(1), np.zeros((1, 1)), np.array([[[1.3]]]), 3.0)
    state, x = given(sequential, 20, rng)
    # A t distribution as wide as all particles is a thousandth as dense as the posterior in the small mode.
    assert not sequential._reaches(state, broad)
    both = Mixture.fit(x, equal, 3.0, rng, corrected=True)
    assert both.components == 2 and sequential._reaches(state, both)
    state, _ = given(sequential, 0, rng)
    assert sequential._reaches(state, broad)


def test_a_stage_whose_few_components_leave_out_particles_takes_more() -> None:
    sequential, rng = two_modes(), np.random.default_rng(1)
    state, _ = given(sequential, 20, rng)
    moved = sequential.move(state, rng)
    assert moved.components >= 2
    assert 0.005 < np.mean(moved.particles.x > 7.5) < 0.05
