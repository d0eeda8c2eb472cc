"""What a fit concludes of causes that no unknown stands for: no success, or errors that contain what they would do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.pem import conclusion
from pm_sysid.pem.conclusion import Conclusion, Lacking

BODIES = {"g": 2.0, "ga": 1.0, "C1": 50.0, "C2": 200.0}
MOTOR = {"R": 1.5, "K": 0.1, "b": 1e-3, "d": 0.02}


def bodies(leak: float = 0.0) -> sid.System:
    """Two bodies that exchange heat, the second with the surroundings; a leak of the first is not among the parameters."""
    return sid.System(
        lambda t, x, u, p: (
            (u.Q + p.g * (x.T2 - x.T1) + leak * (u.Ta - x.T1)) / p.C1,
            (p.g * (x.T1 - x.T2) + p.ga * (u.Ta - x.T2)) / p.C2,
        ),
        states=("T1", "T2"),
        inputs=("Q", "Ta"),
        params=tuple(BODIES),
        observe=lambda t, x, dx, u, p: {"T1": x.T1, "T2": x.T2},
    )


def of_bodies(seed: int, leak: float = 0.0, drift: float = 0.0) -> sid.PEMResult:
    """Temperatures with noise of 0.05 K, and a drift of both sensors; fitted without either."""
    rng, t = np.random.default_rng(seed), 5.0 * np.arange(400)
    heat = np.repeat((rng.random(20) < 0.5) * 60.0, 20)
    inputs = {"Q": heat, "Ta": 10.0 + 3.0 * np.sin(2 * np.pi * t / 1700.0 + seed)}
    data = sid.TimeSeries(t, inputs, None, intersample="zoh")
    run = sid.simulate(bodies(leak), data, BODIES, x0={"T1": 15.0, "T2": 12.0})
    y = {name: run[name].to_numpy() + 0.05 * rng.standard_normal(t.size) + drift * t / t[-1] for name in ("T1", "T2")}
    return sid.fit_pem(bodies(), data.replace(y=y), {"g": 1.0, "ga": 0.5, "C1": 100.0, "C2": 100.0}, progressbar=False)


def motor(*known: str) -> sid.System:
    """Current and speed of a motor with viscous and dry friction; what is ``known`` is no parameter."""

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        R, K, b, d = (MOTOR[name] if name in known else getattr(p, name) for name in MOTOR)
        return (u.V - R * x.i - K * x.w) / 0.01, (K * x.i - b * x.w - d * pt.tanh(2.0 * x.w)) / 0.002

    names = tuple(name for name in MOTOR if name not in known)
    observe = lambda t, x, dx, u, p: {"i": x.i, "w": x.w}  # noqa: E731
    return sid.System(dynamics, states=("i", "w"), inputs=("V",), params=names, observe=observe)


def of_motor(seed: int, gain: float) -> sid.PEMResult:
    """A record in which the voltage was measured ``gain`` times as large as it is."""
    rng, t = np.random.default_rng(seed), 0.01 * np.arange(600)
    voltage = np.repeat(rng.uniform(-12.0, 12.0, 30), 20)
    data = sid.TimeSeries(t, {"V": voltage}, None, intersample="zoh")
    run = sid.simulate(motor(*MOTOR), data, {}, x0=0.0)
    y = {name: run[name].to_numpy() + noise * rng.standard_normal(t.size) for name, noise in (("i", 0.03), ("w", 0.5))}
    measured = sid.TimeSeries(t, {"V": gain * voltage}, y, intersample="zoh")
    return sid.fit_pem(motor(), measured, {"R": 1.0, "K": 0.2, "b": 2e-3, "d": 0.01}, x0=0.0, progressbar=False)


def far(fit: sid.PEMResult, truth: dict[str, float]) -> float:
    """Standard errors by which the worst unknown is off."""
    return max(abs(fit.p[name] - value) / fit.stderr[name] for name, value in truth.items())


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 8))])
def test_a_leak_that_the_model_lacks_is_named_and_no_success(seed: int) -> None:
    """It is a difference of a state and an input, of which neither alone explains it."""
    right, leaks = of_bodies(seed), of_bodies(seed, leak=0.15)
    assert right.success and far(right, BODIES) < 4 and "The record shows" not in right.message
    assert not leaks.success and any(f"(T1 - {other})" in leaks.message for other in ("Ta", "T2"))
    assert "in the rate of change of T1" in leaks.message


@pytest.mark.slow
def test_errors_contain_a_cause_that_is_named() -> None:
    """A drift of both sensors looks like heat exchange: before errors contained it, 5 of 12 were off, and a success."""
    named = off = 0
    for seed in range(12):
        fit = of_bodies(seed, drift=0.1)
        named += "a drift of T1 and T2" in fit.message
        off += fit.success and far(fit, BODIES) > 4
    assert named >= 6 and off <= 3, (named, off)


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 6))])
def test_a_wrong_scale_of_an_input_is_no_success(seed: int) -> None:
    right, wrong = of_motor(seed, 1.0), of_motor(seed, 1.1)
    assert right.success and far(right, MOTOR) < 4
    assert not wrong.success and ("misses a part of the effect of V" in wrong.message or "the model lacks" in wrong.message)


def test_innovations_that_follow_an_input_are_no_success_where_no_cause_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for cause in ("_of_dynamics", "_of_sensors", "_of_inputs"):
        monkeypatch.setattr(Conclusion, cause, lambda *args: None)
    said = "Estimates may be off by more than any standard errors say, since the model misses a part of the effect of V. Add"
    wrong, right = of_motor(0, 1.1), of_motor(0, 1.0)
    assert not wrong.success and wrong.message.startswith(said) and "The innovations follow V" in wrong.message
    assert right.success and said not in right.message
    monkeypatch.setattr(conclusion, "MISSES", 0.0)  # by this rule, and no other one
    assert of_motor(0, 1.1).success


def test_errors_allow_for_causes_that_are_named_and_the_covariance_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cause that leaves coloured innovations is no verdict. Draws by the covariance are those of the model without it."""
    plain = of_bodies(0)
    step = np.array([0.5, -0.3, 2.0, 0.0, *[0.0] * (len(plain.names) - 4)])
    cause = Lacking(100.0, "The record shows it.", "", False, step, True)
    allow = "The standard errors allow for that."

    def with_causes(dynamics: Lacking | None, sensors: Lacking | None = None) -> sid.PEMResult:
        monkeypatch.setattr(Conclusion, "_of_dynamics", lambda *args: dynamics)
        monkeypatch.setattr(Conclusion, "_of_sensors", lambda *args: sensors)
        return of_bodies(0)

    wide = with_causes(cause)
    assert wide.success and wide.message.endswith(f"The record shows it. {allow}")
    np.testing.assert_allclose(wide.x_stderr**2, plain.x_stderr**2 + step**2, rtol=1e-6)
    np.testing.assert_allclose(wide.cov, plain.cov, rtol=1e-6)
    assert list(wide.stderr.values()) == wide.x_stderr[:4].tolist()
    # One that may be chance, and one that is not named beside a far more likely one, do nothing.
    for found in (
        with_causes(cause._replace(counts=False)),
        with_causes(cause._replace(step=0 * step), cause._replace(gain=5.0)),
    ):
        np.testing.assert_allclose(found.x_stderr, plain.x_stderr, rtol=1e-6)
    other = cause._replace(gain=99.0, words="Another.", counts=False)
    assert with_causes(cause, other).message.endswith(f"The record shows it. {allow} Or: Another.")


DECAY = sid.System(
    lambda t, x, u, p: p.b * u.u - p.a * x.x,
    states=("x",),
    inputs=("u",),
    params=("a", "b"),
    observe=lambda t, x, dx, u, p: x.x,
)


def with_noise(r: Any, far: float = 0.0, **process: Any) -> sid.PEMResult:
    """A lag with noise of 0.03, fitted with a number for it; one sample may be far off."""
    rng, t = np.random.default_rng(1), 0.1 * np.arange(300)
    data = sid.TimeSeries(t, np.repeat(rng.standard_normal(60), 5), intersample="zoh")
    y = sid.simulate(DECAY, data, {"a": 1.0, "b": 2.0}, x0=0.0)["y"].to_numpy() + 0.03 * rng.standard_normal(300)
    y[100] += far
    predictor = sid.ExtendedKalman(R=r, **process)
    options: dict[str, Any] = {"predictor": predictor, "objective": "likelihood", "x0": 0.0, "progressbar": False}
    return sid.fit_pem(DECAY, data.replace(y=y), {"a": 0.7, "b": 1.5}, **options)


def test_errors_by_a_noise_that_the_record_contradicts_are_no_success() -> None:
    small = with_noise({"y": 0.01})
    assert not small.success
    assert re.search(r"larger than R says \(those of y (2\.[789]|3\.?[0123]?) times as large\)", small.message)
    assert "standard errors are too small" in small.message and 'R="estimate"' in small.message
    large = with_noise({"y": 0.1})
    assert large.success and "standard errors may be larger than they need to be" in large.message
    both = with_noise({"y": 0.01}, Q={"x": 1e-4})
    assert not both.success and "larger than Q and R say" in both.message


def test_an_outlier_is_no_wrong_noise() -> None:
    found = with_noise({"y": 0.03}, far=2.0)
    assert found.success and "mark outliers as missing" in found.message and "R says" not in found.message


def test_a_noise_that_the_record_contradicts_is_no_failure_where_errors_are_by_innovations() -> None:
    """Of noise in proportion to the output: errors are right, whatever number was given."""
    rng, t = np.random.default_rng(1), 0.1 * np.arange(300)
    data = sid.TimeSeries(t, np.repeat(rng.standard_normal(30), 10), intersample="zoh")
    y = sid.simulate(DECAY, data, {"a": 1.0, "b": 2.0}, x0=0.0)["y"].to_numpy()
    data = data.replace(y=y * (1.0 + 0.2 * rng.standard_normal(300)) + 0.002 * rng.standard_normal(300))
    options: dict[str, Any] = {"predictor": sid.ExtendedKalman(R={"y": 0.02}), "objective": "likelihood", "x0": 0.0}
    found = sid.fit_pem(DECAY, data, {"a": 0.7, "b": 1.5}, progressbar=False, **options)
    assert "larger than R says" in found.message and "standard errors are too small" not in found.message
    assert "The noise is not of one size" in found.message


@pytest.mark.parametrize("r", [{"y": 0.03}, "estimate"])
def test_a_noise_that_the_record_bears_out_gets_no_word(r: Any) -> None:
    found = with_noise(r)
    assert found.success and "times as large" not in found.message


def test_two_unknowns_in_combination_have_their_own_remedy() -> None:
    """The factor and the exponent of a rate: their valley is bent, and no other optimum is near."""

    def reaction(factor: Any) -> sid.System:
        return sid.System(
            lambda t, x, u, p: -factor(p) * pt.exp(-p.E / 8.314 / u.T) * x.c,
            states=("c",),
            inputs=("T",),
            params=("A", "E"),
            observe=lambda t, x, dx, u, p: x.c,
        )

    t = np.linspace(0.0, 60.0, 60)
    data = sid.TimeSeries(t, 300.0 + 0.8 * np.minimum(t, 40.0), inputs="T", intersample="foh")
    y = sid.simulate(reaction(lambda p: p.A), data, {"A": 1e7, "E": 6e4}, x0=2.0)["y"].to_numpy()
    data = data.replace(y=y + 0.02 * np.random.default_rng(0).standard_normal(60))
    plain = sid.fit_pem(reaction(lambda p: p.A), data, {"A": 2e7, "E": 6.2e4}, progressbar=False)
    assert not plain.success
    assert "A and E are known in combination only" in plain.message and "chaotic" not in plain.message
    logs = sid.fit_pem(reaction(lambda p: pt.exp(p.A)), data, {"A": np.log(2e7), "E": 6.2e4}, progressbar=False)
    assert logs.success and abs(logs.p["E"] - 6e4) < 4 * logs.stderr["E"]


@pytest.mark.parametrize("signs, named", [((1.0, -1.0), "record in a (correlation -"), ((-1.0, -1.0), "in z (")])
def test_a_sensor_with_the_wrong_sign_is_named(signs: tuple[float, float], named: str) -> None:
    system = sid.System(
        lambda t, x, u, p: (x.v, u.F - p.c * x.v - p.k * x.z),
        states=("z", "v"),
        inputs=("F",),
        params=("c", "k"),
        observe=lambda t, x, dx, u, p: {"z": x.z, "a": dx.v},
    )
    rng, t = np.random.default_rng(0), 0.05 * np.arange(300)
    data = sid.TimeSeries(t, {"F": 3.0 * np.repeat(rng.standard_normal(60), 5)}, None, intersample="zoh")
    run = sid.simulate(system, data, {"c": 0.4, "k": 4.0}, x0=0.0)
    y = np.column_stack([run["z"].to_numpy(), run["a"].to_numpy()])
    y += 0.02 * y.std(axis=0) * rng.standard_normal(y.shape)
    options: dict[str, Any] = {"p_guess": {"c": 0.3, "k": 5.0}, "starts": 4, "progressbar": False}
    flipped = sid.fit_pem(system, data.replace(y=y * signs, outputs=("z", "a")), **options)
    assert not flipped.success and flipped.message.startswith("At the guess the model goes the other way")
    assert named in flipped.message and "wrong sign" in flipped.message
    assert ("z (" in flipped.message) == (signs[0] < 0)
    assert "wrong sign" not in sid.fit_pem(system, data.replace(y=y, outputs=("z", "a")), **options).message
