"""Systems with processes for inputs and for the drift of parameters."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
import pytest

import pm_sysid as sid
from pm_sysid.symbolic.driven import driven_system
from pm_sysid.symbolic.scalars import evaluate

NAMES: dict[str, Any] = dict(states=("z", "v"), inputs=("F", "d"), params=("k", "m"))
SPRING = sid.System(lambda t, x, u, p: (x.v, (u.F + u.d - p.k * x.z) / p.m), observe=lambda t, x, dx, u, p: dx.v + u.d, **NAMES)
OU, WALK = sid.OU(scale=2.0, rate=0.5), sid.RandomWalk(scale=0.1)


def test_the_system_without_its_processes_is_the_one_at_zero() -> None:
    system, values = driven_system(SPRING, {"d": OU}, {"k": WALK})
    assert list(system.inputs) == ["F"] and system.states == SPRING.states and values == [2.0, 0.5, 0.1, 0.0]
    assert list(system.params) == ["k", "m", "d.scale", "d.rate", "k.scale", "k.start_0"]
    at = dict(zip([*system.x, *system.u, *system.p], [0.3, 0.2, 1.5, 4.0, 2.0, *values], strict=True))
    assert evaluate(system.f, at) == [0.2, (1.5 - 4.0 * 0.3) / 2.0]
    assert system.chains == SPRING.chains


def test_processes_are_states_that_drive_it() -> None:
    system, values = driven_system(SPRING, {"d": OU}, {"k": WALK})
    driven = system.driven
    at = dict(zip([*driven.x, *driven.u, *driven.p], [0.3, 0.2, 0.7, -0.6, 1.5, 4.0, 2.0, *values], strict=True))
    at |= dict(zip(driven.dx, [0.2, 1.1], strict=True))
    d, k = 2.0 * 0.7, 4.0 - 0.6
    assert evaluate(driven.f, at) == pytest.approx([0.2, (1.5 + d - k * 0.3) / 2.0, -0.5 * 0.7, 0.0])
    assert evaluate(driven.g, at) == pytest.approx([1.1 + d])


def test_a_drifting_stiffness_makes_a_linear_system_nonlinear() -> None:
    assert SPRING.linear and driven_system(SPRING, {"d": OU})[0].linear
    assert not driven_system(SPRING, None, {"k": WALK})[0].linear


def test_one_structure_is_built_once_whatever_its_numbers() -> None:
    """So that its recurrences are compiled once."""
    assert driven_system(SPRING, {"d": OU})[0] is driven_system(SPRING, {"d": sid.Matern(nu=0.5, scale=1.0, length=9.0)})[0]


DERIVED = sid.System(
    lambda t, x, u, p: (x.v, (u.F + u.d - pt.linalg.inv(p.A)[0, 0] * x.z) / p.m),
    observe=lambda t, x, dx, u, p: x.z,
    **(NAMES | {"params": {"A": (2, 2), "m": ()}}),
)


@pytest.mark.parametrize(
    "system, latent, varying, said",
    [
        (SPRING, {"force": OU}, None, r"latent names 'force'; give inputs of the system: \['F', 'd'\]"),
        (SPRING, {"d": 1.0}, None, r"latent\['d'\] is 1.0; give a process"),
        (SPRING, None, {"c": WALK}, r"varying names 'c'; give parameters of the system"),
        (SPRING, OU, None, "latent is .*; give a dict of processes by input"),
        (DERIVED, None, {"A[0, 0]": WALK}, "computed once a parameter set"),
        (DERIVED, None, {"A": WALK}, "one process for each entry of 'A'"),
    ],
)
def test_impossible_processes_are_refused(system: Any, latent: Any, varying: Any, said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        driven_system(system, latent, varying)
