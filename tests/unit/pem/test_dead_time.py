"""Whether a fit says that its inputs act later or earlier than the record has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pm_sysid as sid
from pm_sysid.pem.dead_time import DeadTime, dead_time
from pm_sysid.pem.one_more import Directions
from pm_sysid.pem.uneven_noise import samples

TRUTH, GUESS = {"k": 4.0, "c": 0.4}, {"k": 3.0, "c": 0.3}
OSCILLATOR = sid.System(
    lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * x.z),
    states=("z", "v"),
    inputs=("F",),
    params=("k", "c"),
    observe=lambda t, x, dx, u, p: x.z,
)


def record(late: int, seed: int = 0, noise: float = 0.05, n: int = 300, sensor: float = 0.0) -> sid.TimeSeries:
    """A force that is held for 15 samples, and acts so many samples later than the record has it."""
    rng, t = np.random.default_rng(seed), 0.1 * np.arange(n)
    force = np.repeat(rng.uniform(0.0, 5.0, n // 15), 15)
    acts = force[np.clip(np.arange(n) - late, 0, n - 1)]
    y = sid.simulate(OSCILLATOR, sid.TimeSeries(t, acts, intersample="zoh"), TRUTH, x0=0.0)["y"].to_numpy()
    return sid.TimeSeries(t, force, y + noise * y.std() * rng.standard_normal(n), inputs="F", intersample="zoh")


def fit(data: Any, **options: Any) -> sid.PEMResult:
    return sid.fit_pem(OSCILLATOR, data, GUESS, progressbar=False, **options)


def found_in(result: sid.PEMResult) -> DeadTime | None:
    unknowns = result.setup.unknowns
    directions = Directions(result.target, result.x_stderr, samples(result.target, result.x))
    return dead_time(result.target, result.x, result.x_stderr, unknowns.lower, unknowns.upper, directions)


@pytest.mark.parametrize("late", [-3, -1, 1, 2, 5])
@pytest.mark.parametrize("objective", ["mse", "likelihood"])
def test_it_is_found_to_the_sample_and_moves_the_unknowns_to_the_truth(late: int, objective: Any) -> None:
    result = fit(record(late), objective=objective)
    found = found_in(result)
    assert found is not None and found.samples == late and found.seconds == pytest.approx(0.1 * late)
    # As far as steps of Newton lead.
    np.testing.assert_allclose((result.x + found.step)[:2], list(TRUTH.values()), atol=0.05)
    when = f"{abs(late)} sample{'s' if abs(late) > 1 else ''} ({0.1 * abs(late):.3g} s) {'later' if late > 0 else 'earlier'}"
    # A delay of the only sensor, if it is a short one, is the same.
    assert not result.success and any(w in result.message for w in (f"if F acts {when}", "shows a delay of y")), result.message


def test_records_with_several_inputs_are_shifted_together() -> None:
    two = sid.System(
        lambda t, x, u, p: (x.v, u.F + u.G - p.c * x.v - p.k * x.z),
        states=("z", "v"),
        inputs=("F", "G"),
        params=("k", "c"),
        observe=lambda t, x, dx, u, p: x.z,
    )
    data = record(3)
    u = np.stack([data.u, np.zeros(300)], axis=1)
    result = sid.fit_pem(two, data.replace(u=u, inputs=("F", "G")), GUESS, progressbar=False)
    assert not result.success and "if F and G act 3 samples (0.3 s) later" in result.message


@pytest.mark.parametrize("seed", range(5))
def test_a_right_record_has_none(seed: int) -> None:
    result = fit(record(0, seed))
    assert found_in(result) is None and result.success


def test_noise_that_is_correlated_is_no_dead_time() -> None:
    """By the likelihood of white noise shifts gain and lose many nats by chance."""
    for seed in range(5):
        data, e = record(0, seed, noise=0.0), np.zeros(300)
        steps = np.random.default_rng(seed).standard_normal(300)
        for i in range(1, 300):
            e[i] = 0.95 * e[i - 1] + np.sqrt(1 - 0.95**2) * steps[i]
        assert found_in(fit(data.replace(y=data.y + 0.3 * data.y.std() * e))) is None


def test_where_a_fit_fails_for_another_reason_it_is_named_too() -> None:
    """Fifteen samples are more than half a period: no optimum is a good one."""
    result = fit(record(15, n=600))
    assert not result.success and "if F acts" in result.message and "Shift the input" in result.message


@pytest.mark.parametrize("change", ["uneven times", "no input"])
def test_other_records_are_left_alone(change: str) -> None:
    data = record(2)
    if change == "no input":
        free = sid.System(
            lambda t, x, u, p: (x.v, -p.c * x.v - p.k * x.z), states=("z", "v"), params=("k", "c"),
            observe=lambda t, x, dx, u, p: x.z,
        )  # fmt: skip
        y = np.exp(-0.2 * data.t) * np.cos(2.0 * data.t) + 0.02 * np.random.default_rng(0).standard_normal(300)
        assert found_in(sid.fit_pem(free, sid.TimeSeries(data.t, None, y), GUESS, progressbar=False)) is None
        return
    t = data.t + 0.02 * np.random.default_rng(0).uniform(-1.0, 1.0, 300)
    assert found_in(fit(data.replace(t=t))) is None
