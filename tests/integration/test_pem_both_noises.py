"""Process and measurement noise found together: the start is left to the filter, since a likelihood has no bound otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy

import pm_sysid as sid

STEP, T = 0.1, 400
RELAXATION = sid.System(lambda t, x, u, p: -p.a * x.s, states=("s",), params=("a",), observe=lambda t, x, dx, u, p: {"y": x.s})
OPTIONS: dict[str, Any] = {"objective": "likelihood", "progressbar": False}
BOTH = sid.ExtendedKalman(Q="estimate", R="estimate")
TRUTH = {"a": 1.0, "process_s": np.sqrt((1 - np.exp(-2 * STEP)) / 2), "noise_y": 0.1}


def record(seed: int, n: int = T) -> sid.TimeSeries:
    """An Ornstein-Uhlenbeck process from its stationary distribution, measured with noise."""
    rng, s, y = np.random.default_rng(seed), 0.0, np.empty(n)
    for k in range(n):
        s = np.exp(-STEP) * s + TRUTH["process_s"] * rng.standard_normal() if k else np.sqrt(0.5) * rng.standard_normal()
        y[k] = s + TRUTH["noise_y"] * rng.standard_normal()
    return sid.TimeSeries(STEP * np.arange(n), None, y)


@pytest.mark.slow
def test_start_and_both_noises_over_seeds() -> None:
    """39 of 60 such fits ended at a measurement noise of zero, with the start at the first sample."""
    z = []
    for seed in range(20):
        fit = sid.fit_pem(RELAXATION, record(seed), {"a": 2.0}, predictor=BOTH, **OPTIONS)
        assert fit.success and list(fit.names) == list(TRUTH), fit.message
        z.append((fit.x[:2] - [TRUTH["a"], TRUTH["process_s"]]) / fit.x_stderr[:2])
    assert np.abs(z).max() < 4 and 0.7 < np.sqrt(np.mean(np.square(z))) < 1.4
    assert fit.simulate().attrs["x0"].startswith("s estimated from the first")


def test_several_records_share_noise_and_not_their_starts() -> None:
    fit = sid.fit_pem(RELAXATION, [record(seed, 150) for seed in range(3)], {"a": 2.0}, predictor=BOTH, **OPTIONS)
    assert fit.success and list(fit.names) == list(TRUTH)
    assert np.all(np.abs(fit.x - list(TRUTH.values())) < 4 * fit.x_stderr)


def test_start_as_an_unknown_has_no_maximum_and_is_said_so() -> None:
    start = sid.InitialState(estimate=True)
    fits = [sid.fit_pem(RELAXATION, record(s), {"a": 2.0}, predictor=BOTH, x0=start, **OPTIONS) for s in range(4)]
    lost = [f for f in fits if f.noise["noise_y"] < 1e-4]
    assert lost and all(not f.success and f.message.startswith("The likelihood has no maximum") for f in lost)
    assert all("cannot tell" not in f.message for f in lost)
    known = sid.ExtendedKalman(Q="estimate", R={"y": 0.1})  # a density with a bound
    assert "x0.s" in sid.fit_pem(RELAXATION, record(0), {"a": 2.0}, predictor=known, **OPTIONS).names


def test_a_state_that_no_output_shows_is_left_to_the_filter_as_large_as_it_is() -> None:
    hidden = sid.System(
        lambda t, x, u, p: (x.h - x.s, 5.0 * u.F - p.a * x.h), states=("s", "h"), inputs=("F",), params=("a",),
        observe=lambda t, x, dx, u, p: {"y": x.s},
    )  # fmt: skip
    rng, t = np.random.default_rng(3), STEP * np.arange(T)
    u, (s, h), y = np.sin(0.3 * t), (0.5, 12.0), np.empty(T)
    for k in range(T):
        y[k] = s + 0.05 * rng.standard_normal()
        for _ in range(20):
            s, h = s + STEP / 20 * (h - s), h + STEP / 20 * (5.0 * u[k] - 0.5 * h)
        h += 0.5 * rng.standard_normal()
    data = sid.TimeSeries(t, u, y, inputs="F", intersample="zoh")
    predictor = sid.ExtendedKalman(Q={"h": "estimate"}, R="estimate", substeps=4)
    fit = sid.fit_pem(hidden, data, {"a": 1.0}, predictor=predictor, **OPTIONS)
    assert fit.success and fit.names == ["a", "process_h", "noise_y"]
    assert np.all(np.abs(fit.x - [0.5, 0.5, 0.05]) < 4 * fit.x_stderr)
    run = sid.simulate(hidden, data.replace(y=None), {"a": 1.0}, x0={"s": fit.setup.initially.mean[0, 0], "h": 0.0})
    assert fit.setup.roots[0, 1, 1] == pytest.approx(float(np.sqrt(np.mean(run["h"].values ** 2))), rel=1e-3)


def test_process_noise_is_searched_for_from_what_the_outputs_show() -> None:
    """A free run of an unstable system ends anywhere; a tenth of its size was no place to start from."""
    unstable = sid.System(
        lambda t, x, u, p: (x.v, p.a * x.z + u.F), states=("z", "v"), inputs=("F",), params=("a",),
        observe=lambda t, x, dx, u, p: {"y": x.z},
    )  # fmt: skip
    rng, state, before, y, u = np.random.default_rng(0), np.array([0.1, 0.0]), 0.1, [], []
    step = scipy.linalg.expm(0.05 * np.array([[0, 1, 0], [4.0, 0, 1], [0, 0, 0]]))
    for k in range(T):
        y.append(state[0] + 0.01 * rng.standard_normal())
        u.append(np.clip(-12 * (y[-1] - 0.3 * np.sign(np.sin(0.3 * k))) - 60 * (y[-1] - before), -8, 8))
        before, state = y[-1], (step @ np.array([*state, u[-1]]))[:2] + np.array([0.0, 0.02]) * rng.standard_normal()
    data = sid.TimeSeries(0.05 * np.arange(T), np.array(u), np.array(y), inputs="F", intersample="zoh")
    predictor = sid.ExtendedKalman(Q={"v": "estimate"}, R="estimate")
    fit = sid.fit_pem(unstable, data, {"a": 6.0}, predictor=predictor, **OPTIONS)
    assert fit.setup.unknowns.x[1] <= fit.setup.initially.std[0, 1]
    assert fit.success and np.all(np.abs(fit.x - [4.0, 0.02, 0.01]) < 4 * fit.x_stderr)


def test_a_search_that_its_optimiser_breaks_off_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise UnboundLocalError("cannot access local variable 'p' where it is not associated with a value")

    monkeypatch.setattr(scipy.optimize, "minimize", broken)
    fit = sid.fit_pem(RELAXATION, record(0), {"a": 2.0}, predictor=BOTH, starts=1, **OPTIONS)
    assert not fit.success and fit.status == -3 and "The search broke off" in fit.message


def test_optima_of_coarse_steps_alone_are_no_rivals() -> None:
    """A step of Runge and Kutta decays over 0.1 s alike for rates of 1.05 and 27.2; finer ones do not."""
    coarse, fine = (
        sid.fit_pem(RELAXATION, record(0), {"a": 2.0}, predictor=predictor, **OPTIONS)
        for predictor in (sid.ExtendedKalman(Q="estimate", R="estimate", substeps=1), BOTH)
    )
    assert not coarse.success and "Another optimum is nearly as good" in coarse.message
    assert fine.success and fine.substeps > 1 and fine.p["a"] == pytest.approx(1.05, abs=0.01)
