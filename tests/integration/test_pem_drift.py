"""Parameters that drift in a fit: the same numbers as with the parameter written as a state, on one record and on several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pm_sysid as sid

STEP, T = 0.1, 300
TRUTH = {"c": 0.4, "k": 4.0}


def motion(t: Any, x: Any, u: Any, p: Any) -> Any:
    """A mass on a spring."""
    return x.v, u.F - p.c * x.v - p.k * x.z


OSCILLATOR = sid.System(motion, states=("z", "v"), inputs=("F",), params=("c", "k"), observe=lambda t, x, dx, u, p: {"z": x.z})
BY_HAND = sid.System(
    lambda t, x, u, p: (x.v, u.F - p.c * x.v - x.k * x.z, 0.0),
    states=("z", "v", "k"),
    inputs=("F",),
    params=("c",),
    observe=lambda t, x, dx, u, p: {"z": x.z},
)


def records(scale: float, n: int = 1) -> tuple[list[sid.TimeSeries], list[np.ndarray]]:
    """Records of a spring whose stiffness walks, and its paths."""
    found, paths = [], []
    for seed in range(n):
        rng, t = np.random.default_rng(seed), STEP * np.arange(T)
        force = sum(np.sin(w * t + f) for w, f in zip((1.1, 1.9, 2.6), rng.uniform(0, 6, 3), strict=True))
        empty = sid.TimeSeries(t, {"F": force}, intersample="foh")
        walk = {"k": sid.RandomWalk(scale=scale)}
        run = sid.simulate(OSCILLATOR, empty, TRUTH, x0=0.0, varying=walk, substeps=8, random_seed=seed)
        found.append(empty.replace(y=run["z"].values + 0.01 * rng.standard_normal(T), outputs=("z",)))
        paths.append(run["k"].values if "k" in run else run["parameters"].sel(parameter="k").values)
    return found, paths


PREDICTOR = {"predictor": sid.ExtendedKalman(substeps=4), "objective": "likelihood", "progressbar": False}


def by_hand(record: Any, entry: Any, guess: dict[str, float], **changes: Any) -> Any:
    """A fit of the system whose third state is the stiffness."""
    predictor = sid.ExtendedKalman(substeps=4, Q={"k": entry})
    x0 = sid.InitialState({"z": 0.0, "v": 0.0, "k": 3.5}, estimate=["k"])
    return sid.fit_pem(BY_HAND, record, guess, x0=x0, **(PREDICTOR | {"predictor": predictor} | changes))


def denser(record: sid.TimeSeries, n: int) -> sid.TimeSeries:
    """With so many samples in an interval, of which the last alone is measured."""
    t = np.linspace(record.t[0], record.t[-1], n * (len(record) - 1) + 1)
    y = np.full(t.size, np.nan)
    y[::n] = record.y
    return sid.TimeSeries(t, {"F": np.interp(t, record.t, np.ravel(record.u))}, y, intersample="foh", outputs="z")


def test_a_parameter_that_drifts_is_a_state_with_process_noise() -> None:
    """Of many samples in an interval: noise that a predictor adds once in each does not move the states before its end."""
    (record,), (path,) = records(0.15)
    fit = sid.fit_pem(OSCILLATOR, record, {"c": 0.3, "k": 3.5}, varying={"k": "estimate"}, x0=0.0, **PREDICTOR)
    same = by_hand(denser(record, 8), "estimate", {"c": 0.3}, predictor=sid.ExtendedKalman(substeps=1, Q={"k": "estimate"}))
    assert fit.success and same.success, (fit.message, same.message)
    assert fit.names == ["c", "k", "process_k", "noise_z"]
    order = [same.names.index(n) for n in ("c", "x0.k", "process_k", "noise_z")]
    scale = [1.0, 1.0, np.sqrt(8), 1.0]
    np.testing.assert_allclose(fit.x, same.x[order] * scale, rtol=2e-3)
    np.testing.assert_allclose(fit.x_stderr, same.x_stderr[order] * scale, rtol=2e-2)
    assert fit.fun == pytest.approx(same.fun, abs=0.02)
    assert fit.p["k"] == fit.x[1] and fit.x0.tolist() == [0.0, 0.0]
    assert fit.noise["process_k"] == pytest.approx(0.15 * np.sqrt(STEP), rel=0.6)
    # The path, filtered: within the errors that the filter states, and not those of a constant.
    found = fit.innovations()
    z = (found["state_k"].values - path)[20:] / found["state_k_std"].values[20:]
    assert np.sqrt(np.mean(z**2)) < 1.6 < np.sqrt(np.mean((fit.p["k"] - path)[20:] ** 2)) / np.median(found["state_k_std"])
    constant = sid.fit_pem(OSCILLATOR, record, {"c": 0.3, "k": 3.5}, x0=0.0, **PREDICTOR)
    assert fit.fun < constant.fun - 20


def test_a_random_walk_a_number_a_name_and_a_matrix_say_the_same() -> None:
    (record,), _ = records(0.15)
    guess, scale = {"c": 0.3, "k": 3.5}, 0.1 * np.sqrt(STEP)
    walk = sid.fit_pem(OSCILLATOR, record, guess, varying={"k": sid.RandomWalk(scale=0.1)}, x0=0.0, **PREDICTOR)
    number = sid.fit_pem(OSCILLATOR, record, guess, varying={"k": scale}, x0=0.0, **PREDICTOR)
    np.testing.assert_allclose(walk.x, number.x, rtol=1e-12)
    np.testing.assert_allclose(walk.x[:2], by_hand(record, scale, {"c": 0.3}).x[[0, 2]], atol=0.1 * walk.x_stderr[:2].min())
    named = sid.fit_pem(OSCILLATOR, record, guess | {"q": 0.1}, varying={"k": "q"}, x0=0.0, **PREDICTOR)
    assert named.names == ["c", "k", "q", "noise_z"] and named.p["q"] == pytest.approx(named.noise["process_k"])
    # With a full covariance of the states beside it, what is estimated is the entry of the parameter alone.
    full = np.array([[1e-8, 5e-9], [5e-9, 1e-8]])
    predictor = sid.ExtendedKalman(substeps=4, Q=full)
    beside = sid.fit_pem(OSCILLATOR, record, guess, varying={"k": "estimate"}, x0=0.0, **(PREDICTOR | {"predictor": predictor}))
    assert beside.success and beside.names == ["c", "k", "process_k", "noise_z"] and set(beside.noise) >= {"process_k"}
    assert beside.x[1] == pytest.approx(named.p["k"], abs=beside.x_stderr[1])
    matrix = np.zeros((3, 3))
    matrix[:2, :2], matrix[2, 2] = full, beside.noise["process_k"] ** 2
    same = by_hand(record, 0.0, {"c": 0.3}, predictor=sid.ExtendedKalman(substeps=4, Q=matrix))
    np.testing.assert_allclose(beside.x[:2], same.x[[0, 2]], atol=0.1 * beside.x_stderr[:2].min())


def test_several_records_share_the_value_at_the_start() -> None:
    both, _ = records(0.15, 2)
    fit = sid.fit_pem(OSCILLATOR, both, {"c": 0.3, "k": 3.5}, varying={"k": 0.05}, **PREDICTOR)
    assert fit.success, fit.message
    # Position and speed are left to the filter, which is certain of the stiffness alone.
    assert fit.names == ["c", "k", "noise_z"]
    assert all(np.all(np.diag(root)[:2] > 0) and not root[2].any() for root in fit.setup.roots)
    assert [fit.innovations(r)["state_k"].values[0] for r in (0, 1)] == [fit.p["k"]] * 2
    away, step = fit.x + 0.01, 1e-6 * np.eye(fit.x.size)[1]
    ends = [fit.target.evaluate(away + s).value for s in (step, -step)]
    assert fit.target.evaluate(away).gradient[1] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4)
    held = sid.fit_pem(OSCILLATOR, both, {"c": 0.3}, varying={"k": 0.05}, fixed={"k": fit.p["k"]}, **PREDICTOR)
    assert held.names[0] == "c" and [held.innovations(r)["state_k"].values[0] for r in (0, 1)] == [fit.p["k"]] * 2
    assert held.fun == pytest.approx(fit.fun, abs=1e-4)


def test_what_a_fit_does_afterwards() -> None:
    (record, other), _ = records(0.05, 2)
    fit = sid.fit_pem(OSCILLATOR, record, [0.3, 3.5], varying={"k": "estimate"}, bounds=([0.0, 1.0], [2.0, 9.0]), **PREDICTOR)
    assert fit.success and fit.names[:2] == ["c", "k"], fit.message
    run = fit.simulate(other)  # a new record begins with the parameter of the fit's first sample
    assert "z, v estimated" in run.attrs["x0"]
    assert fit.innovations(other)["state_k"].values[0] == pytest.approx(fit.p[1])
    given = fit.simulate(other, x0=0.0)["z"].values
    constant = sid.simulate(OSCILLATOR, other, {"c": fit.p[0], "k": fit.p[1]}, x0=0.0, substeps=4, method="rk4")["z"].values
    np.testing.assert_allclose(given, constant, atol=1e-9)
    draws = fit.laplace(50, random_seed=1)["posterior"]
    assert draws["k"].std() == pytest.approx(fit.stderr[1], rel=0.5)
    assert np.isfinite(fit.model().point_logps()["y"])
    assert float(sid.compare_fits({"drift": fit}, {"new": other}, k=1).table.iloc[0, 0]) > 90


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"varying": ["k"]}, TypeError, "varying is .*give a dict by parameter"),
        ({"varying": {"m": "estimate"}}, ValueError, "varying names 'm'; give scalar parameters"),
        ({"varying": {"k": sid.OU(scale=1.0, length=1.0)}}, ValueError, r"a fit knows random walks alone"),
        ({"varying": {"k": -1.0}}, ValueError, r"varying\['k'\] is -1.0; give a positive standard"),
        ({"varying": {"k": "q"}}, ValueError, r"p_guess lacks \['q'\]"),
        ({"varying": {"k": "estimate"}, "objective": "mse"}, ValueError, "use objective='likelihood'"),
        ({"varying": {"k": "estimate"}, "predictor": sid.EK1(order=2)}, ValueError, "no process noise that could move"),
        ({"varying": {"k": "estimate"}, "p_guess": {"c": 0.3}}, ValueError, r"p_guess lacks \['k'\]"),
    ],
)
def test_what_cannot_drift_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = PREDICTOR | {"p_guess": {"c": 0.3, "k": 3.5}, "x0": 0.0} | changes
    record = sid.TimeSeries(STEP * np.arange(10), {"F": np.ones(10)}, np.ones(10), intersample="foh")
    with pytest.raises(error, match=message):
        sid.fit_pem(OSCILLATOR, record, **arguments)


def test_a_parameter_that_is_needed_once_a_parameter_set_cannot_drift() -> None:
    import pytensor.tensor as pt

    system = sid.System(
        lambda t, x, u, p: -pt.linalg.solve(pt.stack([pt.stack([p.a, 0.0]), pt.stack([0.0, 1.0])]), x.q),
        states={"q": 2},
        params=("a",),
        observe=lambda t, x, dx, u, p: x.q[0],
    )
    record = sid.TimeSeries(STEP * np.arange(10), None, np.ones(10))
    with pytest.raises(ValueError, match=r"'a' drifts .*but enters"):
        sid.fit_pem(system, record, {"a": 1.0}, varying={"a": 0.1}, objective="likelihood", progressbar=False)


LAG = sid.System(
    lambda t, x, u, p: p.b * u.F - p.a * x.z,
    states=("z",),
    inputs=("F",),
    params=("a", "b"),
    observe=lambda t, x, dx, u, p: x.z,
)


def lags(noise: float, seed: int, steps: np.ndarray, fine: int = 40) -> tuple[sid.TimeSeries, np.ndarray]:
    """A lag whose gain is a Wiener process of 0.3 in a unit of time, and its path; the force is held."""
    rng = np.random.default_rng(seed)
    force, z, b = 1 + rng.normal(size=steps.size + 1), 0.5, 2.0
    rows = [(z, b)]
    for F, dt in zip(force, steps, strict=False):
        for dw in 0.3 * np.sqrt(dt / fine) * rng.normal(size=fine):
            e = np.exp(-dt / fine)
            z, b = e * z + (b + 0.5 * dw) * F * (1 - e), b + dw
        rows.append((z, b))
    clean, path = np.array(rows).T
    t = np.concatenate([[0.0], np.cumsum(steps)])
    return sid.TimeSeries(t, {"F": force}, clean + noise * rng.normal(size=t.size), intersample="zoh"), path


def exact(record: sid.TimeSeries, a: float, b: float, size: float, noise: float) -> float:
    """Negative log-likelihood of the lag with a gain that walks, by the exact transition of both."""
    F, y, value = np.ravel(record.u), np.ravel(record.y), 0.0
    mean, cov = np.array([0.5, b]), np.zeros((2, 2))
    for i, measured in enumerate(y):
        if np.isfinite(measured):
            s, e = cov[0, 0] + noise**2, measured - mean[0]
            value += 0.5 * (np.log(2 * np.pi * s) + e**2 / s)
            gain = cov[:, 0] / s
            mean, cov = mean + gain * e, cov - np.outer(gain, cov[0])
        if i + 1 < len(record):
            dt = record.dt[i]
            d, first, second = np.exp(-a * dt), (1 - np.exp(-a * dt)) / a, (1 - np.exp(-2 * a * dt)) / (2 * a)
            A = np.array([[d, first * F[i]], [0.0, 1.0]])
            both = F[i] * (dt - first) / a
            noise_of_both = np.array([[F[i] ** 2 * (dt - 2 * first + second) / a**2, both], [both, dt]])
            mean, cov = A @ mean, A @ cov @ A.T + size**2 * noise_of_both
    return value


@pytest.mark.parametrize("predictor", [sid.ExtendedKalman, sid.UnscentedKalman])
@pytest.mark.parametrize("kind", ["regular", "irregular", "missing"])
def test_a_walk_moves_the_states_within_an_interval(predictor: Any, kind: str) -> None:
    """Beside noise of 0.002 what the walk does in an interval counts: a parameter that stands still in it was 8 errors off."""
    steps = np.random.default_rng(1).uniform(0.1, 0.3, 150) if kind == "irregular" else np.full(150, 0.2)
    record, _ = lags(0.002, 0, steps)
    if kind == "missing":
        record = record.replace(y=np.where(np.arange(151) % 5 == 3, np.nan, np.ravel(record.y)))
    fit = sid.fit_pem(
        LAG, record, {"a": 0.6, "b": 1.5}, predictor=predictor(substeps=4), varying={"b": "estimate"}, x0=0.5, starts=1,
        objective="likelihood", progressbar=False,
    )  # fmt: skip
    unit = np.sqrt(np.median(record.dt))
    for a, b, size, noise in ((1.0, 2.0, 0.3, 0.002), (1.1, 1.9, 0.2, 0.01)):
        found = fit.target.evaluate(np.array([a, b, size * unit, noise])).value
        assert found == pytest.approx(exact(record, a, b, size, noise), abs=0.05)


@pytest.mark.slow
def test_errors_and_bands_of_a_parameter_that_drifts_hold() -> None:
    """Also where noise is small beside what the walk does in an interval, and where the walk is small beside noise."""
    truth = {"a": 1.0, "b": 2.0, "process_b": 0.3 * np.sqrt(0.2), "noise_y": 0.0}
    for noise in (0.002, 0.2):
        z, inside = [], []
        for seed in range(12):
            record, path = lags(noise, seed, np.full(200, 0.2))
            fit = sid.fit_pem(
                LAG, record, {"a": 0.6, "b": 1.5}, predictor=sid.ExtendedKalman(substeps=2), varying={"b": "estimate"}, x0=0.5,
                objective="likelihood", progressbar=False,
            )  # fmt: skip
            assert fit.success, fit.message
            error = dict(zip(fit.names, fit.x_stderr, strict=True))
            known = truth | {"noise_y": noise}
            z.append(
                [(value - known[name]) / error[name] for name, value in zip(fit.names, fit.x, strict=True) if error[name] > 0]
            )
            found = fit.innovations()
            inside.append(np.mean(np.abs(found["state_b"].values - path) < 1.645 * found["state_b_std"].values))
        assert np.sqrt(np.mean(np.square(np.concatenate(z)))) < 1.3
        assert 0.8 < np.mean(inside) < 0.97
