"""Systems with vectors and matrices: traced, simulated and fitted as the same systems written in scalars."""

from __future__ import annotations

from typing import Any

import cloudpickle
import matplotlib
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from pytensor.compile.mode import Mode
from pytensor.graph import graph_inputs

import pm_sysid as sid
from pm_sysid.likelihood.ode_simulator import batch_distance
from pm_sysid.likelihood.target import Target
from pm_sysid.steps.derived import completed_rates, completed_sets
from pm_sysid.symbolic.scalars import evaluate

PYTHON = Mode(linker="py", optimizer=None)
N = 3


def sees(law: Any) -> sid.System:
    """System whose vector output is an expression of a vector q, a matrix K, a vector m, a scalar c and inputs F."""
    return sid.System(
        lambda t, x, u, p: {"q": x.v, "v": u.F - p.c * x.v},
        states={"q": N, "v": N},
        inputs={"F": N},
        params={"K": (N, N), "m": N, "c": ()},
        observe=lambda t, x, dx, u, p: {"y": law(x, u, p)},
    )


def by_pytensor(law: Any) -> Any:
    """The same expression as a function of the flat q, v, F and parameters."""
    q, v, F = (pt.vector(n, shape=(N,)) for n in ("q", "v", "F"))
    K, m, c = pt.matrix("K", shape=(N, N)), pt.vector("m", shape=(N,)), pt.scalar("c")
    fields = [type("fields", (), f) for f in ({"q": q, "v": v}, {"F": F}, {"K": K, "m": m, "c": c})]
    function = pytensor.function([q, v, F, K, m, c], law(*fields), mode=PYTHON, on_unused_input="ignore")

    def call(x: np.ndarray, u: np.ndarray, p: np.ndarray) -> np.ndarray:
        return np.asarray(function(x[:N], x[N:], u, p[: N * N].reshape(N, N), p[N * N : -1], p[-1]))

    return call


LAWS = {
    "matrix times vector": lambda x, u, p: p.K @ x.q - u.F,
    "transposed": lambda x, u, p: x.q @ p.K.T,
    "slices": lambda x, u, p: pt.concatenate([x.q[1:] - x.q[:-1], p.m[:1]]),
    "stack": lambda x, u, p: pt.stack([x.q[0], p.K[1, 2], x.v[2] ** 3]),
    "quadratic form": lambda x, u, p: pt.stack([x.q @ p.K @ x.q, pt.sum(x.v**2), pt.max(x.q)]),
    "outer": lambda x, u, p: pt.outer(x.q, x.v)[1] * p.m,
    "diagonal": lambda x, u, p: pt.diag(p.m) @ x.q,
    "restoring forces": lambda x, u, p: p.c * pt.where(pt.abs(x.q) > p.m, x.q - p.m * pt.sign(x.q), 0.0),
    "set": lambda x, u, p: (p.K @ x.q)[0].inc(-p.c * x.q[0] ** 3),
    "linear system": lambda x, u, p: pt.linalg.solve(p.K + 5.0 * pt.eye(N), u.F - p.c * x.v),
    "inverse": lambda x, u, p: pt.linalg.inv(p.K + 5.0 * pt.eye(N)) @ x.q,
    "inverse of a product": lambda x, u, p: pt.linalg.inv(p.K @ p.K.T + pt.eye(N)) @ x.q + x.v,
    "eigenvalues": lambda x, u, p: pt.linalg.eigh(p.K + p.K.T)[0] * x.q,
    "eigenvectors": lambda x, u, p: pt.linalg.eigh(p.K + p.K.T)[1] ** 2 @ x.q,
    "one entry of a factor": lambda x, u, p: x.q * pt.linalg.cholesky(p.K @ p.K.T + pt.eye(N))[1, 1],
    "parameters alone": lambda x, u, p: pt.linalg.solve(p.K + 5.0 * pt.eye(N), p.m),
    "sorted": lambda x, u, p: pt.sort(p.m) * x.q,
}


@pytest.mark.parametrize("name", LAWS)
def test_vector_expressions_have_the_values_of_pytensor(name: str) -> None:
    system, expected = sees(LAWS[name]), by_pytensor(LAWS[name])
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x, u, p = (rng.normal(size=n) for n in (2 * N, N, N * N + N + 1))
        (whole,) = completed_sets(system, p[None])
        at = dict(zip([*system.x, *system.u, *system.p], [*x, *u, *whole], strict=True))
        np.testing.assert_allclose(evaluate(system.g, at), expected(x, u, p), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["linear system", "eigenvalues", "one entry of a factor", "sorted"])
def test_rates_of_what_is_derived_are_its_derivatives(name: str) -> None:
    system, rng = sees(LAWS[name]), np.random.default_rng(1)
    p, rates, h = rng.normal(size=(2, N * N + N + 1)), rng.normal(size=(2, 4, N * N + N + 1)), 1e-6
    found = completed_rates(system, p, rates)
    for b in range(4):
        slope = (completed_sets(system, p + h * rates[:, b]) - completed_sets(system, p - h * rates[:, b])) / (2 * h)
        np.testing.assert_allclose(found[:, b], slope, rtol=1e-6, atol=1e-7)


def test_entries_that_nobody_reads_are_not_computed() -> None:
    assert len(sees(LAWS["one entry of a factor"]).derived[0].symbols) == 1


def test_a_matrix_without_an_inverse_is_not_a_number() -> None:
    system = sees(lambda x, u, p: pt.linalg.inv(p.K) @ x.q)
    p = np.ones((2, N * N + N + 1))
    p[1, : N * N] = np.eye(N).ravel()
    whole = completed_sets(system, p)
    assert np.isnan(whole[0, -N * N :]).all() and np.array_equal(whole[1, -N * N :], np.eye(N).ravel())


def test_zeros_of_a_matrix_of_numbers_vanish() -> None:
    K = np.diag(np.full(50, 2.0)) - np.diag(np.ones(49), 1) - np.diag(np.ones(49), -1)
    system = sid.System(
        lambda t, x, u, p: (x.v, -p.w * (K @ x.q)),
        states={"q": 50, "v": 50},
        params=["w"],
        observe=lambda t, x, dx, u, p: x.q[0],
    )
    assert len(system.chains) == 50
    read = [sum(s in set(graph_inputs([f])) for s in system.x) for f in system.f[50:]]
    assert read == [2] + [3] * 48 + [2]


def test_the_equations_are_those_of_the_scalar_form() -> None:
    vectors = sid.System(
        lambda t, x, u, p: (x.v, (u.F - p.c * x.v - p.K @ x.q) / p.m),
        states={"q": 2, "v": 2}, inputs={"F": 2}, params={"K": (2, 2), "c": (), "m": 2},
        observe=lambda t, x, dx, u, p: {"a": dx.v},
    )  # fmt: skip
    assert vectors.chains == (("q[0]", "v[0]"), ("q[1]", "v[1]"))
    assert vectors.equations == [
        r"\dot{q}_{0} = v_{0}",
        r"\dot{q}_{1} = v_{1}",
        r"\dot{v}_{0} = \frac{F_{0} - c\,v_{0} - K_{0,0}\,q_{0} - K_{0,1}\,q_{1}}{m_{0}}",
        r"\dot{v}_{1} = \frac{F_{1} - c\,v_{1} - K_{1,0}\,q_{0} - K_{1,1}\,q_{1}}{m_{1}}",
        r"a_{0} = \dot{v}_{0}",
        r"a_{1} = \dot{v}_{1}",
    ]
    assert "states      q (2), v (2)" in repr(vectors) and "parameters  K (2 x 2), c, m (2)" in repr(vectors)


def test_what_is_computed_outside_is_said_in_the_equations() -> None:
    assert MASSES.equations[-1] == r"h_{1} = \text{Solve, a function of } M"


def vector_system(dynamics: Any, observe: Any = lambda t, x, dx, u, p: x.q, **sizes: Any) -> sid.System:
    sizes = {"states": {"q": 2, "v": 2}, "inputs": {"F": 2}, "params": {"K": (2, 2), "c": ()}} | sizes
    return sid.System(dynamics, observe=observe, **sizes)


WRONG = {
    "a shape that would be broadcast": (
        lambda: vector_system(lambda t, x, u, p: (x.v, p.c * x.v[0])),
        "'v' of the shape",
    ),
    "too few": (lambda: vector_system(lambda t, x, u, p: (x.v, x.v, x.v)), "dynamics returned 3 derivatives"),
    "a missing name": (lambda: vector_system(lambda t, x, u, p: {"q": x.v}), "return one entry for each state"),
    "a matrix of states": (lambda: vector_system(None, states={"q": (2, 2)}), "give vectors"),
    "an output of another shape": (
        lambda: vector_system(lambda t, x, u, p: (x.v, u.F), lambda t, x, dx, u, p: {"q": x.q[:1]}),
        "rename the output",
    ),
    "an operation of states": (
        lambda: vector_system(lambda t, x, u, p: (x.v, pt.sort(x.q))),
        "what depends on parameters alone",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_systems_are_refused_with_the_remedy(name: str) -> None:
    make, said = WRONG[name]
    with pytest.raises((ValueError, TypeError), match=said):
        make()


# -- the same system in vectors, in scalars, and with an inverse of its mass matrix ------------------------------------------

K = np.array([[300.0, -100.0], [-100.0, 200.0]])
VECTORS = sid.System(
    lambda t, x, u, p: {"q": x.v, "v": (u.F - p.c * x.v - p.K @ x.q) / p.m},
    states={"q": 2, "v": 2},
    inputs={"F": 2},
    params={"K": (2, 2), "c": (), "m": 2},
    observe=lambda t, x, dx, u, p: {"z": x.q},
)
SCALARS = sid.System(
    lambda t, x, u, p: (
        x.v0,
        x.v1,
        (u.F0 - p.c * x.v0 - (p.k00 * x.q0 + p.k01 * x.q1)) / p.m0,
        (u.F1 - p.c * x.v1 - (p.k10 * x.q0 + p.k11 * x.q1)) / p.m1,
    ),
    states=("q0", "q1", "v0", "v1"),
    inputs=("F0", "F1"),
    params=("k00", "k01", "k10", "k11", "c", "m0", "m1"),
    observe=lambda t, x, dx, u, p: (x.q0, x.q1),
)
MASSES = sid.System(
    lambda t, x, u, p: {"q": x.v, "v": pt.linalg.solve(p.M, u.F - p.c * x.v - p.K @ x.q)},
    states={"q": 2, "v": 2},
    inputs={"F": 2},
    params={"K": (2, 2), "c": (), "M": (2, 2)},
    observe=lambda t, x, dx, u, p: {"z": x.q},
)
TRUTH = {"K": K, "c": 0.5, "m": np.array([1.0, 1.2])}


@pytest.fixture(scope="module")
def record() -> sid.TimeSeries:
    rng = np.random.default_rng(0)
    t, F = 0.01 * np.arange(150), rng.normal(size=(150, 2))
    run = sid.simulate(VECTORS, sid.TimeSeries(t, F), TRUTH, x0=0.0, substeps=4)
    return sid.TimeSeries(t, F, run["z"].to_numpy() + 3e-3 * rng.normal(size=(150, 2)))


def filter_of(system: sid.System, record: sid.TimeSeries, **options: Any) -> pm.Model:
    with pm.Model() as model:
        springs, c = pm.Normal("K", K, 10.0, shape=(2, 2)), pm.LogNormal("c", np.log(0.5), 0.3)
        m, s = pm.LogNormal("m", 0.1, 0.1, shape=2), pm.LogNormal("s", np.log(3e-3), 0.1)
        params: dict[str, Any] = {"K": springs, "c": c, "m": m}
        if system is SCALARS:
            params = {"c": c, **{f"k{i}{j}": springs[i, j] for i in (0, 1) for j in (0, 1)}, "m0": m[0], "m1": m[1]}
        if system is MASSES:
            params = {"K": springs, "c": c, "M": pt.diag(m)}
        noise = s if system is SCALARS else {"z": s}
        x0 = 0.0 if system is SCALARS else {"q": [0.0, 0.0], "v": 0.0}
        sid.ODEFilter("y", system, record, params, noise=noise, x0=x0, substeps=4, **options)
    return model


def value_and_gradient(model: pm.Model, shift: float) -> tuple[float, np.ndarray]:
    function = model.logp_dlogp_function(ravel_inputs=True)
    function.set_extra_values({})
    point = model.initial_point()
    value, gradient = function(np.concatenate([np.ravel(point[v.name]) for v in model.value_vars]) + shift)
    return float(value), np.asarray(gradient)


@pytest.mark.parametrize("covariance", ["dense", "block"])
def test_vectors_give_the_same_numbers_as_scalars_to_the_last_bit(record: sid.TimeSeries, covariance: Any) -> None:
    solver = sid.EK1(order=4, covariance=covariance)
    vectors, scalars = (value_and_gradient(filter_of(s, record, solver=solver), 0.01) for s in (VECTORS, SCALARS))
    assert np.isfinite(vectors[0]) and vectors[0] == scalars[0]
    np.testing.assert_array_equal(vectors[1], scalars[1])


@pytest.mark.filterwarnings("ignore::pm_sysid.SubstepWarning")
def test_an_inverse_outside_the_recurrence_has_the_gradient_of_the_division(record: sid.TimeSeries) -> None:
    solver = sid.EK1(order=2)
    inverse = value_and_gradient(filter_of(MASSES, record, solver=solver), 0.01)
    scalars = value_and_gradient(filter_of(SCALARS, record, solver=solver), 0.01)
    np.testing.assert_allclose(inverse[0], scalars[0], rtol=1e-12)
    np.testing.assert_allclose(inverse[1], scalars[1], rtol=1e-8)


def test_a_batch_of_particles_has_the_values_of_each(record: sid.TimeSeries) -> None:
    model = filter_of(MASSES, record, solver=sid.EK1(order=4))
    rows = np.random.default_rng(1).normal(size=(5, 8)) * 0.05 + np.concatenate([K.ravel(), np.zeros(4)])
    rows[:, -1] -= 6.0
    logp = model.compile_logp(vars=model.observed_RVs)
    at = [{"K": r[:4].reshape(2, 2), "c_log__": r[4], "m_log__": r[5:7], "s_log__": r[7]} for r in rows]
    np.testing.assert_allclose(Target(model).log_likelihood(rows), [logp(p) for p in at], rtol=1e-11)


def test_a_singular_mass_matrix_is_impossible_and_no_error(record: sid.TimeSeries) -> None:
    with pm.Model() as model:
        m = pm.Normal("m", 1.0, 1.0)
        M = pt.stack([pt.stack([m, 1.0]), pt.stack([1.0, m])])
        params = {"K": K, "c": 0.5, "M": M}
        sid.ODEFilter("y", MASSES, record, params, noise=3e-3, x0=0.0, substeps=4, solver=sid.EK1(order=4))
    logp = model.compile_logp(vars=model.observed_RVs)
    assert logp({"m": 1.0}) == -np.inf and np.isfinite(logp({"m": 1.2}))


def test_runs_of_draws_have_a_dimension_for_each_vector(record: sid.TimeSeries) -> None:
    many = {"K": np.stack([K, 1.1 * K]), "c": np.array([0.5, 0.4]), "m": np.array([[1.0, 1.2], [1.1, 1.0]])}
    runs = sid.simulate(VECTORS, record, many, x0={"q": 0.0, "v": [0.1, 0.2]}, substeps=4)
    assert runs["q"].dims == ("draw", "time", "q_dim_0") and list(runs) == ["z", "q", "v"]
    one = sid.simulate(
        SCALARS,
        record,
        {"k00": 330.0, "k01": -110.0, "k10": -110.0, "k11": 220.0, "c": 0.4, "m0": 1.1, "m1": 1.0},
        x0={"q0": 0.0, "q1": 0.0, "v0": 0.1, "v1": 0.2},
        substeps=4,
    )
    # One matrix product of another order of the sums in the two kernels, at most.
    np.testing.assert_allclose(runs["v"][1, :, 1], one["v1"], rtol=1e-12, atol=1e-15)


def test_prediction_errors_take_and_give_arrays(record: sid.TimeSeries) -> None:
    guess = {"K": 1.05 * K, "M": np.diag([1.05, 1.15])}
    predictor = sid.ExtendedKalman(substeps=2)
    bounds = ({"K": K - 150.0, "M": -np.ones((2, 2))}, {"K": K + 150.0, "M": 2 * np.ones((2, 2))})
    x0 = {"q": [0.0, 0.0], "v": 0.0}
    fit = sid.fit_pem(MASSES, record, guess, fixed={"c": 0.5}, predictor=predictor, x0=x0, bounds=bounds)
    np.testing.assert_array_equal(fit.p["K"].ravel(), fit.x[:4])
    assert fit.names[:4] == ["K[0, 0]", "K[0, 1]", "K[1, 0]", "K[1, 1]"] and fit.success
    # Mass and stiffness share a scale of each row only up to the inputs, which are known: all eight can be found.
    expected = np.concatenate([K.ravel(), np.diag(TRUTH["m"]).ravel()])
    assert np.all(np.abs(fit.x - expected) < 5 * fit.x_stderr + 1e-9)
    run = fit.simulate()
    assert run["z"].dims == ("time", "z_dim_0")
    table = sid.compare_fits(fit, record)
    assert list(table.table.index.get_level_values("output")) == ["z[0]", "z[1]"]
    matplotlib.use("Agg")
    sid.plot_compare_fits(table)


def test_free_runs_in_a_model_have_distances_for_many_matrices(record: sid.TimeSeries) -> None:
    with pm.Model() as model:
        springs = pm.Normal("K", K, 10.0, shape=(2, 2))
        sid.ODESimulator("y", MASSES, record, {"K": springs, "c": 0.5, "M": np.diag(TRUTH["m"])}, x0=0.0, substeps=4)
    found = batch_distance(model)({"K": np.stack([K, 1.2 * K])}, 1)
    runs = sid.simulate(MASSES, record, {"K": 1.2 * K, "c": 0.5, "M": np.diag(TRUTH["m"])}, x0=0.0, substeps=4, distance="nmse")
    assert found[0] < found[1]
    np.testing.assert_allclose(found[1], float(runs["z"].mean()), rtol=1e-10)


def test_states_and_predictions_are_called_by_their_entries(record: sid.TimeSeries) -> None:
    model = filter_of(MASSES, record, solver=sid.EK1(order=4))
    draws = {
        "K": np.tile(K, (1, 3, 1, 1)),
        "c": np.full((1, 3), 0.5),
        "m": np.tile(TRUTH["m"], (1, 3, 1)),
        "s": np.full((1, 3), 1e-3),
    }
    idata = xr.Dataset({k: (("chain", "draw", *(f"{k}{i}" for i in range(v.ndim - 2))), v) for k, v in draws.items()})
    smoothed = sid.smooth(idata, model=model)
    assert list(smoothed.coords["state"].values) == ["q[0]", "q[1]", "v[0]", "v[1]"]
    for of in ("", "_std"):
        assert smoothed[f"q{of}"].dims == ("chain", "draw", "time", "q_dim_0")
        assert smoothed[f"z{of}"].dims == ("chain", "draw", "time", "z_dim_0")
        np.testing.assert_array_equal(smoothed[f"v{of}"][..., 1], smoothed[f"states{of}"].sel(state="v[1]"))
        np.testing.assert_array_equal(smoothed[f"z{of}"][..., 0], smoothed[f"outputs{of}"].sel(output="z[0]"))
    paths = sid.sample_states(idata, model=model, random_seed=1)
    np.testing.assert_array_equal(paths["v"][..., 1], paths["states"].sel(state="v[1]"))
    assert "q_std" not in paths and paths["z"].dims[-1] == "z_dim_0"
    runs = sid.predict(idata, record, model=model, draws=3, x0=0.0)
    far = np.abs(smoothed["states"].sel(state="q[1]")[0, 0].to_numpy() - runs["q"][0, :, 1].to_numpy())
    assert far.max() < 2e-3
    np.testing.assert_allclose(sid.predict(idata, record, model=model, draws=3, x0=0.0, every_step=True)["q"][0], runs["q"][0])
    matplotlib.use("Agg")
    sid.plot_fit(record.replace(outputs=["z[0]", "z[1]"]), runs, output="z[1]")


def test_a_system_survives_its_way_to_another_process(record: sid.TimeSeries) -> None:
    params = {"K": K, "c": 0.5, "M": np.diag(TRUTH["m"])}
    copy = cloudpickle.loads(cloudpickle.dumps(MASSES))
    a, b = (sid.simulate(s, record[:20], params, x0=0.0, substeps=4)["q"] for s in (MASSES, copy))
    assert copy.states.shapes == MASSES.states.shapes
    np.testing.assert_array_equal(a, b)
