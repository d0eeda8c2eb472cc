"""Whether a fit tells inputs that move between the samples otherwise than it was told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pm_sysid as sid
from pm_sysid.pem.between_samples import Between, other_between
from pm_sysid.pem.one_more import Directions
from pm_sysid.pem.uneven_noise import samples

TRUTH = {"m": 1.0, "c": 0.3, "k": 2.0, "k3": 1.0}
GUESS = {"m": 1.2, "c": 0.2, "k": 3.0, "k3": 0.5}
DUFFING = sid.models.duffing()


def record(seed: int, intersample: Any, dt: float = 0.25, noise: float = 0.03, fastest: float = 0.3) -> sid.TimeSeries:
    """A force of many sines up to a share of the sampling rate; the simulated displacement with noise."""
    rng, n = np.random.default_rng(seed), 150
    t, k = dt * np.arange(n), np.arange(1, int(fastest * n))
    phases = 2 * np.pi * rng.random(k.size)
    force = 2.0 * np.sqrt(2 / k.size) * np.cos(2 * np.pi * np.outer(t, k) / (n * dt) + phases).sum(axis=1)
    data = sid.TimeSeries(t, force, None, inputs="F", intersample=intersample)
    y = sid.simulate(DUFFING, data, TRUTH, x0=0.0, substeps=16)["y"].to_numpy()
    return data.replace(y=y + noise * y.std() * rng.standard_normal(n))


def fit(data: sid.TimeSeries, told: Any, **options: Any) -> sid.PEMResult:
    return sid.fit_pem(DUFFING, data.replace(intersample=told), GUESS, progressbar=False, **options)


def between(found: sid.PEMResult) -> Between | None:
    unknowns = found.setup.unknowns
    directions = Directions(found.target, found.x_stderr, samples(found.target, found.x))
    return other_between(found.target, found.x, found.x_stderr, unknowns.lower, unknowns.upper, directions)


def off(found: sid.PEMResult) -> float:
    """The largest error of a parameter, in standard errors."""
    return max(abs(found.p[n] - TRUTH[n]) / found.stderr[n] for n in TRUTH)


@pytest.mark.parametrize("true", ["zoh", "foh", "bl"])
@pytest.mark.parametrize("objective", ["mse", "likelihood"])
def test_what_is_true_is_preferred_and_what_is_told_rightly_is_not_doubted(true: Any, objective: Any) -> None:
    data = record(1, true)
    for told in ("zoh", "foh", "bl"):
        found = fit(data, told, objective=objective)
        other = between(found)
        if told == true:
            assert other is None
            assert found.success and off(found) < 3.0
            assert "between the samples" not in found.message
        else:
            assert other is not None and other.preferred
            assert f"F between the samples: intersample={other.intersample!r} explains the record better" in found.message
            if true != "zoh" and told != "zoh":
                assert other.intersample == true
                assert not found.success and off(found) > 3.0


def test_the_steps_lead_where_a_fit_with_the_other_behaviour_ends() -> None:
    data = record(2, "bl")
    told, true = fit(data, "foh"), fit(data, "bl")
    other = between(told)
    assert other is not None
    # Both likelihoods at their maxima, by the sizes of what is left.
    assert other.gain == pytest.approx(0.5 * len(data) * np.log(told.fun / true.fun), abs=0.1)
    i = other.unknown
    assert other.moved == pytest.approx(abs(true.x[i] - told.x[i]) / told.x_stderr[i], rel=0.02)


def test_what_the_record_cannot_tell_is_said_where_it_counts_and_is_no_doubt() -> None:
    """With more noise straight lines explain as much as what is true, by another damping."""
    said = []
    for seed in range(8):
        found = fit(record(seed, "bl", noise=0.1, dt=0.35), "bl")
        other = between(found)
        assert other is None or not other.preferred
        assert found.success
        if "between the samples" in found.message:
            assert other is not None and other.moved > 1.0
            assert "explains the record about as well as 'bl'" in found.message
            said.append(other)
    assert said


def test_fine_samples_and_records_without_an_input_say_nothing() -> None:
    fine = fit(record(4, "bl", dt=0.05, fastest=0.02, noise=0.05), "foh")
    assert "'bl' explains" not in fine.message
    free = sid.System(lambda t, x, u, p: -p.k * x.z, states=("z",), params=("k",), observe=lambda t, x, dx, u, p: x.z)
    t = np.linspace(0, 3, 60)
    y = np.exp(-t) + 0.02 * np.random.default_rng(0).standard_normal(t.size)
    found = sid.fit_pem(free, sid.TimeSeries(t, None, y), {"k": 0.5}, progressbar=False)
    assert between(found) is None


def with_correlated_noise(seed: int, noise: float) -> sid.TimeSeries:
    data = record(seed, "bl")
    rng, e = np.random.default_rng(seed), np.zeros(len(data))
    for i in range(1, e.size):
        e[i] = 0.9 * e[i - 1] + rng.standard_normal()
    return data.replace(y=data.output_matrix[:, 0] + noise * data.output_matrix.std() * e / e.std())


def test_coloured_innovations_make_a_preference_a_verdict_only_if_it_is_strong() -> None:
    """Likelihoods of correlated noise differ by much by chance: a weak preference is said, and the fit stays what it was."""
    clear = fit(with_correlated_noise(5, 0.05), "zoh")
    assert "not white" in clear.message and not clear.success
    assert "intersample='bl' explains the record better" in clear.message
    loud = fit(with_correlated_noise(5, 0.3), "zoh")
    assert "not white" in loud.message and loud.success


@pytest.mark.parametrize("seed", range(5))
def test_correlated_noise_is_no_reason_to_doubt_what_was_told_rightly(seed: int) -> None:
    right = fit(with_correlated_noise(seed, 0.05), "bl")
    assert right.success and "explains the record better" not in right.message
