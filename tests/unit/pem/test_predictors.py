"""Predictors against plain Kalman filters; their derivatives against differences.

Interpreted, which takes no time to compile, but for one test that compiled code gives the same, and for whole fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.stats import multivariate_normal

import pm_sysid as sid
from pm_sysid.pem import filters
from pm_sysid.pem.filters import Motion
from pm_sysid.pem.setup import Setup, set_up
from pm_sysid.recurrence.batch_op import BatchRecurrence
from pm_sysid.recurrence.op import Recurrence, interpreted
from pm_sysid.recurrence.run import compiled_batch
from support.pem_reference import DUFFING, LINEAR, Plant, kalman, record, step

P0 = {2: np.array([[0.3, 0.1], [0.1, 0.2]]), 3: np.diag([0.3, 0.2, 0.5]) + 0.05}
Q = {2: np.array([[0.02, 0.01], [0.01, 0.05]]), 3: np.diag([0.0, 0.04, 0.02])}
R = np.array([[0.05, 0.02], [0.02, 0.08]])
KINDS: dict[str, Any] = {
    "ekf": (sid.ExtendedKalman, {}),
    "ukf": (sid.UnscentedKalman, {}),
    "ukf with a centre": (sid.UnscentedKalman, {"kappa": 1.0, "beta": 0.5}),
    "ukf with a negative centre": (sid.UnscentedKalman, {"alpha": 0.9, "beta": 0.0}),
}


def slowly(recurrence: Recurrence) -> Callable[..., Any]:
    """The batch of a recurrence in plain Python."""
    function = interpreted(BatchRecurrence(recurrence))

    def run(params: np.ndarray, starts: np.ndarray, *arrays: np.ndarray) -> Any:
        return function(params[:, None], starts, np.empty((0, 0, 0)), *arrays, np.asarray(1))

    return run


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "compiled_batch", slowly)


def setup(plant: Plant, data: Any, kind: str = "ekf", x0: Any = None, start: Any = None, **options: Any) -> Setup:
    cls, own = KINDS[kind]
    n = len(plant.system.states)
    predictor = cls(**{"Q": Q[n], "R": R, "substeps": 2, **own, **options})
    x0 = np.linspace(0.2, -0.1, n) if x0 is None else x0
    initial = sid.InitialState(x0, estimate=True, P0=P0[n] if start is None else start)
    return set_up(plant.system, data, plant.p, predictor, initial, None, None, "mse")


def sigma(kind: str) -> tuple[float, float, float] | None:
    cls, own = KINDS[kind]
    return None if cls is sid.ExtendedKalman else cls(**own).points


def run(s: Setup, want: Any) -> np.ndarray:
    params, x0 = s.unknowns.layout.place(s.unknowns.x)
    return s.filter.run(params, x0, Motion.none(params.size, x0), want)[0]


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("plant", [DUFFING, LINEAR], ids=["duffing", "linear"])
def test_filters_equal_plain_ones(plant: Plant, kind: str) -> None:
    data, n, m = record(plant), len(plant.system.states), 2
    s = setup(plant, data, kind)
    ours = run(s, "states")
    want = kalman(
        plant, data, Q=Q[n], R=R, x0=np.linspace(0.2, -0.1, n), P0=P0[n], substeps=2, sigma=sigma(kind)
    )  # fmt: skip
    np.testing.assert_allclose(ours[:, :m], want.errors, atol=1e-10)
    np.testing.assert_allclose(ours[:, m : 2 * m] ** 2, want.S[:, range(m), range(m)], rtol=1e-10)
    np.testing.assert_allclose(ours[:, 2 * m : 2 * m + n], want.x, atol=1e-10)
    np.testing.assert_allclose(ours[:, 2 * m + n :] ** 2, want.P[:, range(n), range(n)], atol=1e-11)


@pytest.mark.parametrize("kind", ["ekf", "ukf"])
def test_densities_are_those_of_the_joint_covariance(kind: str) -> None:
    """Innovations one output after the other have the density of the outputs together."""
    data = record(DUFFING)
    values = run(setup(DUFFING, data, kind), "densities")
    want = kalman(DUFFING, data, Q=Q[2], R=R, x0=np.array([0.2, -0.1]), P0=P0[2], substeps=2, sigma=sigma(kind))
    e, s, has = values[:, :2], values[:, 2:], ~np.isnan(data.output_matrix)
    ours = np.sum(np.where(has, -0.5 * (np.log(2 * np.pi * s) + e**2 / s), 0.0), axis=1)
    for t in range(len(data)):
        k = has[t]
        theirs = multivariate_normal(np.zeros(k.sum()), want.S[t][np.ix_(k, k)]).logpdf(want.errors[t, k]) if k.any() else 0.0
        np.testing.assert_allclose(ours[t], theirs, rtol=1e-9, atol=1e-10)


def test_for_a_linear_system_points_and_derivatives_agree() -> None:
    data = record(LINEAR, intersample="foh")
    np.testing.assert_allclose(run(setup(LINEAR, data, "ekf"), "states"), run(setup(LINEAR, data, "ukf"), "states"), atol=1e-10)


def test_the_likelihood_is_that_of_the_dense_joint_gaussian() -> None:
    """States and outputs of a linear system written as one large Gaussian."""
    data, n = record(LINEAR, n=12), 3
    A = np.linalg.matrix_power(_transition(), 2)
    C = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    blocks = [np.linalg.matrix_power(A, k) for k in range(len(data))]
    # Noise of the start, then of each interval, moves all later states.
    moves = [np.concatenate([np.zeros((n * j, n)), *[blocks[k] for k in range(len(data) - j)]]) for j in range(len(data))]
    G = np.concatenate(moves, axis=1)
    cov = G @ block_diag(P0[3], *[Q[3]] * (len(data) - 1)) @ G.T
    big = np.kron(np.eye(len(data)), C)
    joint = big @ cov @ big.T + np.kron(np.eye(len(data)), R)
    y = data.output_matrix - _certain(data)
    has = ~np.isnan(y.ravel())
    want = multivariate_normal(np.zeros(has.sum()), joint[np.ix_(has, has)]).logpdf(y.ravel()[has])
    values = run(setup(LINEAR, data, "ekf", x0=np.zeros(3)), "densities")
    e, s = values[:, :2].ravel()[has], values[:, 2:].ravel()[has]
    np.testing.assert_allclose(np.sum(-0.5 * (np.log(2 * np.pi * s) + e**2 / s)), want, rtol=1e-10)


def _transition() -> np.ndarray:
    k, c, rate = LINEAR.theta
    A = 0.1 * np.array([[0, 1, 0], [-k, -c, 0], [rate, 0, -rate]])
    return np.eye(3) + A + A @ A / 2 + A @ A @ A / 6 + A @ A @ A @ A / 24  # what a Runge-Kutta step is to a linear system


def _certain(data: sid.TimeSeries) -> np.ndarray:
    x, rows = np.zeros(3), []
    for t in range(len(data)):
        x = step(LINEAR, data, t - 1, 2)(x) if t else x
        rows.append(LINEAR.g(data.t[t], x, data.input_at(t, 0.0), LINEAR.theta))
    return np.array(rows)


# -- derivatives ------------------------------------------------------------------------------------------------------


def check_jacobian(s: Setup, want: Any, rtol: float = 1e-6) -> None:
    """Rates of change along each unknown against central differences."""
    layout, x = s.unknowns.layout, s.unknowns.x

    def values(x: np.ndarray) -> np.ndarray:
        params, x0 = layout.place(x)
        return s.filter.run(params, x0, Motion.none(params.size, x0), want)[0]

    _, rates = s.filter.run(*layout.place(x), layout.motion, want)
    assert rates.shape == (x.size, *values(x).shape)
    for i in range(x.size):
        h = 1e-3 * max(abs(x[i]), 0.1)
        near, far = ((values(x + d * h * e) - values(x - d * h * e)) / (2 * d * h) for d in (1, 2) for e in [np.eye(x.size)[i]])
        difference = (4 * near - far) / 3  # Richardson
        np.testing.assert_allclose(rates[i], difference, atol=rtol * max(np.abs(difference).max(), 1e-3), rtol=rtol)
        assert np.abs(rates[i]).max() > 0


@pytest.mark.parametrize("intersample", ["zoh", "foh", "bl"])
@pytest.mark.parametrize("kind", ["ekf", "ukf", "ukf with a negative centre"])
def test_derivatives_over_several_records(kind: str, intersample: str) -> None:
    data = [record(DUFFING, n=20, intersample=intersample), record(DUFFING, n=15, intersample=intersample, seed=1)]
    s = setup(DUFFING, data, kind, x0=[[0.2, 0.1], [-0.1, 0.3]])
    assert s.unknowns.layout.names == ("m", "c", "k", "k3", "x0[0].z", "x0[0].v", "x0[1].z", "x0[1].v")
    check_jacobian(s, "errors")


def test_derivatives_of_densities_by_noise() -> None:
    data = record(DUFFING, n=25)
    predictor = sid.ExtendedKalman(Q={"v": "drive"}, R="estimate", substeps=2)
    initial = sid.InitialState(0.1, P0=P0[2])
    s = set_up(DUFFING.system, data, {**DUFFING.p, "drive": 0.2}, predictor, initial, None, None, "likelihood")
    assert s.unknowns.layout.names == ("m", "c", "k", "k3", "drive", "noise_y1", "noise_y2")
    check_jacobian(s, "densities")


@pytest.mark.parametrize("diffusion", ["mle", 1.0, "dynamic"])
def test_derivatives_of_the_probabilistic_filter(diffusion: Any) -> None:
    data = record(DUFFING, n=15, intersample="foh")
    predictor = sid.ProbabilisticKalman(solver=sid.EK1(2, diffusion=diffusion), R=np.diag(np.diag(R)), substeps=1)
    s = set_up(DUFFING.system, data, DUFFING.p, predictor, sid.InitialState([0.2, 0.1], estimate=True), None, None, "mse")
    check_jacobian(s, "densities", rtol=3e-6)


def test_the_start_of_the_next_record_forgets_the_one_before() -> None:
    one, two = record(DUFFING, n=20), record(DUFFING, n=15, seed=1)
    both = run(setup(DUFFING, [one, two], x0=[[0.2, 0.1], [-0.1, 0.3]]), "states")
    alone = run(setup(DUFFING, two, x0=[-0.1, 0.3]), "states")
    np.testing.assert_allclose(both[20:], alone, atol=1e-13)


def test_certain_states_make_the_predictor_the_free_run() -> None:
    data = record(DUFFING, intersample="foh")
    ours = run(setup(DUFFING, data, x0=[0.2, 0.1], Q=0.0, start=0.0), "errors")
    free = sid.simulate(DUFFING.system, data, DUFFING.p, x0=[0.2, 0.1], substeps=4)
    fine = run(setup(DUFFING, data, x0=[0.2, 0.1], Q=0.0, start=0.0, substeps=4), "errors")
    error = data.output_matrix - np.stack([free["y1"], free["y2"]], axis=1)
    np.testing.assert_allclose(fine, np.where(np.isnan(error), 0.0, error), atol=1e-12)
    almost = run(setup(DUFFING, data, x0=[0.2, 0.1], Q=0.0, start=1e-24 * np.eye(2)), "errors")
    np.testing.assert_allclose(ours, almost, atol=1e-10)


def test_process_noise_grows_with_the_interval() -> None:
    """A gap of three intervals adds three times the noise."""
    data = record(LINEAR, n=20, missing=False)
    gap = np.delete(np.arange(20), [10, 11])
    sparse = sid.TimeSeries(data.t[gap], data.u[gap], data.y[gap], intersample="zoh")
    drift = sid.System(
        lambda t, x, u, p: -1e-9 * p.a * x.s, states=("s",), inputs=("F",), params=("a",), observe=lambda t, x, dx, u, p: x.s
    )
    s = set_up(
        drift, sparse.replace(y=sparse.output_matrix[:, 0]), {"a": 1.0}, sid.ExtendedKalman(Q=0.5, R=2.0, substeps=1),
        sid.InitialState(0.0, P0=0.3), None, None, "mse",
    )  # fmt: skip
    std = run(s, "states")[:, 1]
    filtered = run(s, "states")[:, 3]
    np.testing.assert_allclose(std[0] ** 2, 2.3)
    np.testing.assert_allclose(std[1:] ** 2, filtered[:-1] ** 2 + 2.0 + 0.5 * np.round(np.diff(sparse.t) / 0.2), rtol=1e-6)


@pytest.mark.parametrize("kind", ["ekf", "ukf"])
def test_compiled_code_gives_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = record(DUFFING, n=30)
    s = setup(DUFFING, data, kind, Q=np.diag([0.02, 0.05]), R=np.diag([0.05, 0.08]))
    arguments = (*s.unknowns.layout.place(s.unknowns.x), s.unknowns.layout.motion, "errors")
    values, rates = s.filter.run(*arguments)  # type: ignore[arg-type]
    monkeypatch.undo()
    for got, want in zip(s.filter.run(*arguments), (values, rates), strict=True):  # type: ignore[arg-type]
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-10)


def test_a_stiff_system_is_fitted_with_implicit_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both rates of a fast-slow network, from a wrong guess, without and with a covariance that implicit steps carry."""
    system = sid.System(
        lambda t, x, u, p: (-p.fast * (x.a - u.s), p.slow * (x.a - x.b)),
        states=("a", "b"),
        inputs=("s",),
        params=("fast", "slow"),
        observe=lambda t, x, dx, u, p: (x.a, x.b),
    )
    monkeypatch.setattr(filters, "compiled_batch", compiled_batch)
    data = sid.TimeSeries(0.5 * np.arange(60), np.sign(np.sin(0.4 * np.arange(60))), None, intersample="foh")
    run = sid.simulate(system, data, {"fast": 40.0, "slow": 0.3}, x0=0.0, substeps=16, method="implicit")
    y = np.stack([run["y1"], run["y2"]], axis=1) + 1e-3 * np.random.default_rng(0).normal(size=(60, 2))
    for predictor in (sid.ExtendedKalman(), sid.ExtendedKalman(Q={"b": 1e-3}, R={"y1": 1e-3, "y2": 1e-3}, method="implicit")):
        fit = sid.fit_pem(system, data.replace(y=y), {"fast": 200.0, "slow": 0.6}, predictor=predictor, x0=0.0)
        assert fit.setup.filter.form.method == "implicit"  # type: ignore[union-attr]
        assert fit.p["fast"] == pytest.approx(40.0, rel=0.03) and fit.p["slow"] == pytest.approx(0.3, rel=0.01)
