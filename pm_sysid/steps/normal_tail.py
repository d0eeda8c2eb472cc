"""The normal distribution function, its logarithm and what moments need of it, from one tail to the other.

With the Mills ratio ``M(t) = P(z > t) / density(t)`` of a standard normal z, ``1 / M(t) = t + 1 / (t + c(t))`` is the start of
its continued fraction (Laplace 1805). The rest c is smooth, between 1.25 at zero and 2 / t far out, and everything else follows
from it without cancellation, in value and derivatives.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pytensor.scalar.basic as psb

from pm_sysid.symbolic.scalars import Scalar, add, as_variable, constant, div, mul, sub, switch

#: c(t) (t + SHIFT) as a polynomial in (t - MIDDLE) / (t + MIDDLE), good to 1e-15 for all t from zero on.
MIDDLE, SHIFT = 4.0, 1.5
REST = (
    2.3786605803021508, -0.19313526802495548, -0.476464934221578, 0.3531677242538544, 0.030197554372652518,
    -0.13896961972021812, 0.016062015414747482, 0.054593219325878815, -0.01336382920771334, -0.02211770775174659,
    0.007269144161775784, 0.009217198181004044, -0.0034221034555684264, -0.00391185541837597, 0.001475979919292185,
    0.0016663912636443808, -0.0005927750648896974, -0.0006981797560824388, 0.00022228557559791302, 0.00027836886313617834,
    -7.715416894145578e-05, -9.96290480060321e-05, 2.4004502243457156e-05, 2.9044380717158593e-05, -6.201132270000928e-06,
    -5.890756945258707e-06, 1.144958628782737e-06, 6.01221470414512e-07, -1.0896950277353912e-07,
)  # fmt: skip
#: Arguments are taken for this far out, so that their squares are finite.
FARTHEST = 1e100


class Tail(NamedTuple):
    """Of a standard normal z and the event ``z < a``: what censoring needs.

    ``log`` probability; ``hazard`` h = density / probability, the derivative of ``log``; ``known`` = h (h + a), by which share
    the variance of z shrinks given the event; and ``left`` = 1 - known.
    """

    log: Scalar
    hazard: Scalar
    known: Scalar
    left: Scalar


def normal_tail(a: Scalar) -> Tail:
    """Logarithm of the normal distribution function at ``a``, and the moments of a standard normal number below ``a``."""
    a = as_variable(a)
    t = psb.minimum(psb.abs(a), constant(FARTHEST))
    w, c = div(sub(t, MIDDLE), add(t, MIDDLE)), constant(REST[-1])
    for coefficient in reversed(REST[:-1]):
        c = as_variable(add(mul(c, w), coefficient))
    c = as_variable(div(c, add(t, SHIFT)))
    d = div(1.0, add(t, c))
    far = add(t, d)  # the hazard in the lower tail
    half = mul(-0.5, t, t)
    beyond = div(mul(1.0 / math.sqrt(2.0 * math.pi), psb.exp(as_variable(half))), far)  # P(z > t)
    below = psb.lt(a, constant(0.0))
    most = sub(1.0, beyond)
    near = div(mul(beyond, far), most)
    log = switch(below, sub(half, add(0.5 * math.log(2.0 * math.pi), psb.log(as_variable(far)))), psb.log(as_variable(most)))
    share = mul(near, add(near, t))
    return Tail(
        log, switch(below, far, near), switch(below, mul(far, d), share), switch(below, mul(d, sub(c, d)), sub(1.0, share))
    )
