"""One stage of a sequential run: which proposals are taken for its moves, and how long its chains are."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid
from pm_sysid.sampling.smc import algorithm
from pm_sysid.sampling.smc.algorithm import Sequential
from pm_sysid.sampling.smc.moves import autocorrelation_time
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


def curved() -> Sequential:
    """A sum of exponentials is measured: proposals fit, and about half of them are accepted."""
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 2.0, shape=3)
        pm.Normal("y", pm.math.exp(a[0]) + pm.math.exp(a[1]) * a[2] ** 2, 0.5, observed=[1.0, 2.0, 1.5, 1.0])
    return Sequential(sid.Target(model), 1000)


def test_the_last_chains_go_on_until_their_states_are_worth_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    sequential, (times, errors, costs) = curved(), tuple(dict[float, float]() for _ in range(3))
    for dearer in (0.0, algorithm.DEARER):
        monkeypatch.setattr(algorithm, "DEARER", dearer)
        rng = np.random.default_rng(1)
        state = sequential.init(sequential.draw_prior(rng))
        while not sequential.finished(state):
            state = sequential.step(state, rng)
        assert not state.walks and len(state.particles.x) == 1000
        chains = sequential.chains(state)
        assert chains.shape == (50, 20, 3)
        times[dearer] = autocorrelation_time(chains.swapaxes(0, 1))
        errors[dearer], costs[dearer] = state.variance, state.evaluations
    assert times[0.0] > 3.0 and times[algorithm.DEARER] < 1.1 * algorithm.ALIKE
    assert errors[algorithm.DEARER] < errors[0.0]  # more proposals tell the evidence better
    assert costs[algorithm.DEARER] < (1 + algorithm.DEARER) * costs[0.0]


def test_chains_that_mix_are_no_longer_and_none_is_dearer_than_half_of_the_run() -> None:
    rng = np.random.default_rng(1)
    mixed = rng.standard_normal((20, 50, 2))
    assert Sequential._longer(mixed, 1, 100.0) == 0
    stuck = np.broadcast_to(rng.standard_normal((50, 2)), (20, 50, 2))
    assert Sequential._longer(stuck, 1, 8.0) == 4 and Sequential._longer(stuck, 1, 1.0) == 0
    assert Sequential._longer(stuck, 1, 1e6) == 12  # (20 - 1) / 1.5 lengths in all
