"""Random systems, solvers and records: the compiled filter, alone and in a batch, is a plain NumPy filter; so is its gradient.

``benchmarks/fuzz.py`` runs the same for as long as one likes.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.fuzz.harness import Compiled, compare
from support.fuzz.systems import structure

#: Structures (seed, components, case) in which something was once wrong: EK0 under a large calibrated diffusion.
FAILED = [(6032, 9, 0), (6032, 9, 1), (6013, 9, 4), (6026, 9, 1)]

#: A parameter of exactly zero (case of structure 108): a derivative by it was lost.
ZERO = (108, 8, 36)

#: Compilation takes most of the time: few small structures, each with many records and parameters (1020 points) ...
SMALL = [(seed, 4) for seed in range(1, 7)]
#: ... and many that Python runs.
INTERPRETED = [(seed, 9) for seed in range(300, 312)]
LARGE: list[Any] = [(seed, 8) for seed in range(100, 112)]
#: Four explosive states that switch, by EK1 of order one: in 8 of 84 cases rounding decides whether the pass that calibrates
#: the diffusion of coupled chains is lost, and in which sample; the reference does not see that these are ill-conditioned.
LARGE[10] = pytest.param(110, 8, marks=pytest.mark.xfail(reason="a calibration that rounding decides", strict=False))


def check(seed: int, components: int, cases: range, points: int, gradient: bool = False, interpreted: bool = False) -> None:
    compiled = Compiled(structure(seed, components), gradient, interpreted=interpreted)
    results = [compare(compiled, case, points) for case in cases]
    complaints = [(r.case, r.complaints) for r in results if r.complaints]
    assert not complaints, f"{compiled.structure}: {complaints}"
    # Chaos, failure and finite differences that cannot tell must not become an excuse for comparing nothing.
    total = sum(r.points for r in results)
    assert sum(r.infinite + r.ill for r in results) <= 0.5 * total
    assert sum(r.unresolved for r in results) <= 0.5 * len(results)


@pytest.mark.parametrize("seed, components", [pytest.param(*s, marks=[pytest.mark.slow] * (s[0] in (3, 4))) for s in SMALL])
def test_random_systems(seed: int, components: int) -> None:
    check(seed, components, range(17), 10, gradient=seed % 3 == 1)


@pytest.mark.parametrize("seed, components", INTERPRETED)
def test_random_systems_interpreted(seed: int, components: int) -> None:
    check(seed, components, range(3), 5, interpreted=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed, components", LARGE)
def test_many_random_systems(seed: int, components: int) -> None:
    check(seed, components, range(84), 10, gradient=seed % 4 == 0)


@pytest.mark.parametrize("seed, components, case", FAILED)
def test_systems_that_once_failed(seed: int, components: int, case: int) -> None:
    result = compare(Compiled(structure(seed, components), interpreted=True), case, 8)
    assert not result.complaints


@pytest.mark.slow
def test_a_derivative_by_a_parameter_of_zero() -> None:
    seed, components, case = ZERO
    result = compare(Compiled(structure(seed, components)), case, 10)
    assert not result.complaints and result.gradient < 1e-10
