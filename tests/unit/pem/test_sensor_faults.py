"""Offsets, drifts and delays of sensors that a fit knows nothing of, against fits in which they are parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.pem import sensor_faults
from pm_sysid.pem.one_more import Directions
from pm_sysid.pem.sensor_faults import Fault, sensor_fault
from pm_sysid.pem.uneven_noise import samples
from support import pem_cases

TRUTH = {"m": 1.0, "c": 1.0, "k": 150.0}
GUESS = {"m": 1.5, "c": 0.6, "k": 220.0}
T = np.arange(300) / 50.0


def oscillator(*more: str) -> sid.System:
    """With an offset and a drift of its sensor where these are named."""

    def observe(t: Any, x: Any, dx: Any, u: Any, p: Any) -> Any:
        return x.z + (p.offset if "offset" in more else 0.0) + (p.drift * (t / T[-1] - 0.5) if "drift" in more else 0.0)

    return sid.System(
        lambda t, x, u, p: (x.v, (u.F - p.c * x.v - p.k * x.z) / p.m),
        states=("z", "v"),
        inputs=("F",),
        params=("m", "c", "k", *more),
        observe=observe,
    )


def record(seed: int, added: Any = 0.0, noise: float = 0.1, late: float = 0.0, mean: float = 5.0) -> sid.TimeSeries:
    """Faults and noise in standard deviations of the output, and a delay in seconds."""
    rng = np.random.default_rng(seed)
    force = 20.0 * np.convolve(rng.standard_normal(T.size + 4), np.ones(5) / 5, "valid") + mean
    data = sid.TimeSeries(T, force, None, inputs="F", intersample="foh")
    fine = np.arange(20 * (T.size - 1) + 1) / 1000.0
    z = sid.simulate(oscillator(), data.replace(t=fine, u=np.interp(fine, T, force)), TRUTH, x0=0.0, substeps=1)["y"].to_numpy()
    y = z[np.maximum(20 * np.arange(T.size) - round(1000 * late), 0)]
    return data.replace(y=y + y.std() * (added + noise * rng.standard_normal(T.size)))


def fit(system: sid.System, data: Any, **options: Any) -> sid.PEMResult:
    guess = GUESS | {name: 0.0 for name in system.params if name not in GUESS}
    return sid.fit_pem(system, data, guess, progressbar=False, **options)


def fault_of(found: sid.PEMResult) -> Fault | None:
    return sensor_fault(found.target, found.x, Directions(found.target, found.x_stderr, samples(found.target, found.x)))


@pytest.mark.parametrize("fault", ["offset", "drift"])
@pytest.mark.parametrize("objective", ["mse", "likelihood"])
def test_size_and_moves_are_those_of_a_fit_with_the_fault_as_a_parameter(
    fault: str, objective: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensor_faults, "MOVED", 0.0)  # a drift moves little
    line = T / T[-1] - 0.5
    data = record(1, 0.2 if fault == "offset" else 1.5 * line)
    without, with_it = fit(oscillator(), data, objective=objective), fit(oscillator(fault), data, objective=objective)
    found = fault_of(without)
    assert found is not None
    assert f"{'an offset' if fault == 'offset' else 'a drift'} of y (" in found.words
    size = float(found.words.partition("(")[2].split(" ")[0])
    assert size == pytest.approx(with_it.p[fault], abs=0.15 * abs(with_it.p[fault]) + 1e-4)
    name = without.names[found.seen.unknown]
    i = with_it.names.index(name)
    assert found.seen.moved == pytest.approx(
        abs(with_it.x[i] - without.x[found.seen.unknown]) / without.x_stderr[found.seen.unknown], rel=0.25
    )
    assert "between the samples" not in with_it.message and "The record shows" not in with_it.message


def test_an_offset_that_moves_an_unknown_is_no_success() -> None:
    found = fit(oscillator(), record(1, 0.2, noise=0.2))
    assert not found.success
    assert (
        "The record shows an offset of y" in found.message
        and "which the model lacks; with it, k would move by" in found.message
    )


def test_a_delay() -> None:
    found = fit(oscillator(), record(3, late=0.006, noise=0.02))
    assert "The record shows a delay of y (0.00" in found.message


@pytest.mark.parametrize("seed", range(3))
def test_a_delay_that_colours_the_innovations_is_no_success(seed: int) -> None:
    """By a whole sample: with it they are white, so that it is what has coloured them, and the unknowns are far off."""
    rng, t = np.random.default_rng(seed), 0.1 * np.arange(150)
    force = sum(a * np.sin(w * t + rng.uniform(0, 6)) for a, w in ((1.0, 0.7), (0.6, 2.2), (0.6, 4.3)))
    data = sid.TimeSeries(t, force, None, inputs="F")
    y = sid.simulate(pem_cases.OSCILLATOR, data, pem_cases.TRUTH, x0=0.0)["y"].to_numpy()
    y = y + 0.1 * y.std() * rng.standard_normal(t.size)
    late = data.replace(y=np.concatenate([y[:1], y[:-1]]))
    found = sid.fit_pem(pem_cases.OSCILLATOR, late, pem_cases.GUESS, progressbar=False)
    assert max(abs(found.p[n] - v) / found.stderr[n] for n, v in pem_cases.TRUTH.items()) > 3.0
    assert "The record shows a delay of y (0." in found.message and "not white" in found.message
    assert not found.success


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_said_of_a_sound_sensor(seed: int) -> None:
    data, other = record(seed), record(100 + seed, mean=0.0)
    for found in (fit(oscillator(), data), fit(oscillator(), [data, other])):
        assert "The record shows" not in found.message and found.success


def test_an_offset_in_one_of_two_records_is_named() -> None:
    found = fit(oscillator(), [record(7, mean=0.0), record(8, 0.5)])
    assert "The record shows an offset of y in record 1 (" in found.message


def test_a_filter_with_process_noise_sees_an_offset() -> None:
    """Which it follows in part: what an offset makes of innovations is what the filter makes of it."""
    predictor = sid.ExtendedKalman(Q={"v": 0.02}, R={"y": 0.01})
    options: dict[str, Any] = {"predictor": predictor, "x0": 0.0, "objective": "likelihood"}
    sound, off = record(9, noise=0.05), record(9, 0.8, noise=0.05)
    assert "The record shows" not in fit(oscillator(), sound, **options).message
    without, with_it = fit(oscillator(), off, **options), fit(oscillator("offset"), off, **options)
    found = fault_of(without)
    assert found is not None
    assert float(found.words.partition("(")[2].split(" ")[0]) == pytest.approx(with_it.p["offset"], rel=0.3)


@pytest.mark.parametrize("n", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 8, 20))])
def test_short_records_do_not_look_like_faults(n: int) -> None:
    """Few values, which the start of a record follows, are quiet; and of one sample nothing far away is worse."""
    for seed in range(8):
        found = fit(oscillator(), [record(seed), record(100 + seed)[:n]])
        assert "The record shows" not in found.message


@pytest.mark.slow
def test_a_step_of_a_fast_lag_is_no_delay() -> None:
    """A few samples after the step carry all that a delay changes."""
    system = sid.System(
        lambda t, x, u, p: p.rate * (p.gain * u.F - x.y),
        states=("y",),
        inputs=("F",),
        params=("rate", "gain"),
        observe=lambda t, x, dx, u, p: x.y,
    )
    t = 0.1 * np.arange(120)
    data = sid.TimeSeries(t, (t > 2.0).astype(float), None, inputs="F", intersample="zoh")
    y = sid.simulate(system, data, {"rate": 6.0, "gain": 2.0}, x0=0.0, substeps=8)["y"].to_numpy()
    for seed in range(30):
        noisy = data.replace(y=y + 0.05 * y.std() * np.random.default_rng(seed).standard_normal(120))
        found = sid.fit_pem(system, noisy, {"rate": 4.0, "gain": 1.5}, progressbar=False)
        assert found.success and "The record shows" not in found.message


@pytest.mark.parametrize("marked", [False, True])
def test_samples_that_a_sensor_has_cut_off_are_said_and_no_success_where_they_move_an_unknown(marked: bool) -> None:
    data = record(1)
    y = data.output_matrix[:, 0]
    top = 0.5 * y.max()
    found = fit(oscillator(), data.replace(y=np.where(y > top, np.nan if marked else top, y)))
    assert found.success == marked
    assert ("samples of y are exactly its largest value" in found.message) != marked
    assert ("Without the samples at a limit, " in found.message) != marked
    mild = fit(oscillator(), data.replace(y=np.minimum(y, 0.95 * y.max())))
    assert mild.success


def test_how_far_unknowns_move_without_some_values() -> None:
    """Against a fit without them."""
    data = record(2)
    y = data.output_matrix[:, 0].copy()
    y[50:90] += 0.5 * y.std()
    found = fit(oscillator(), data.replace(y=y))
    left_out = np.zeros(len(y), dtype=bool)
    left_out[50:90] = True
    unknown, moved, there = Directions(found.target, found.x_stderr, samples(found.target, found.x)).without(left_out)
    y[left_out] = np.nan
    others = fit(oscillator(), data.replace(y=y))
    by = np.abs(others.x - found.x) / found.x_stderr
    assert 0.5 * by[unknown] < moved < by[unknown]  # less what may be chance
    rest = samples(others.target, others.x).standardised
    np.testing.assert_allclose(there[~left_out], rest, atol=0.05 * rest.std())


LAG = sid.System(
    lambda t, x, u, p: p.rate * (p.gain * u.F - x.z),
    states=("z",),
    inputs=("F",),
    params=("rate", "gain"),
    observe=lambda t, x, dx, u, p: x.z,
)


def lag_record(force: np.ndarray, seed: int, noise: float) -> sid.TimeSeries:
    data = sid.TimeSeries(0.05 * np.arange(len(force)), force, None, inputs="F", intersample="zoh")
    y = sid.simulate(LAG, data, {"rate": 1.0, "gain": 2.0}, x0=0.0)["y"].to_numpy()
    return data.replace(y=y + noise * np.random.default_rng(seed).standard_normal(len(force)))


@pytest.mark.parametrize("seed", range(3))
def test_a_response_that_has_settled_on_a_step_of_the_converter_is_at_no_limit(seed: int) -> None:
    data = lag_record(np.where(np.arange(200) > 20, 1.0, 0.0), seed, 0.004)
    data = data.replace(y=np.round(data.output_matrix[:, 0] / 0.02) * 0.02)
    found = sid.fit_pem(LAG, data, {"rate": 0.5, "gain": 1.0}, progressbar=False)
    assert found.success and "Without the samples" not in found.message


def test_a_limit_in_one_of_two_records_is_seen_beside_a_record_of_one_sample() -> None:
    rng = np.random.default_rng(3)
    force = 5 * np.convolve(rng.standard_normal(219), np.ones(20) / 5, "valid")
    sound, cut = lag_record(force, 1, 0.02), lag_record(force[::-1], 2, 0.02)
    y = cut.output_matrix[:, 0]
    cut = cut.replace(y=np.minimum(y, 0.4 * y.max()))
    for others in ([sound], [cut[:1]]):
        found = sid.fit_pem(LAG, [*others, cut], {"rate": 0.5, "gain": 1.0}, progressbar=False)
        assert not found.success and "Without the samples at a limit" in found.message
    assert (
        "samples of y in record 1 are exactly its largest value"
        in sid.fit_pem(LAG, [sound, cut], {"rate": 0.5, "gain": 1.0}, progressbar=False).message
    )


def test_a_model_that_ends_at_the_limit_itself_is_right() -> None:
    saturating = sid.System(
        lambda t, x, u, p: p.rate * (p.gain * u.F - x.z),
        states=("z",),
        inputs=("F",),
        params=("rate", "gain", "limit"),
        observe=lambda t, x, dx, u, p: pt.clip(x.z, -p.limit, p.limit),
    )
    force = np.convolve(np.random.default_rng(1).standard_normal(219), np.ones(20) / 5, "valid")
    data = lag_record(force, 3, 0.02)
    y = data.output_matrix[:, 0]
    top = 0.6 * np.abs(y).max()
    guess = {"rate": 0.7, "gain": 1.5, "limit": 0.9 * top}
    found = sid.fit_pem(saturating, data.replace(y=np.clip(y, -top, top)), guess, progressbar=False)
    assert found.success and found.p["limit"] == pytest.approx(top, rel=0.01)
    plain = sid.fit_pem(LAG, data.replace(y=np.clip(y, -top, top)), {"rate": 0.7, "gain": 1.5}, progressbar=False)
    assert not plain.success
