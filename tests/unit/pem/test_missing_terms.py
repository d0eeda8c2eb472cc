"""Terms that the equations lack, by derivatives of the innovations: against fits that have them, and where none is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.pem.missing_terms import Missing, missing_term
from pm_sysid.pem.one_more import Directions
from pm_sysid.pem.uneven_noise import samples
from support.pem_cases import OSCILLATOR

T = 0.2 * np.arange(200)
TERMS: dict[str, Any] = {
    "sign(v)": lambda z, v: pt.tanh(v / 0.02),
    "v |v|": lambda z, v: v * abs(v),
    "z^3": lambda z, v: z**3,
    "z^2 v": lambda z, v: z**2 * v,
}
SPRING = {"c": 0.3, "k": 4.0}


def oscillator(term: str = "", vector: bool = False, beside: str = "") -> sid.System:
    """With a term in the rate of change of the velocity, with a factor; position and velocity may be one vector."""

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        z, v = (x.s[0], x.s[1]) if vector else (x.z, x.v)
        force = u.F - p.c * v - p.k * z + sum(getattr(p, f) * TERMS[n](z, v) for f, n in (("f", term), ("g", beside)) if n)
        return pt.stack([v, force]) if vector else {"v": force, "z": v}

    return sid.System(
        dynamics,
        states={"s": (2,)} if vector else ("z", "v"),
        inputs=("F",),
        params=("c", "k", *(["f"] if term else []), *(["g"] if beside else [])),
        observe=lambda t, x, dx, u, p: x.s[0] if vector else x.z,
    )


def record(
    seed: int, factor: float = 0.0, term: str = "sign(v)", noise: float = 0.02, ar: float = 0.0, substeps: int = 20
) -> sid.TimeSeries:
    rng = np.random.default_rng(seed)
    force = np.convolve(3.0 * rng.standard_normal(T.size + 4), np.ones(5) / 5, "valid")
    data = sid.TimeSeries(T, force, None, inputs="F", intersample="foh")
    y = sid.simulate(oscillator(term), data, SPRING | {"f": factor}, x0=0.0, substeps=substeps)["y"].to_numpy()
    e = rng.standard_normal(T.size)
    for i in range(1, T.size):
        e[i] = ar * e[i - 1] + np.sqrt(1 - ar**2) * e[i]
    return data.replace(y=y + noise * y.std() * e)


def fit(system: sid.System, data: Any, **options: Any) -> sid.PEMResult:
    guess = {"c": 0.4, "k": 5.0} | {name: 0.01 for name in ("f", "g") if name in system.params}
    return sid.fit_pem(system, data, guess, progressbar=False, **options)


def term_of(found: sid.PEMResult) -> Missing | None:
    return missing_term(found.target, found.x, Directions(found.target, found.x_stderr, samples(found.target, found.x)))


@pytest.mark.parametrize("objective", ["mse", "likelihood"])
@pytest.mark.parametrize(("term", "factor"), [("sign(v)", -0.08), ("v |v|", -0.05), ("z^3", -0.1), ("z^2 v", -0.08)])
def test_factor_and_moves_are_those_of_a_fit_with_the_term(term: str, factor: float, objective: Any) -> None:
    data = record(0, factor, term)
    without, with_it = fit(oscillator(), data, objective=objective), fit(oscillator(term), data, objective=objective)
    found = term_of(without)
    assert found is not None
    assert f") {term} in the rate of change of v" in found.words
    size, error = (float(part.split(")")[0]) for part in found.words.partition("(")[2].split(" ± ")[:2])
    assert size == pytest.approx(with_it.p["f"], abs=3.0 * with_it.stderr["f"])
    assert error == pytest.approx(with_it.stderr["f"], rel=0.6)
    i = found.seen.unknown
    j = with_it.names.index(without.names[i])
    assert abs(found.seen.step[i] - (with_it.x[j] - without.x[i])) < 1.5 * without.x_stderr[i] + 0.2 * abs(found.seen.step[i])
    assert not without.success and "The record shows a term (" in without.message
    assert with_it.success and "The record shows" not in with_it.message


def test_states_that_are_a_vector_and_several_records() -> None:
    data = [record(1, -0.08), record(2, -0.08)]
    found = fit(oscillator(vector=True), data)
    assert not found.success and ") sign(s[1]) in the rate of change of s[1]" in found.message


def test_a_filter_with_process_noise() -> None:
    """It follows in part what the equations lack."""
    predictor = sid.ExtendedKalman(Q={"v": 0.003}, R={"y": 0.01})
    options: dict[str, Any] = {"predictor": predictor, "x0": 0.0, "objective": "likelihood"}
    assert ") sign(v) in the rate of change of v" in fit(oscillator(), record(3, -0.3), **options).message
    assert "The record shows" not in fit(oscillator(), record(3), **options).message


def test_a_term_beside_one_that_the_model_has() -> None:
    system, whole = oscillator("z^3"), oscillator("z^3", beside="sign(v)")
    data = record(4)
    y = sid.simulate(whole, data, SPRING | {"f": -0.3, "g": -0.1}, x0=0.0, substeps=20)["y"].to_numpy()
    # The noise must not be that which the force was made of.
    data = data.replace(y=y + 0.02 * y.std() * np.random.default_rng(104).standard_normal(T.size))
    assert ") sign(v) in the rate of change of v" in fit(system, data).message
    assert fit(whole, data).success


@pytest.mark.parametrize("options", [{"ar": 0.7}, {"ar": 0.95, "noise": 0.1}])
def test_nothing_is_said_where_no_term_is_missing(options: dict[str, float]) -> None:
    for seed in range(4):
        assert "which the model lacks" not in fit(oscillator("z^3"), record(seed, -0.1, "z^3", **options)).message


@pytest.mark.parametrize("options", [{}, {"noise": 0.2}])
def test_few_right_fits_are_told_of_a_term_and_none_is_doubted(options: dict[str, float]) -> None:
    """A friction or a cube of the speed may have taken the place of a part of the damping: one in forty is told so."""
    fits = [fit(oscillator("z^3"), record(seed, -0.1, "z^3", **options)) for seed in range(20)]
    assert all(f.success and "The record shows" not in f.message for f in fits)
    assert sum("The record may show" in f.message for f in fits) <= 2


@pytest.mark.slow
def test_a_friction_that_a_damping_has_taken_the_work_of_is_told_though_innovations_are_white() -> None:
    """Friction of 5 % of the force in noise of 10 %: 7 of these fits were a success without a word, 10 to 16 errors off."""
    wrong = 0
    for seed in range(30):
        found = fit(oscillator(), record(seed, -0.1, noise=0.1, substeps=40))
        wrong += found.success and abs(found.p["c"] - SPRING["c"]) > 3.5 * found.stderr["c"]
    assert wrong <= 3


def test_a_record_at_rest_has_no_terms() -> None:
    """Velocities that are zero have no size to divide by."""
    decay = sid.System(
        lambda t, x, u, p: (x.v, -p.k * x.z),
        states=("z", "v"),
        params=("k",),
        observe=lambda t, x, dx, u, p: x.z,
    )
    y = 0.1 * np.random.default_rng(0).standard_normal(60)
    found = sid.fit_pem(decay, sid.TimeSeries(0.1 * np.arange(60), None, y), {"k": 1.0}, x0=0.0, progressbar=False)
    assert "a term" not in found.message


def of_parts(t: Any, x: Any, u: Any, p: Any) -> Any:
    c, k = p  # as many as there are
    return pt.stack([x.v, u.F - c * x.v - k * x.z])


def test_rates_in_one_vector_and_parameters_as_a_tuple() -> None:
    """The user's functions get what they know, whatever is added."""
    system = sid.System(
        of_parts,
        states=("z", "v"),
        inputs=("F",),
        params=("c", "k"),
        observe=lambda t, x, dx, u, p: x.z * len(p) / 2,
    )
    assert ") sign(v) in the rate of change of v" in fit(system, record(1, -0.08)).message


def test_a_system_that_cannot_be_built_again_has_no_terms() -> None:
    calls = list[int]()

    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        calls.append(1)
        assert len(calls) < 2
        return x.v, u.F - p.c * x.v - p.k * x.z

    system = sid.System(
        dynamics,
        states=("z", "v"),
        inputs=("F",),
        params=("c", "k"),
        observe=lambda t, x, dx, u, p: x.z,
    )
    assert "a term (" not in fit(system, record(1, -0.08)).message


def test_inputs_beside_parameters_of_each_record() -> None:
    """Which are states of the filter, and no inputs."""
    true = sid.System(
        lambda t, x, u, p: (x.v, u.F + 0.05 * u.F**2 - p.c * x.v - p.k * x.z),
        states=("z", "v"),
        inputs=("F",),
        params=("c", "k"),
        observe=lambda t, x, dx, u, p: x.z,
    )
    records = []
    for seed in range(2):
        data = record(seed)
        y = sid.simulate(true, data, SPRING, x0=0.0, substeps=20)["y"].to_numpy()
        records.append(data.replace(y=y + 0.02 * y.std() * np.random.default_rng(seed).standard_normal(T.size)))
    found = sid.fit_pem(oscillator(), records, {"c": 0.4, "k": [5.0, 5.0]}, progressbar=False)
    assert ") F^2 in the rate of change of v" in found.message


def actuated(seed: int, noise: float, zone: float, n: int = 300) -> sid.TimeSeries:
    """A first-order lag behind an actuator with a dead zone; the record has the input before it."""
    rng, t = np.random.default_rng(seed), 0.1 * np.arange(n)
    k = np.arange(1, 41)
    force = 0.15 * np.cos(2 * np.pi * np.outer(t, k) / t[-1] + 2 * np.pi * rng.random(40)).sum(axis=1)
    data = sid.TimeSeries(t, np.sign(force) * np.maximum(np.abs(force) - zone, 0.0), intersample="zoh")
    y = sid.simulate(LAG, data, {"a": 1.0, "b": 2.0}, x0=0.0)["y"].to_numpy()
    return data.replace(u=force, y=y + noise * rng.standard_normal(n))


LAG = sid.System(
    lambda t, x, u, p: p.b * u.u - p.a * x.x,
    states=("x",),
    inputs=("u",),
    params=("a", "b"),
    observe=lambda t, x, dx, u, p: x.x,
)


@pytest.mark.parametrize("seed", range(3))
def test_the_dead_zone_of_an_actuator_is_seen_beside_a_gain_that_has_taken_a_part_of_it(seed: int) -> None:
    """The gain is 9 or more standard errors off, and nothing but the dead zone says so."""
    found = sid.fit_pem(LAG, actuated(seed, 0.02, 0.2), {"a": 0.7, "b": 1.0}, progressbar=False)
    assert abs(found.p["b"] - 2.0) > 5 * np.sqrt(found.cov[1, 1])
    assert not found.success and "as of a dead zone" in found.message
    assert found.message.count("dead zone") == 1  # those of other widths are the same term
    loud = sid.fit_pem(LAG, actuated(seed, 0.2, 0.2), {"a": 0.7, "b": 1.0}, progressbar=False)
    assert not loud.success or abs(loud.p["b"] - 2.0) < 4 * loud.stderr["b"], loud
    right = sid.fit_pem(LAG, actuated(seed, 0.02, 0.0), {"a": 0.7, "b": 1.0}, progressbar=False)
    assert right.success and "dead zone" not in right.message


def test_gains_that_differ_between_the_signs_of_an_input_are_seen() -> None:
    data = actuated(0, 0.0, 0.0)
    u = data.u
    run = sid.simulate(LAG, data.replace(u=np.where(u > 0, u, 0.7 * u)), {"a": 1.0, "b": 2.0}, x0=0.0)["y"].to_numpy()
    data = data.replace(y=run + 0.02 * np.random.default_rng(0).standard_normal(300))
    found = sid.fit_pem(LAG, data, {"a": 0.7, "b": 1.0}, progressbar=False)
    assert not found.success and "max(u, 0)" in found.message


@pytest.mark.parametrize("limit", [0.5, 0.8, 1.0])
def test_an_actuator_that_saturates_is_seen(limit: float) -> None:
    """Limits of 0.7, 1.2 and 1.5 times the root mean square of the input."""
    data = actuated(0, 0.0, 0.0)
    held = data.replace(u=np.clip(data.u, -limit, limit))
    run = sid.simulate(LAG, held, {"a": 1.0, "b": 2.0}, x0=0.0)["y"].to_numpy()
    data = data.replace(y=run + 0.02 * np.random.default_rng(0).standard_normal(300))
    found = sid.fit_pem(LAG, data, {"a": 0.7, "b": 1.0}, progressbar=False)
    assert "a saturation" in found.message
    assert not found.success or abs(found.p["b"] - 2.0) < 4 * found.stderr["b"], found


@pytest.mark.parametrize("low, high, words", [(-0.7, np.inf, "to one side"), (-0.9, 0.9, "a saturation"), (-0.4, 0.4, "zone")])
def test_what_an_actuator_cuts_off_is_seen_where_its_gain_is_known(low: float, high: float, words: str) -> None:
    """No gain takes a part of it, and the bent input by itself is no term that the equations lack."""
    data = actuated(0, 0.0, 0.0)
    data = sid.TimeSeries(data.t, data.u, None, inputs="F", intersample="zoh")
    held = data.replace(u=np.clip(data.u, low, high) if words != "zone" else data.u - np.clip(data.u, low, high))
    run = sid.simulate(OSCILLATOR, held, {"k": 4.0, "c": 0.4}, x0=0.0)["y"].to_numpy()
    data = data.replace(y=run + 0.05 * run.std() * np.random.default_rng(0).standard_normal(300))
    found = sid.fit_pem(OSCILLATOR, data, {"k": 3.0, "c": 0.3}, progressbar=False)
    assert words in found.message, found
    assert not found.success or abs(found.p["k"] - 4.0) < 4 * found.stderr["k"]


@pytest.mark.parametrize("seed", range(3))
def test_a_small_dead_zone_is_named_in_loud_noise(seed: int) -> None:
    found = sid.fit_pem(LAG, actuated(seed, 0.1, 0.1), {"a": 0.7, "b": 1.0}, progressbar=False)
    assert "as of a dead zone" in found.message


@pytest.mark.parametrize("kind", ["sine", "uniform"])
def test_an_input_that_is_missing_is_not_called_bent(kind: str) -> None:
    system = sid.System(
        lambda t, x, u, p: p.b * u.u - p.a * x.x,
        states=("x",),
        inputs=("u", "w"),
        params=("a", "b"),
        observe=lambda t, x, dx, u, p: x.x,
    )
    full = sid.System(
        lambda t, x, u, p: p.b * u.u - p.a * x.x + 0.1 * u.w,
        states=("x",),
        inputs=("u", "w"),
        params=("a", "b"),
        observe=lambda t, x, dx, u, p: x.x,
    )
    rng, t = np.random.default_rng(3), 0.1 * np.arange(300)
    w = np.sin(0.7 * t) if kind == "sine" else np.repeat(rng.uniform(-1.0, 1.0, 60), 5)
    data = sid.TimeSeries(t, {"u": np.repeat(rng.standard_normal(60), 5), "w": w}, intersample="zoh")
    y = sid.simulate(full, data, {"a": 1.0, "b": 2.0}, x0=0.0)["y"].to_numpy() + 0.02 * rng.standard_normal(300)
    found = sid.fit_pem(system, data.replace(y=y), {"a": 0.7, "b": 1.0}, progressbar=False)
    assert ") w" in found.message and "clip" not in found.message
