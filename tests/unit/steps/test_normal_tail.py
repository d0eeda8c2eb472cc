"""The normal distribution function against mpmath in both tails."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from pm_sysid.steps.normal_tail import normal_tail
from pm_sysid.symbolic.derivatives import jacobian
from pm_sysid.symbolic.scalars import evaluate, symbol

A = symbol("a")
TAIL = normal_tail(A)
SLOPES = [row[0] for row in jacobian(list(TAIL), [A])]


def exact(a: float) -> list[float]:
    with mpmath.workdps(80):
        a = mpmath.mpf(a)
        probability = mpmath.ncdf(a) if a > -30 else mpmath.erfc(-a / mpmath.sqrt(2)) / 2
        hazard = mpmath.npdf(a) / probability
        known = hazard * (hazard + a)
        return [float(v) for v in (mpmath.log(probability), hazard, known, 1 - known)]


@pytest.mark.parametrize("a", [-1e4, -300.0, -37.5, -8.0, -3.0, -1.0, -1e-9, 0.0, 1e-9, 0.5, 2.0, 6.0, 12.0, 30.0])
def test_values_are_those_of_the_distribution(a: float) -> None:
    """Would fail for a difference of nearly equal numbers, most of all in the last: 1e-8 of it is left at -1e4."""
    np.testing.assert_allclose(evaluate(list(TAIL), {A: a}), exact(a), rtol=2e-14, atol=1e-15)


@pytest.mark.parametrize("a", [-1e4, -37.5, -3.0, -0.1, 0.4, 5.0])
def test_so_are_their_derivatives(a: float) -> None:
    with mpmath.workdps(80):
        h = mpmath.mpf(10) ** -25
        truth = []
        for i in range(4):

            def value(x: mpmath.mpf, i: int = i) -> mpmath.mpf:
                probability = mpmath.erfc(-x / mpmath.sqrt(2)) / 2
                hazard = mpmath.npdf(x) / probability
                return (mpmath.log(probability), hazard, hazard * (hazard + x), 1 - hazard * (hazard + x))[i]

            truth.append(float((value(mpmath.mpf(a) + h) - value(mpmath.mpf(a) - h)) / (2 * h)))
    np.testing.assert_allclose(evaluate(SLOPES, {A: a}), truth, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("a", [-1e200, -1e150, 1e150, 1e300])
def test_nothing_is_not_a_number_far_out(a: float) -> None:
    assert not np.isnan(evaluate([*TAIL, *SLOPES], {A: a})).any()
