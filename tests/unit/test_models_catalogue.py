"""Systems of the catalogue against their equations, written out once more and solved to ten digits by SciPy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pymc as pm
import pytest
from scipy.integrate import solve_ivp

import pm_sysid as sid
from pm_sysid import models
from pm_sysid.models.elements import ELEMENTS
from pm_sysid.symbolic.derivatives import jacobian
from pm_sysid.symbolic.scalars import evaluate

T, H = 61, 0.02
RNG = np.random.default_rng(5)
WAVE = np.sin(2 * np.pi * 1.3 * np.arange(T) * H) + 0.5 * RNG.standard_normal(T)

type Law = Callable[[np.ndarray, np.ndarray, dict[str, float]], Any]


def reference(law: Law, params: dict[str, float], u: np.ndarray, x0: list[float]) -> np.ndarray:
    """States (T, n); the input is linear between samples, and the integration starts anew at each of its corners."""
    states = [np.array(x0)]
    for a, b in pairwise(u):

        def rates(t: float, x: np.ndarray, a: np.ndarray = a, b: np.ndarray = b) -> Any:
            return law(x, a + (b - a) * t / H, params)

        solution = solve_ivp(rates, (0.0, H), states[-1], "DOP853", rtol=1e-10, atol=1e-13)
        states.append(solution.y[:, -1])
    return np.array(states)


def check(
    system: sid.System, law: Law, params: dict[str, float], x0: list[float], gain: Any = 1.0, substeps: int = 64
) -> np.ndarray:
    """A free run agrees with the reference to a millionth of the root mean square of each state."""
    u = np.outer(WAVE, np.atleast_1d(gain))[:, : len(system.inputs)]
    record = sid.TimeSeries(np.arange(T) * H, u if system.inputs else None, None, intersample="foh")
    run = sid.simulate(system, record, params, x0=x0, substeps=substeps)
    expected = reference(law, params, u if system.inputs else np.zeros((T, 1)), x0)
    for i, name in enumerate(system.states):
        size = np.sqrt(np.mean(expected[:, i] ** 2))
        assert size > 0
        np.testing.assert_allclose(run[name], expected[:, i], atol=1e-6 * size, rtol=0, err_msg=name)
    return expected


# -- single masses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params, x0, options",
    [
        (dict(m=0.8, c=0.6, k=90.0, k3=4e3), [0.05, 0.0], {}),
        (dict(m=0.8, c=0.6, k=90.0, k3=-2e3), [0.05, 0.0], {}),
        (dict(m=0.8, c=0.6, k=-40.0, k3=9e3), [0.02, 0.0], {}),
        (dict(m=0.8, c=0.6, k=90.0, k3=4e3, offset=3.0), [0.05, 0.0], dict(offset=True)),
    ],
    ids=["hardening", "softening", "bistable", "offset"],
)
def test_duffing(params: dict[str, float], x0: list[float], options: dict[str, bool]) -> None:
    def law(x: np.ndarray, u: np.ndarray, p: dict[str, float]) -> Any:
        return x[1], (u[0] + p.get("offset", 0.0) - p["c"] * x[1] - p["k"] * x[0] - p["k3"] * x[0] ** 3) / p["m"]

    states = check(models.duffing(**options), law, params, x0, gain=4.0)
    if params["k"] < 0:  # it stays in the well it started beside
        assert abs(states[-20:, 0].mean()) > 0.3 * np.sqrt(40.0 / 9e3)


@pytest.mark.parametrize("forced", [True, False])
def test_van_der_pol(forced: bool) -> None:
    def law(x: np.ndarray, u: np.ndarray, p: dict[str, float]) -> Any:
        return x[1], (u[0] + p["c"] * (1 - x[0] ** 2 / p["a"] ** 2) * x[1] - p["k"] * x[0]) / p["m"]

    check(models.van_der_pol(forced=forced), law, dict(m=1.5, c=4.0, k=120.0, a=0.2), [0.1, 0.5], gain=3.0)


def test_van_der_pol_ends_in_its_cycle() -> None:
    record = sid.TimeSeries(np.arange(3000) * H, None, None)
    run = sid.simulate(models.van_der_pol(forced=False), record, dict(m=1.0, c=1.0, k=1.0, a=0.3), x0=[0.01, 0.0])
    assert float(abs(run["z"][1500:]).max()) == pytest.approx(0.6, rel=0.012)


@pytest.mark.parametrize("friction", [False, True])
def test_pendulum(friction: bool) -> None:
    def law(x: np.ndarray, u: np.ndarray, p: dict[str, float]) -> Any:
        dry = p.get("Tc", 0.0) * np.tanh(x[1] / 0.5)
        return x[1], (u[0] - p["c"] * x[1] - p["G"] * np.sin(x[0]) - dry) / p["J"]

    params = dict(J=0.1, c=0.02, G=1.9) | (dict(Tc=0.2) if friction else {})
    states = check(models.pendulum(friction=friction, v_s=0.5), law, params, [2.5, 1.0], gain=1.0)
    assert np.ptp(states[:, 0]) > 2


def stribeck(v: Any, p: dict[str, float], end: str = "") -> Any:
    return p[f"Fc{end}"] + (p[f"Fs{end}"] - p[f"Fc{end}"]) * np.exp(-((v / p[f"v_st{end}"]) ** 2))


def test_stribeck_oscillator() -> None:
    def law(x: np.ndarray, u: np.ndarray, p: dict[str, float]) -> Any:
        friction = stribeck(x[1], p) * np.tanh(x[1] / 0.02)
        return x[1], (u[0] - p["c"] * x[1] - p["k"] * x[0] - friction) / p["m"]

    params = dict(m=1.2, c=0.5, k=200.0, Fc=1.0, Fs=2.5, v_st=0.1)
    check(models.stribeck_oscillator(v_s=0.02), law, params, [0.02, 0.3], gain=12.0, substeps=256)


@pytest.mark.parametrize("v_s", [0.0, 0.01])
def test_lugre_oscillator(v_s: float) -> None:
    def law(x: np.ndarray, u: np.ndarray, p: dict[str, float]) -> Any:
        z, v, r = x
        speed = v * np.tanh(v / v_s) if v_s else abs(v)
        rate = v - p["sigma0"] * speed / stribeck(v, p) * r
        return v, (u[0] - p["c"] * v - p["k"] * z - p["sigma0"] * r - p["sigma1"] * rate) / p["m"], rate

    params = dict(m=1.2, c=0.5, k=200.0, Fc=1.0, Fs=1.5, v_st=0.1, sigma0=4e3, sigma1=10.0)
    check(models.lugre_oscillator(v_s=v_s), law, params, [0.02, 0.3, 0.0], gain=12.0, substeps=2048)


def test_bristles_end_at_the_friction_of_steady_sliding() -> None:
    system = models.lugre_oscillator(observe="acceleration")
    v, params = 0.05, dict(m=1.0, c=0.0, k=0.0, Fc=1.0, Fs=1.5, v_st=0.1, sigma0=4e3, sigma1=10.0)
    level = 1.0 + 0.5 * np.exp(-0.25)
    values = [0.0, v, level / 4e3, level, *(params[n] for n in system.params)]
    at = dict(zip([*system.x, *system.u, *system.p], values, strict=True))
    np.testing.assert_allclose(evaluate(system.f, at), [v, 0.0, 0.0], atol=1e-12)


def test_freeplay() -> None:
    def law(x: np.ndarray, u: np.ndarray, p: dict[str, float]) -> Any:
        force = np.select([x[0] > p["d2"], x[0] < p["d1"]], [p["k"] * (x[0] - p["d2"]), p["k"] * (x[0] - p["d1"])])
        return x[1], (u[0] - p["c"] * x[1] - force) / p["m"]

    params = dict(m=0.5, c=0.8, k=300.0, d1=-0.02, d2=0.03)
    states = check(models.freeplay(), law, params, [0.0, 0.4], gain=6.0, substeps=1024)
    assert states[:, 0].min() < -0.02 and states[:, 0].max() > 0.03


# -- tanks ------------------------------------------------------------------------------------------------------------


def root(h: Any, h_s: float) -> Any:
    return np.sign(h) * np.sqrt(np.abs(h)) / (1 + (h_s / h) ** 2) ** 0.25 if h else 0.0


def test_cascaded_tanks() -> None:
    def law(x: np.ndarray, u: np.ndarray, p: dict[str, float]) -> Any:
        upper, lower = root(x[0], 0.01), root(x[1], 0.01)
        return p["k4"] * u[0] - p["k1"] * upper, p["k2"] * upper - p["k3"] * lower

    params = dict(k1=0.5, k2=0.4, k3=0.3, k4=0.6)
    states = check(models.cascaded_tanks(h_s=0.01), law, params, [0.05, 0.4])
    assert states[:, 0].min() < 0.0  # a level below the bottom is no end


def test_coupled_tanks() -> None:
    def law(x: np.ndarray, u: np.ndarray, p: dict[str, float]) -> Any:
        across = p["a12"] * np.sqrt(19.62) * root(x[0] - x[1], 1e-3)
        return (u[0] - across) / p["A1"], (across - p["a2"] * np.sqrt(19.62) * root(x[1], 1e-3)) / p["A2"]

    params = dict(A1=0.01, A2=0.02, a12=4e-4, a2=3e-4)
    states = check(models.coupled_tanks(), law, params, [0.30, 0.31], gain=5e-3, substeps=256)
    assert np.ptp(np.sign(states[:, 0] - states[:, 1])) == 2


@pytest.mark.parametrize("level", [-0.3, -1e-9, 0.0, 1e-12, 0.5])
def test_tanks_have_slopes_at_every_level(level: float) -> None:
    for system in (models.cascaded_tanks(), models.coupled_tanks()):
        slopes = [d for row in jacobian(system.f, [*system.x, *system.p]) for d in row]
        values = [level, level, 1.0, *(0.5 for _ in system.p)]
        at = dict(zip([*system.x, *system.u, *system.p], values, strict=True))
        assert np.all(np.isfinite(np.array(evaluate(slopes, at), dtype=float)))


def test_the_rounded_root_is_close_to_the_root() -> None:
    system = models.cascaded_tanks(h_s=1e-3)
    for h in (1e-2, 0.1, 3.0):
        at = dict(zip([*system.x, *system.u, *system.p], [h, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], strict=True))
        assert -evaluate(system.f, at)[0] == pytest.approx(np.sqrt(h), rel=0.26 * (1e-3 / h) ** 2)


# -- chains -----------------------------------------------------------------------------------------------------------


def test_chain_of_linear_links() -> None:
    """The matrices of a chain between two walls."""
    m, k, c = [1.0, 2.0, 0.5], [300.0, 200.0, 400.0, 100.0], [1.0, 2.0, 0.5, 0.2]

    def tridiagonal(s: list[float]) -> np.ndarray:
        return np.diag([s[i] + s[i + 1] for i in range(3)]) - np.diag(s[1:3], 1) - np.diag(s[1:3], -1)

    def law(x: np.ndarray, u: np.ndarray, p: dict[str, float]) -> Any:
        z, v = x[::2], x[1::2]
        a = (np.array([u[0], 0.0, u[1]]) - tridiagonal(c) @ v - tridiagonal(k) @ z) / m
        return np.stack([v, a], axis=1).ravel()

    system = models.chain(3, walls="both", forces=[3, 1])
    params = {f"{s}{i + 1}": x for s, values in (("m", m), ("k", k), ("c", c)) for i, x in enumerate(values)}
    assert system.inputs == ("F1", "F3") and system.chains == (("z1", "v1"), ("z2", "v2"), ("z3", "v3"))
    check(system, law, params, [0.01, 0.0, -0.02, 0.1, 0.0, 0.0], gain=[5.0, -3.0])


#: Forces of the elements of link 2 from (d, v, r, params), and dr/dt.
LAWS: dict[str, tuple[dict[str, float], Callable[..., Any]]] = {
    "quadratic": (dict(k2=200.0), lambda d, v, r, p: (p["k2_2"] * d * d, 0.0)),
    "cubic": (dict(k3=5e4), lambda d, v, r, p: (p["k3_2"] * d * d * d, 0.0)),
    "cubic_damping": (dict(c3=4.0), lambda d, v, r, p: (p["c3_2"] * v * v * v, 0.0)),
    "stop": (dict(ks=500.0, ds=0.01), lambda d, v, r, p: (p["ks_2"] * (d - p["ds_2"]) if d > p["ds_2"] else 0.0, 0.0)),
    "freeplay": (
        dict(kf=400.0, d1=-0.01, d2=0.02),
        lambda d, v, r, p: (p["kf_2"] * (d - np.clip(d, p["d1_2"], p["d2_2"])), 0.0),
    ),
    "bilinear_damping": (dict(cr=3.0), lambda d, v, r, p: (p["cr_2"] * v if v > 0 else 0.0, 0.0)),
    "coulomb": (dict(Fc=0.7), lambda d, v, r, p: (p["Fc_2"] * np.tanh(v / 0.05), 0.0)),
    "tanh": (dict(Fc=0.7, b=30.0), lambda d, v, r, p: (p["Fc_2"] * np.tanh(v * p["b_2"]), 0.0)),
    "stribeck": (dict(Fc=0.7, Fs=1.1, v_st=0.2), lambda d, v, r, p: (stribeck(v, p, "_2") * np.tanh(v / 0.05), 0.0)),
    "lugre": (
        dict(Fc=0.7, Fs=1.1, v_st=0.2, sigma0=3e3, sigma1=5.0),
        lambda d, v, r, p: lugre(v, r, p),
    ),
    "bouc_wen": (
        dict(alpha=900.0, beta=20.0, gamma=0.8, delta=-0.5),
        lambda d, v, r, p: (r, p["alpha_2"] * v - p["beta_2"] * (p["gamma_2"] * abs(v) * r + p["delta_2"] * v * abs(r))),
    ),
}


def lugre(v: float, r: float, p: dict[str, float]) -> tuple[float, float]:
    rate = v - p["sigma0_2"] * abs(v) * r / stribeck(v, p, "_2")
    return p["sigma0_2"] * r + p["sigma1_2"] * rate, rate


def test_every_element_has_its_law_here() -> None:
    assert set(LAWS) == set(ELEMENTS)


def two_masses(elements: tuple[str, ...]) -> tuple[sid.System, Law, dict[str, float]]:
    """Chain of two masses with elements in its second link, its law written out, and parameters."""
    system = models.chain(2, {2: elements}, v_s=0.05)
    params = dict(m1=1.0, m2=0.6, k1=250.0, k2=80.0, c1=1.0, c2=0.4)
    params |= {f"{name}_2": x for element in elements for name, x in LAWS[element][0].items()}

    def law(x: np.ndarray, u: np.ndarray, p: dict[str, float]) -> Any:
        z1, v1, z2, v2 = x[:4]
        results = [LAWS[element][1](z2 - z1, v2 - v1, x[4] if len(x) > 4 else 0.0, p) for element in elements]
        first = p["k1"] * z1 + p["c1"] * v1
        second = p["k2"] * (z2 - z1) + p["c2"] * (v2 - v1) + sum(force for force, _ in results)
        memory = sum(rate for _, rate in results)
        return [v1, (second - first) / p["m1"], v2, (u[0] - second) / p["m2"], memory][: len(x)]

    return system, law, params


@pytest.mark.parametrize("element", LAWS)
def test_element_between_two_masses(element: str) -> None:
    system, law, params = two_masses((element,))
    assert system.params == tuple(params)
    forces = set()
    for point in np.random.default_rng(3).normal(0.0, [0.02, 0.3, 0.02, 0.3, 0.5][: len(system.states)], (40, len(system.x))):
        at = dict(zip([*system.x, *system.u, *system.p], [*point, 2.0, *params.values()], strict=True))
        rates = evaluate(system.f, at)
        np.testing.assert_allclose(rates, law(point, np.array([2.0]), params), rtol=1e-11, atol=1e-11)
        forces.add(float(LAWS[element][1](point[2] - point[0], point[3] - point[1], 0.1, params)[0] != 0.0))
    assert 1.0 in forces


@pytest.mark.parametrize("elements", [("cubic", "freeplay", "coulomb"), ("quadratic", "bouc_wen")])
def test_run_with_elements_between_two_masses(elements: tuple[str, ...]) -> None:
    system, law, params = two_masses(elements)
    check(system, law, params, [0.01, 0.0, 0.03, 0.3, 0.0][: len(system.states)], gain=5.0, substeps=1024)


def test_several_elements_add_up() -> None:
    both = models.chain(1, {1: ("cubic", "coulomb")}, observe="acceleration", v_s=0.05)
    at = dict(zip([*both.x, *both.u, *both.p], [0.1, 0.02, 3.0, 2.0, 50.0, 1.5, 700.0, 0.4], strict=True))
    assert both.params == ("m1", "k1", "c1", "k3_1", "Fc_1")
    expected = (3.0 - 5.0 - 0.03 - 0.7 - 0.4 * np.tanh(0.4)) / 2.0
    assert evaluate(both.f, at)[1] == pytest.approx(expected)


def test_free_chain_keeps_its_momentum() -> None:
    system = models.chain(2, {2: "cubic"}, walls="none", forces=[], sensors=[2], observe="velocity")
    assert (system.params, system.inputs, system.outputs) == (("m1", "m2", "k2", "c2", "k3_2"), (), ("y2",))
    params = dict(m1=1.0, m2=3.0, k2=50.0, c2=0.2, k3_2=1e3)
    run = sid.simulate(system, sid.TimeSeries(np.arange(50) * H), params, x0=dict(z1=0.0, v1=1.0, z2=0.1, v2=0.0), substeps=8)
    np.testing.assert_allclose(run["v1"] + 3.0 * run["v2"], 1.0, atol=1e-10)
    np.testing.assert_array_equal(run["y2"], run["v2"])


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ((0,), {}, "n is 0; give the number of masses"),
        ((2.0,), {}, "n is 2.0"),
        ((2,), dict(walls="right"), "walls is 'right'; give one of"),
        ((2, {3: "cubic"}), {}, "names the link 3; links are numbered 1 to 2"),
        ((1, {1: "cubic"}), dict(walls="none"), "there are no links"),
        ((2, {1: "magic"}), {}, "has 'magic' in link 1; give some of"),
        ((2, {1: ("coulomb", "tanh")}), {}, "'coulomb' and 'tanh' share the parameter Fc_1"),
        ((2, {1: ("lugre", "bouc_wen")}), {}, "both 'lugre' and 'bouc_wen' have a memory"),
        ((2,), dict(forces=[3]), "forces names the mass 3; masses are numbered 1 to 2"),
        ((2,), dict(sensors=[1, 1]), "sensors names a mass twice"),
        ((2,), dict(sensors=[]), "sensors is empty"),
        ((2,), dict(observe="angle"), "observe is 'angle'"),
        ((2,), dict(v_s=-1.0), "v_s is -1.0"),
    ],
)
def test_chain_says_what_is_wrong(arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.chain(*arguments, **options)


def test_other_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="elements is 'cubic'; give a mapping"):
        models.chain(2, "cubic")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="forces is 1; give the numbers"):
        models.chain(2, forces=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="h_s is 0; give a small positive level"):
        models.cascaded_tanks(h_s=0)
    for make in (models.van_der_pol, models.pendulum, models.freeplay, models.lugre_oscillator, models.coupled_tanks):
        with pytest.raises(ValueError, match="observe is 'force'; give one of"):
            make(observe="force")  # type: ignore[operator]


# -- priors -----------------------------------------------------------------------------------------------------------


def test_priors_are_around_the_guesses() -> None:
    with pm.Model() as model:
        other = pm.HalfNormal("own")
        params = models.priors({"m": 2.0, "k": 1e5, "d1": (-1e-3, 2e-4), "c": other}, sd=0.3, prefix="rig_")
    assert list(params) == ["m", "k", "d1", "c"] and params["c"] is other
    assert [v.name for v in model.free_RVs] == ["own", "rig_m", "rig_k", "rig_d1_scaled"]
    assert [v.name for v in model.deterministics] == ["rig_d1"]
    draws = np.array(pm.draw([params["m"], params["k"], params["d1"]], 4000, random_seed=1))
    np.testing.assert_allclose(np.median(draws[:2], axis=1), [2.0, 1e5], rtol=0.03)
    np.testing.assert_allclose(np.log(draws[:2]).std(axis=1), 0.3, rtol=0.05)
    assert draws[2].mean() == pytest.approx(-1e-3, abs=2e-5) and draws[2].std() == pytest.approx(2e-4, rel=0.05)


def test_priors_make_a_model_of_a_system() -> None:
    system = models.duffing(offset=True)
    record = sid.TimeSeries(np.arange(T) * H, WAVE, 0.01 * WAVE)
    with pm.Model() as model:
        params = models.priors({"m": 1.0, "c": 2.0, "k": 400.0, "k3": (0.0, 1e4), "offset": (0.0, 0.1)})
        sid.ODEFilter("y", system, record, params, noise=0.1, substeps=4, solver=sid.EK0(order=2, diffusion=1.0))
    assert np.isfinite(model.compile_logp()(model.initial_point()))


def test_priors_of_vectors_and_matrices() -> None:
    f, means, sds = np.array([3.0, 20.0]), np.arange(6.0).reshape(3, 2), 0.1 + np.arange(6).reshape(3, 2)
    with pm.Model() as model:
        guess = {"f": f, "n": np.array([4, 5]), "phi": (means, 0.5), "K": (means, sds), "zeta": np.array(0.02)}
        params = models.priors(guess, sd=0.2)
    assert [v.name for v in model.free_RVs] == ["f", "n", "phi_scaled", "K_scaled", "zeta"]
    assert [v.type.shape for v in params.values()] == [(2,), (2,), (3, 2), (3, 2), ()]
    f_draws, phi, K = pm.draw([params["f"], params["phi"], params["K"]], 4000, random_seed=1)
    np.testing.assert_allclose(np.median(f_draws, axis=0), f, rtol=0.03)
    np.testing.assert_allclose(np.log(f_draws).std(axis=0), 0.2, rtol=0.05)
    np.testing.assert_allclose(phi.mean(axis=0), means, atol=0.04)
    np.testing.assert_allclose(phi.std(axis=0), 0.5, rtol=0.05)
    np.testing.assert_allclose(K.std(axis=0), sds, rtol=0.05)


def test_priors_of_a_vector_make_a_model_of_a_structure() -> None:
    system = models.modal("f", "zeta", {"phi": (1, 2)}, input=0, output={"acceleration": 0})
    record = sid.TimeSeries(np.arange(T) * H, WAVE, 0.01 * WAVE, inputs="F")
    with pm.Model() as model:
        guess = {"f": np.array([1.0, 2.0]), "zeta": np.array([0.01, 0.02]), "phi": (np.array([[1.0, 0.5]]), 0.2)}
        solver = sid.EK0(order=2, diffusion=1.0)
        sid.ODEFilter("y", system, record, models.priors(guess), noise=0.1, x0=0.0, substeps=4, solver=solver)
    assert np.isfinite(model.compile_logp()(model.initial_point()))


@pytest.mark.parametrize(
    "guess, sd, message",
    [
        ({"f": np.array([1.0, -2.0])}, 0.5, r"guess\['f'\]\[1\] is -2.0; give \(mean, sd\)"),
        ({"K": np.array([[1.0, 2.0], [0.0, 1.0]])}, 0.5, r"guess\['K'\]\[1, 0\] is 0.0"),
        ({"f": (np.zeros(3), np.ones(2))}, 0.5, r"mean of the shape \(3,\) and an sd of the shape \(2,\); give one sd"),
        ({"f": (0.0, np.ones(2))}, 0.5, r"mean of the shape \(\) and an sd of the shape \(2,\)"),
        ({"f": (np.zeros(2), np.array([1.0, 0.0]))}, 0.5, "with a positive sd"),
        ({"f": [1.0, 2.0, 3.0]}, 0.5, "is a NumPy array"),
        ({"m": 1.0, "offset": 0.0}, 0.5, r"guess\['offset'\] is 0.0; give \(mean, sd\)"),
        ({"k": -3.0}, 0.5, r"guess\['k'\] is -3.0; give \(mean, sd\)"),
        ({"k": (1.0, 0.0)}, 0.5, r"give \(mean, sd\) with a positive sd"),
        ({"k": (1.0, 2.0, 3.0)}, 0.5, r"give \(mean, sd\) with a positive sd"),
        ({"k": 1.0}, 0.0, "sd is 0.0; give a positive number"),
    ],
)
def test_priors_without_a_scale(guess: dict[str, Any], sd: float, message: str) -> None:
    with pm.Model() as model, pytest.raises(ValueError, match=message):
        models.priors(guess, sd)
    assert not model.free_RVs  # nothing is half done


def test_priors_of_no_numbers_and_outside_a_model() -> None:
    with pm.Model(), pytest.raises(TypeError, match=r"guess\['k'\] is 'stiff'; give a positive number"):
        models.priors({"k": "stiff"})
    for array in (np.array([1.0, np.nan]), np.array([]), np.array(["a"]), np.array([True])):
        with pm.Model(), pytest.raises(TypeError, match=r"guess\['k'\] is array.*give a positive number"):
            models.priors({"k": array})
    with pytest.raises(TypeError, match="guess is list; give a mapping"):
        models.priors([1.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="context"):
        models.priors({"k": 1.0})
