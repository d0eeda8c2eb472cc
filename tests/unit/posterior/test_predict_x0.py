"""Where predictions of a record start: estimated states, given ones, and what the result says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import linalg, optimize, special

import pm_sysid as sid
from support.pem_cases import OSCILLATOR, TRUTH, record

OTHER = record(seed=7, x0=(0.5, -1.0), noise=0.05, n=60)


@pytest.fixture(scope="module")
def fitted() -> tuple[xr.Dataset, pm.Model]:
    with pm.Model() as model:
        k = pm.Normal("k", 4.0, 0.1)
        sid.ODEFilter("y", OSCILLATOR, OTHER, {"k": k, "c": TRUTH["c"]}, noise=0.05, x0=0.0, substeps=1)
    return xr.Dataset({"k": (("chain", "draw"), [[3.99, 4.0, 4.01]])}), model


@pytest.mark.parametrize(
    "x0, said",
    [
        (None, "estimated from the first 60 samples"),
        ({"z": 0.5}, "estimated from the first 60 samples, where it is not given"),
        ({"z": np.array([0.4, 0.5, 0.6])}, "estimated from the first 60 samples, where it is not given"),
        ({"z": 0.5, "v": -1.0}, "given"),
        (0.0, "given"),
    ],
)
def test_what_is_not_given_is_estimated(fitted: tuple[xr.Dataset, pm.Model], x0: Any, said: str) -> None:
    runs = sid.predict(fitted[0], OTHER, model=fitted[1], x0=x0)
    assert runs.attrs["x0"] == said
    again = sid.predict(fitted[0], OTHER, model=fitted[1], x0=x0, random_seed=1)
    xr.testing.assert_identical(again, sid.predict(fitted[0], OTHER, model=fitted[1], x0=x0, random_seed=1))
    starts = runs[["z", "v"]].isel(time=0).to_array().to_numpy()
    if isinstance(x0, dict):
        np.testing.assert_allclose(starts[0], np.broadcast_to(x0["z"], 3))
    if "estimated" in said:
        np.testing.assert_allclose(starts[1], -1.0, atol=0.15)


def test_a_record_without_outputs_starts_at_zero(fitted: tuple[xr.Dataset, pm.Model]) -> None:
    with pytest.warns(UserWarning, match="all states begin at zero in all of them; give x0="):
        runs = sid.predict(fitted[0], OTHER.replace(y=None), model=fitted[1])
    assert runs.attrs["x0"] == "zero: nothing is measured" and np.all(runs["z"].isel(time=0) == 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_bands_hold_the_true_motion_as_often_as_they_say(fitted: tuple[xr.Dataset, pm.Model], spread: float) -> None:
    """Parameters are drawn from their posterior, and the start is not known: 90 % bands hold 90 % of the true states."""
    rng, held, first = np.random.default_rng(1), [], []
    for seed in range(60):
        k = 4.0 + spread * rng.standard_normal()
        run = sid.simulate(OSCILLATOR, OTHER, TRUTH | {"k": k}, x0={"z": 0.5, "v": -1.0})
        measured = OTHER.replace(y=run["y"].values + 0.05 * rng.standard_normal(60))
        draws = xr.Dataset({"k": (("chain", "draw"), 4.0 + spread * rng.standard_normal((1, 200)))})
        runs = sid.predict(draws, measured, model=fitted[1], draws=200, random_seed=seed)
        low, high = (runs[["z", "v"]].to_array().quantile(q, "draw") for q in (0.05, 0.95))
        inside = (low <= run[["z", "v"]].to_array()) & (run[["z", "v"]].to_array() <= high)
        held.append(float(inside.mean()))
        first.append(float(inside.isel(time=0).mean()))
    # A band holds most of a motion or little of it: the error of the mean is 0.025. The new record says something of k as well,
    # which the bands do not use.
    assert 0.82 < np.mean(held) < (0.97 if spread == 0 else 0.995)
    assert 0.82 < np.mean(first)


# -- few measured samples, processes ----------------------------------------------------------------------------------

PUSHED = sid.System(
    lambda t, x, u, p: (x.v, u.F + u.d - p.k * x.z - p.c * x.v),
    states=("z", "v"),
    inputs=("F", "d"),
    params=("k", "c"),
    observe=lambda t, x, dx, u, p: x.z,
)
FORCE = sid.TimeSeries(0.1 * np.arange(80), 0.3 * np.random.default_rng(3).standard_normal(80).cumsum(), intersample="foh")
KINDS: dict[str, tuple[sid.System, dict[str, Any]]] = {
    "white": (OSCILLATOR, {"noise": 0.3}),
    "coloured": (OSCILLATOR, {"noise": 0.05, "coloured": {"y": sid.OU(scale=0.3, length=1.0)}}),
    "latent": (PUSHED, {"noise": 0.3, "latent": {"d": sid.OU(scale=0.3, length=1.0)}}),
}
DRAWS = xr.Dataset({"k": (("chain", "draw"), 4.0 + 0.02 * np.random.default_rng(0).standard_normal((1, 100)))})


def pushed(seed: int, kind: str, measured: int) -> tuple[sid.TimeSeries, np.ndarray]:
    """A record with a start of its own of which the first samples are measured, and its outputs without noise."""
    rng = np.random.default_rng(seed)
    path = np.empty(80)
    path[0] = rng.standard_normal()
    for i in range(1, 80):
        path[i] = np.exp(-0.1) * path[i - 1] + np.sqrt(1 - np.exp(-0.2)) * rng.standard_normal()
    force = FORCE.replace(u=FORCE.input_matrix[:, 0] + (0.3 * path if kind == "latent" else 0.0))
    start = {"z": rng.standard_normal(), "v": rng.standard_normal()}
    clean = sid.simulate(OSCILLATOR, force, {"k": 4.0, "c": 1.5}, x0=start, substeps=4)["y"].to_numpy()
    noise = 0.3 * path + 0.05 * rng.standard_normal(80) if kind == "coloured" else 0.3 * rng.standard_normal(80)
    return FORCE.replace(y=np.where(np.arange(80) < measured, clean + noise, np.nan)), clean


def of_kind(kind: str) -> pm.Model:
    system, options = KINDS[kind]
    with pm.Model() as model:
        params = {"k": pm.Normal("k", 4.0, 0.02), "c": 1.5}
        sid.ODEFilter("y", system, pushed(1000, kind, 80)[0], params, substeps=2, **options)
    return model


def covered(model: pm.Model, kind: str, measured: int, seeds: int) -> float:
    """Share of the noise-free outputs at the first 15 samples inside 90 % bands."""
    held = []
    for seed in range(seeds):
        record, clean = pushed(seed, kind, measured)
        runs = sid.predict(DRAWS, record, model=model, draws=100, random_seed=seed)["y"].to_numpy()
        low, high = np.quantile(runs, [0.05, 0.95], axis=0)
        held.append(((low <= clean) & (clean <= high))[:15].mean())
    return float(np.mean(held))


@pytest.mark.parametrize("measured", [0, 1, 2])
def test_too_few_samples_leave_a_spread(measured: int) -> None:
    model = of_kind("white")
    runs = sid.predict(DRAWS, pushed(0, "white", measured)[0], model=model, draws=100, random_seed=0)
    spread = runs[["z", "v"]].isel(time=0).to_array().std("draw").to_numpy()
    assert spread[1] > 0.3 and (0.2 < spread[0] < 0.4 if measured else spread[0] > 0.5)
    said = f"the first 80 samples ({measured} of them measured), and from the spread of the states in the records of the fit"
    assert runs.attrs["x0"] == f"estimated from {said}"


def test_a_start_beyond_those_of_the_fit_is_found() -> None:
    model, (record, _) = of_kind("white"), pushed(0, "white", 80)
    clean = sid.simulate(OSCILLATOR, record, {"k": 4.0, "c": 1.5}, x0={"z": 100.0, "v": -50.0})["y"].to_numpy()
    noise = 0.3 * np.random.default_rng(0).standard_normal(80)
    for measured in (4, 80):
        new = record.replace(y=np.where(np.arange(80) < measured, clean + noise, np.nan))
        runs = sid.predict(DRAWS, new, model=model, draws=100, random_seed=0)
        first = runs[["z", "v"]].isel(time=0).to_array()
        away = (first.mean("draw").to_numpy() - [100.0, -50.0]) / first.std("draw").to_numpy()
        assert np.all(np.abs(away) < 3)


def test_states_of_which_nothing_is_known_are_said(fitted: tuple[xr.Dataset, pm.Model]) -> None:
    flat = OTHER.replace(u=np.zeros(60), y=np.zeros(60))
    with pm.Model() as model:
        k = pm.Normal("k", 4.0, 0.1)
        sid.ODEFilter("y", OSCILLATOR, flat, {"k": k, "c": TRUTH["c"]}, noise=0.05, x0=0.0, substeps=1)
    one = OTHER.replace(y=np.where(np.arange(60) < 1, 0.5, np.nan))
    with pytest.warns(UserWarning, match=r"do not tell where \['v'\] begin.*give x0="):
        runs = sid.predict(fitted[0], one, model=model)
    assert float(runs["z"].isel(time=0).std()) > 0


def test_noise_that_the_new_record_speaks_against_is_taken_from_it(fitted: tuple[xr.Dataset, pm.Model]) -> None:
    draws, noise = xr.Dataset({"k": (("chain", "draw"), np.full((1, 200), 4.0))}), np.random.default_rng(0).standard_normal(60)
    widths = []
    for size in (0.005, 0.05, 0.5):  # the model has 0.05
        new = record(seed=7, x0=(0.5, -1.0), noise=0.0, n=60)
        runs = sid.predict(
            draws, new.replace(y=new.output_matrix[:, 0] + size * noise), model=fitted[1], draws=200, random_seed=0
        )
        widths.append(float(runs["z"].isel(time=0).std()))
    assert 5 < widths[1] / widths[0] < 20 and 5 < widths[2] / widths[1] < 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["coloured", "latent"])
def test_starts_allow_for_processes(kind: str) -> None:
    """Ten records: the starts taken for exact, or the noise for white, held less than half."""
    assert covered(of_kind(kind), kind, 8, 10) > 0.75


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("measured", [2, 4, 80])
def test_bands_from_few_samples_hold_what_they_say(kind: str, measured: int) -> None:
    assert 0.8 < covered(of_kind(kind), kind, measured, 60) < 0.98


def _free(t: np.ndarray, n: int = 2) -> np.ndarray:
    """Outputs (T, n) of the oscillator by its initial state."""
    return np.array([linalg.expm(np.array([[0.0, 1.0], [-4.0, -0.4]]) * s)[0, :n] for s in t])


@pytest.mark.parametrize("correlation", [0.95, -0.2])
def test_sensors_that_err_alike_say_less_of_a_start(correlation: float) -> None:
    """The start is as uncertain as generalised least squares say: the bands were half as wide, or wider than needed."""
    four = sid.System(
        OSCILLATOR.dynamics,
        states=("z", "v"),
        inputs=("F",),
        params=("k", "c"),
        observe=lambda t, x, dx, u, p: {f"z{i}": x.z for i in range(4)},
    )
    covariance = 0.05**2 * ((1 - correlation) * np.eye(4) + correlation)
    noise = np.random.default_rng(3).multivariate_normal(np.zeros(4), covariance, 60)
    given = sid.TimeSeries(OTHER.t, {"F": OTHER.input_matrix[:, 0]}, intersample="zoh")
    clean = sid.simulate(OSCILLATOR, given, TRUTH, x0={"z": 1.0, "v": -1.0}, substeps=2)["y"].to_numpy()
    measured = given.replace(y=clean[:, None] + noise, outputs=tuple(f"z{i}" for i in range(4)))
    with pm.Model() as model:
        params = {"k": pm.Normal("k", 4.0, 0.1), "c": TRUTH["c"]}
        sid.ODEFilter("y", four, measured, params, noise=sid.Correlated(cov=covariance), substeps=2)
    draws = xr.Dataset({"k": (("chain", "draw"), np.full((1, 1000), 4.0))})
    start = sid.predict(draws, measured, model=model, draws=1000, random_seed=1)[["z", "v"]].isel(time=0).to_array()
    whole = np.kron(_free(OTHER.t), np.ones((4, 1)))
    exact = np.linalg.inv(whole.T @ np.linalg.solve(np.kron(np.eye(60), covariance), whole))
    np.testing.assert_allclose(start.to_numpy().std(axis=1), np.sqrt(np.diag(exact)), rtol=0.1)


@pytest.mark.parametrize("limit", [0.3, 0.6])
def test_samples_at_a_limit_say_on_which_side_a_start_is(limit: float) -> None:
    """Starts are those of the exact likelihood; without the samples at a limit they were two deviations off, on one side."""
    clean = _free(OTHER.t) @ np.array([1.0, -1.0])
    given, apart = sid.TimeSeries(OTHER.t, np.zeros(60), None, intersample="zoh"), []
    draws = xr.Dataset({"k": (("chain", "draw"), np.full((1, 300), 4.0))})
    for seed in range(4):
        y = np.clip(clean + 0.1 * np.random.default_rng(seed).standard_normal(60), -limit, limit)
        if not seed:
            with pm.Model() as model:
                params = {"k": pm.Normal("k", 4.0, 0.1), "c": TRUTH["c"]}
                start = {"x0": {"z": 1.0, "v": -1.0}, "x0_std": 0.5}
                record = given.replace(y=y)
                sid.ODEFilter("y", OSCILLATOR, record, params, noise=0.1, substeps=2, limits=(-limit, limit), **start)

        def misfit(q: np.ndarray, y: np.ndarray = y) -> float:
            mean, upper, lower = _free(OTHER.t) @ q, y >= limit, y <= -limit
            inside = 0.5 * np.sum(((y - mean)[~upper & ~lower] / 0.1) ** 2)
            tails = special.log_ndtr((mean - limit)[upper] / 0.1).sum() + special.log_ndtr((-limit - mean)[lower] / 0.1).sum()
            return float(inside - tails)

        best = optimize.minimize(misfit, [1.0, -1.0], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-8}).x
        runs = sid.predict(draws, given.replace(y=y), model=model, draws=300, random_seed=seed, substeps=2)
        begin = runs[["z", "v"]].isel(time=0).to_array().to_numpy()
        apart.append((begin.mean(axis=1) - best) / begin.std(axis=1))
    assert np.abs(apart).max() < 0.3


@pytest.mark.filterwarnings("ignore:.*moves .* times more")
@pytest.mark.parametrize("kind", ["white", "latent"])
def test_values_beyond_a_limit_are_those_at_it(kind: str) -> None:
    """Beside processes, samples at a limit are left out: errors that depend on each other have no tails of their own."""
    system, options = KINDS[kind]
    t, rng, limit = 0.1 * np.arange(100), np.random.default_rng(0), 0.3
    y = np.clip(_free(t) @ np.array([1.0, -0.2]) + 0.02 * rng.standard_normal(100), -limit, limit)
    given = sid.TimeSeries(t, np.zeros(100), None, intersample="zoh")
    options = options | {"noise": 0.02, "limits": (-limit, limit), "x0": {"z": 0.5, "v": 0.0}, "x0_std": {"z": 1.0, "v": 2.0}}
    options |= {"latent": {"d": sid.OU(scale=0.05, length=0.3)}} if kind == "latent" else {}
    with pm.Model() as model:
        sid.ODEFilter("y", system, given.replace(y=y), {"k": pm.Normal("k", 4.0, 0.1), "c": 0.4}, substeps=4, **options)
    draws, starts = xr.Dataset({"k": (("chain", "draw"), np.full((1, 200), 4.0))}), []
    for seen in (y, np.where(y >= limit, y + 0.1, y)):
        runs = sid.predict(draws, given.replace(y=seen), model=model, draws=200, random_seed=0, substeps=4)
        starts.append(runs[["z", "v"]].isel(time=0).to_array().to_numpy())
    np.testing.assert_allclose(starts[0], starts[1], rtol=1e-6)
    assert np.all(np.abs(starts[0].mean(axis=1) - [1.0, -0.2]) < 4 * starts[0].std(axis=1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*moves .* times more")  # there is no input but the force
def test_a_force_beside_little_noise_is_weighed_as_it_is() -> None:
    """What few paths say of many samples was taken for exact: starts lay one and a half deviations from the exact ones."""
    scale, length, noise, t = 1.0, 0.3, 0.01, 0.6 * np.arange(60)
    A = np.array([[0.0, 1.0, 0.0], [-4.0, -0.4, 1.0], [0.0, 0.0, -1 / length]])
    step, spread = linalg.expm(A * 0.6), np.diag([0.0, 0.0, scale**2])
    fed = linalg.solve_continuous_lyapunov(A, -np.diag([0.0, 0.0, 2 * scale**2 / length]))
    fed = fed - step @ fed @ step.T
    P, covariance = [spread], np.empty((60, 60))
    for _ in range(59):
        P.append(step @ P[-1] @ step.T + fed)
    for i in range(60):
        across = P[i]
        for j in range(i, 60):
            covariance[i, j] = covariance[j, i] = across[0, 0]
            across = across @ step.T
    covariance += noise**2 * np.eye(60)
    H = _free(t)
    exact = np.linalg.inv(H.T @ np.linalg.solve(covariance, H))
    latent = {"d": sid.OU(scale=scale, length=length)}
    draws = xr.Dataset({"k": (("chain", "draw"), np.full((1, 400), 4.0))})
    apart = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        y = H @ np.array([0.3, -0.5]) + np.linalg.cholesky(covariance) @ rng.standard_normal(60)
        measured = sid.TimeSeries(t, {"F": np.zeros(60)}, y, intersample="zoh")
        with pm.Model() as model:
            params = {"k": pm.Normal("k", 4.0, 0.1), "c": TRUTH["c"]}
            sid.ODEFilter("y", PUSHED, measured, params, noise=noise, latent=latent, substeps=8)
        start = sid.predict(draws, measured, model=model, draws=400, random_seed=seed, substeps=8)[["z", "v"]].isel(time=0)
        best = exact @ H.T @ np.linalg.solve(covariance, y)
        apart.append((start.to_array().to_numpy().mean(axis=1) - best) / np.sqrt(np.diag(exact)))
    assert np.sqrt(np.mean(np.square(apart))) < 0.6
