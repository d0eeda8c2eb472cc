"""Systems from user functions: chains, outputs, derivatives along the flow, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Variable
from scipy.integrate import solve_ivp

from pm_sysid.models import bouc_wen, duffing
from pm_sysid.symbolic.scalars import evaluate
from pm_sysid.symbolic.system import System

SPRING = dict(states=("z", "v"), inputs=("F",), params=("k",))


def spring(t: Any, x: Any, u: Any, p: Any) -> Any:
    return x.v, u.F - p.k * x.z


def first(t: Any, x: Any, dx: Any, u: Any, p: Any) -> Any:
    return x[0]


def build(dynamics: Any = spring, observe: Any = first, **changes: Any) -> System:
    return System(dynamics, **{**SPRING, "observe": observe, **changes})


def chains_of(states: str, dynamics: Any, **options: Any) -> tuple[tuple[str, ...], ...]:
    return System(dynamics, states=tuple(states), observe=first, **options).chains


# -- chains -----------------------------------------------------------------------------------------------------------


def test_a_coordinate_and_its_velocity_are_one_chain() -> None:
    assert build().chains == (("z", "v"),)
    assert build().chain_states == ((0, 1),)


def test_chains_do_not_depend_on_the_order_of_states() -> None:
    system = System(lambda t, x, u, p: (-x.z, x.v), states=("v", "z"), observe=first)
    assert system.chains == (("z", "v"),) and system.chain_states == ((1, 0),)


def test_three_states_make_one_chain() -> None:
    assert chains_of("abc", lambda t, x, u, p: (x.b, x.c, -x.a - x.c)) == (("a", "b", "c"),)


def test_chain_through_interleaved_states() -> None:
    chains = chains_of("abcd", lambda t, x, u, p: (x.c, x.d, -x.a + x.b, -x.b))
    assert chains == (("a", "c"), ("b", "d"))


def test_chains_can_be_switched_off() -> None:
    assert chains_of("abc", lambda t, x, u, p: (x.b, x.c, -x.a), chains=False) == (("a",), ("b",), ("c",))


def test_a_cycle_keeps_an_equation_of_motion() -> None:
    assert chains_of("zv", lambda t, x, u, p: (x.v, x.z)) == (("z", "v"),)
    chains = chains_of("abc", lambda t, x, u, p: (x.b, x.c, x.a))
    assert chains == (("a", "b", "c"),)


def test_two_cycles_are_two_chains() -> None:
    assert chains_of("abcd", lambda t, x, u, p: (x.b, x.a, x.d, x.c)) == (("a", "b"), ("c", "d"))


def test_a_shared_derivative_belongs_to_one_chain() -> None:
    assert chains_of("abv", lambda t, x, u, p: (x.v, x.v, -x.a)) == (("a", "v"), ("b",))


def test_exponential_growth_is_no_chain() -> None:
    assert chains_of("ab", lambda t, x, u, p: (x.a, x.b)) == (("a",), ("b",))


@pytest.mark.parametrize(
    "derivative, linked",
    [
        (lambda x: 1.0 * x.v, True),
        (lambda x: x.v + 0.0, True),
        (lambda x: 0.0 - (0.0 - x.v), True),
        (lambda x: pt.stack([x.v, x.z])[0], True),
        (lambda x: pt.switch(pt.constant(True), x.v, x.z), True),
        (lambda x: 2.0 * x.v, False),
        (lambda x: -x.v, False),
        (lambda x: x.v + x.z, False),
        (lambda x: x.v * x.v, False),
    ],
)
def test_only_the_state_itself_links_a_chain(derivative: Any, linked: bool) -> None:
    chains = chains_of("zv", lambda t, x, u, p: (derivative(x), -x.z), params=())
    assert chains == ((("z", "v"),) if linked else (("z",), ("v",)))


def test_top_is_the_equation_of_motion_of_each_chain() -> None:
    system = bouc_wen()
    assert system.top == (system.f[1], system.f[2])


# -- what the functions may return ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "result",
    [
        lambda x, u, p: (x.v, u.F - p.k * x.z),
        lambda x, u, p: [x.v, u.F - p.k * x.z],
        lambda x, u, p: pt.stack([x.v, u.F - p.k * x.z]),
        lambda x, u, p: {"v": u.F - p.k * x.z, "z": x.v},
        lambda x, u, p: pt.as_tensor([[0.0, 1.0], [0.0, 0.0]]) @ pt.stack(list(x)) + pt.stack([0.0, u.F - p.k * x.z]),
        lambda x, u, p: pt.zeros(2)[0].set(x.v)[1].set(u.F - p.k * x.z),
        lambda x, u, p: np.array([x.v, u.F - p.k * x.z]),
    ],
    ids=["tuple", "list", "vector", "dict", "matrix form", "set", "numpy array"],
)
def test_dynamics_may_return_any_container(result: Any) -> None:
    system = build(lambda t, x, u, p: result(x, u, p))
    at = {**dict(zip(system.x, (0.3, -0.2), strict=True)), system.u[0]: 2.0, system.p[0]: 5.0}
    assert evaluate(system.f, at) == pytest.approx([-0.2, 0.5])


def test_one_state_needs_no_tuple() -> None:
    system = System(lambda t, x, u, p: -x.level, states=("level",), observe=lambda t, x, dx, u, p: x.level)
    assert len(system.f) == 1 and system.outputs == ("y",)


def test_numbers_are_derivatives_too() -> None:
    assert build(lambda t, x, u, p: (x.v, 5)).f[1] == 5.0


@pytest.mark.parametrize(
    "observe, names",
    [
        (lambda t, x, dx, u, p: x.z, ("y",)),
        (lambda t, x, dx, u, p: (x.z,), ("y",)),
        (lambda t, x, dx, u, p: (x.z, dx.v), ("y1", "y2")),
        (lambda t, x, dx, u, p: pt.stack([x.z, dx.v]), ("y1", "y2")),
        (lambda t, x, dx, u, p: {"place": x.z, "force": u.F}, ("place", "force")),
        (lambda t, x, dx, u, p: 3.0, ("y",)),
    ],
)
def test_outputs_are_named(observe: Any, names: tuple[str, ...]) -> None:
    system = build(observe=observe)
    assert system.outputs == names and len(system.g) == len(names)


def test_outputs_may_read_derivatives_inputs_and_time() -> None:
    system = build(observe=lambda t, x, dx, u, p: (dx.v, t * u.F, dx.z))
    at = {system.dx[1]: 7.0, system.dx[0]: -1.0, system.t: 3.0, system.u[0]: 2.0}
    assert evaluate(system.g, at) == [7.0, 6.0, -1.0]


def test_output_chains_tell_who_sees_whom() -> None:
    system = System(
        lambda t, x, u, p: (x.v, -x.z, -x.r),
        states=("z", "v", "r"),
        inputs=("F",),
        observe=lambda t, x, dx, u, p: (x.v, dx.r, x.z - x.r, u.F),
    )
    assert system.output_chains == (frozenset({0}), frozenset({1}), frozenset({0, 1}), frozenset())


def test_time_varying_sees_dynamics_and_outputs() -> None:
    assert not build().time_varying
    assert build(lambda t, x, u, p: (x.v, -x.z * pt.cos(t))).time_varying
    assert build(observe=lambda t, x, dx, u, p: x.z + t).time_varying


def test_names_that_tuples_have_too_are_allowed() -> None:
    system = System(lambda t, x, u, p: (x.index, -x.count), states=("count", "index"), observe=lambda t, x, dx, u, p: x.count)
    assert system.chains == (("count", "index"),)


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, error, message",
    [
        (dict(dynamics=lambda t, x, u, p: (x.v,)), ValueError, "returned 1 derivatives, but there are 2 states"),
        (dict(dynamics=lambda t, x, u, p: (x.v, x.z, x.z)), ValueError, "returned 3 derivatives, but there are 2"),
        (
            dict(dynamics=lambda t, x, u, p: {"v": x.z, "w": x.v}),
            ValueError,
            r"derivatives of \['v', 'w'\], but the states are \['z', 'v'\]",
        ),
        (dict(dynamics=lambda t, x, u, p: (x.w, x.z)), AttributeError, r"no attribute 'w'.*x: \('z', 'v'\)"),
        (dict(dynamics=lambda t, x, u, p: (x.v, u.G)), AttributeError, r"no attribute 'G'.*u: \('F',\)"),
        (dict(observe=lambda t, x, dx, u, p: dx.q), AttributeError, "observe: .*no attribute 'q'"),
        (dict(dynamics=lambda t, x, u: (x.v, x.z)), TypeError, r"dynamics must accept the arguments \(t, x, u, p\)"),
        (dict(observe=lambda t, x, u, p: x.z), TypeError, r"observe must accept the arguments \(t, x, dx, u, p\)"),
        (dict(dynamics=3), TypeError, r"dynamics is 3; give a function dynamics\(t, x, u, p\)"),
        (dict(observe="z"), TypeError, r"observe is 'z'; give a function"),
        (dict(dynamics=lambda t, x, u, p: (x.v, -x.z if x.z > 0 else x.z)), TypeError, r"pm\.math\.switch\(condition, a, b\)"),
        (dict(dynamics=lambda t, x, u, p: (x.v, max(x.z, 0))), TypeError, r"pm\.math\.switch\(condition, a, b\)"),
        (dict(dynamics=lambda t, x, u, p: (x.v, np.where(x.z > 0, x.z, 0))), TypeError, r"b\) instead of if or np\.where"),
        (dict(dynamics=lambda t, x, u, p: (x.v, math.sin(x.z))), TypeError, r"write pm\.math\.sin instead of math\.sin"),
        (
            dict(dynamics=lambda t, x, u, p: (x.v, pt.dscalar("gravity"))),
            TypeError,
            r"dynamics: the variable gravity is neither.*params=\{",
        ),
        (dict(observe=lambda t, x, dx, u, p: pt.dscalar("gain") * x.z), TypeError, "observe: the variable gain"),
        (
            dict(dynamics=lambda t, x, u, p: (x.v, pt.linalg.det(pt.stack([x.z, x.v, x.v, x.z]).reshape((2, 2))))),
            TypeError,
            "dynamics: the operation .*Det.* has no scalar form",
        ),
        (dict(states="z"), TypeError, r"states is the string 'z'; give a tuple of names, such as \('z',\)"),
        (dict(inputs="F"), TypeError, "inputs is the string 'F'"),
        (dict(params="k"), TypeError, "params is the string 'k'"),
        (dict(states=()), AttributeError, r"dynamics: .* Its arguments have the fields x: \(\)"),
        (dict(dynamics=None), ValueError, r"dynamics is None, but there are the states \('z', 'v'\); .* or states=\(\)"),
        (dict(states=("z", "z")), ValueError, "states contains a name twice"),
        (dict(states=("z", "1v")), ValueError, "states contains '1v'; names must be identifiers"),
        (dict(states=("z", "_v")), ValueError, "states contains '_v'"),
        (dict(params=("k", "class")), ValueError, "params contains 'class'"),
        (dict(inputs=("F", 3)), ValueError, "inputs contains 3"),
        (dict(observe=lambda t, x, dx, u, p: ()), ValueError, "observe returned nothing"),
        (dict(observe=lambda t, x, dx, u, p: {}), ValueError, "observe returned nothing"),
        (dict(observe=lambda t, x, dx, u, p: {"a b": x.z}), ValueError, "outputs of observe contains 'a b'"),
        (
            dict(observe=lambda t, x, dx, u, p: {"a": pt.stack([x.z, x.v]).reshape((1, 2))}),
            ValueError,
            "'a' has the shape .1, 2.; give vectors, or scalars",
        ),
    ],
)
def test_mistakes_are_named_with_the_remedy(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build(**changes)


@pytest.mark.parametrize("result", [None, "text"])
@pytest.mark.parametrize("what", ["dynamics", "observe"])
def test_results_that_are_no_expressions_are_named(what: str, result: Any) -> None:
    """A function without a return statement gives None."""
    with pytest.raises((TypeError, ValueError), match=what):
        build(**{what: lambda *args: result})


def test_a_random_variable_of_a_model_is_refused_by_its_name() -> None:
    with pm.Model():
        gravity = pm.Normal("gravity")
    with pytest.raises(TypeError, match="gravity"):
        build(lambda t, x, u, p: (x.v, -gravity * x.z))


def test_errors_of_the_function_itself_come_through() -> None:
    def dynamics(t: Any, x: Any, u: Any, p: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        build(dynamics)


# -- repr -------------------------------------------------------------------------------------------------------------


def test_repr_is_the_table_of_what_the_system_needs() -> None:
    assert repr(bouc_wen()).splitlines() == [
        "System: 3 states, 1 input, 1 output",
        "  states      z, v, r",
        "  chains      z -> v; r",
        "  inputs      F",
        "  outputs     y",
        "  parameters  m, c, k, alpha, beta, gamma, delta (each needs a value or a prior)",
    ]


def test_repr_of_an_unforced_system_says_none() -> None:
    text = repr(System(lambda t, x, u, p: -x.z, states=("z",), observe=first))
    assert "  inputs      none\n" in text and "  parameters  none" in text


# -- derivatives along the flow ---------------------------------------------------------------------------------------


def flow_derivatives(system: System, params: dict[str, float], force: Any, count: int) -> tuple[Any, Any]:
    """Derivatives at t0 as the system gives them, and by polynomial fits to an accurate solution around t0."""
    t0, h = 0.4, 0.05
    p = [params[name] for name in system.params]

    def rate(t: float, x: np.ndarray) -> list[float]:
        at: dict[Variable, float] = {system.t: t, **dict(zip(system.x, x, strict=True))}
        at |= dict(zip(system.p, p, strict=True)) | dict(zip(system.u, [force(t, 0)], strict=False))
        return evaluate([v if isinstance(v, Variable) else float(v) for v in system.f], at)

    x0 = np.array([0.5, -0.8, 0.3])[: len(system.states)]
    nodes = t0 + h * np.cos(np.pi * (np.arange(13) + 0.5) / 13)
    back = solve_ivp(rate, (t0, t0 - h), x0, "DOP853", np.sort(nodes[nodes < t0])[::-1], rtol=1e-13, atol=1e-13)
    ahead = solve_ivp(rate, (t0, t0 + h), x0, "DOP853", np.sort(nodes[nodes >= t0]), rtol=1e-13, atol=1e-13)
    times, states = np.concatenate([back.t[::-1], ahead.t]), np.concatenate([back.y[:, ::-1], ahead.y], axis=1)
    tops = [chain[-1] for chain in system.chain_states]
    series = np.array([rate(t, x) for t, x in zip(times, states.T, strict=True)])[:, tops]
    by_fit = []
    for column in series.T:
        fit = np.polynomial.Chebyshev.fit(times, column, 12)
        by_fit.append([fit.deriv(j)(t0) if j else fit(t0) for j in range(count)])

    derivatives, levels = system.total_derivatives(count)
    at: dict[Variable, float] = {system.t: t0, **dict(zip(system.x, x0, strict=True))}
    at |= dict(zip(system.p, p, strict=True))
    for order, level in enumerate(levels):
        at |= dict(zip(level, [force(t0, order)], strict=False))
    return np.array([evaluate(row, at) for row in derivatives]), np.array(by_fit)


def sine(t: float, order: int) -> float:
    return 2.0 * 3.0**order * math.sin(3.0 * t + order * math.pi / 2)


PENDULUM = System(
    lambda t, x, u, p: (x.v, -p.k * pt.sin(x.z) * (1 + 0.3 * pt.cos(2 * t)) - p.c * x.v**3 + u.F * x.z),
    states=("z", "v"),
    inputs=("F",),
    params=("k", "c"),
    observe=first,
)


@pytest.mark.parametrize(
    "system, params",
    [
        (duffing(), dict(m=0.7, c=0.4, k=3.0, k3=2.0)),
        (PENDULUM, dict(k=2.0, c=0.2)),
        (bouc_wen(), dict(m=0.7, c=0.4, k=3.0, alpha=2.0, beta=1.5, gamma=0.8, delta=-1.1)),
    ],
    ids=["duffing", "time and input in products", "bouc_wen"],
)
def test_total_derivatives_equal_those_of_a_simulated_flow(system: System, params: dict[str, float]) -> None:
    given, fitted = flow_derivatives(system, params, sine, 4)
    np.testing.assert_allclose(given[:, :3], fitted[:, :3], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(given[:, 3], fitted[:, 3], rtol=1e-3, atol=1e-3)


def test_total_derivatives_name_the_inputs_level_by_level() -> None:
    derivatives, levels = duffing().total_derivatives(3)
    assert [len(row) for row in derivatives] == [3] and [len(level) for level in levels] == [1, 1, 1]
    assert len({s for level in levels for s in level}) == 3
    system = duffing()
    assert system.total_derivatives(1) == ([[system.top[0]]], [system.u])


def test_names_in_brackets_are_told_how_to_be_written() -> None:
    with pytest.raises(TypeError, match=r"dynamics takes .* write p\.k, x\.z and u\.F instead"):
        build(lambda t, x, u, p: (x.v, -p["k"] * x.z))
