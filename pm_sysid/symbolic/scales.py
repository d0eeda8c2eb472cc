"""Scales of a model (standard deviations, intensities, lengths) that a prior may make negative."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable

from pm_sysid.compat import DimShuffle, Elemwise, Subtensor

#: Distributions whose values are positive, by the names of PyTensor.
POSITIVE = {
    "beta", "exponential", "gamma", "halfcauchy", "halfnormal", "halfstudentt", "invgamma", "lognormal", "pareto", "weibull",
}  # fmt: skip
#: Which of the inputs of a distribution is its lower bound.
LOWER = {"uniform": 2, "truncated_normal": 4}
#: Functions whose values are not negative, and those for which this is so if their arguments are not.
ROOTS, SUMS = {"exp", "sqr", "sqrt", "Abs", "softplus", "sigmoid"}, {"add", "mul", "true_div", "Maximum"}


def not_negative(value: Any) -> Any:
    """A scale as it is; where a variable of the model is negative, no number, and the record then has no likelihood.

    Likelihoods contain squares of scales alone: with a prior that reaches below zero, each scale would count twice.
    """
    if not isinstance(value, Variable) or never_negative(value):
        return value
    return pt.switch(pt.lt(value, 0.0), np.nan, value)


def never_negative(v: Variable) -> bool:
    """Whether an expression shows that its value is never negative.

    Examples
    --------
    >>> import pymc as pm
    >>> with pm.Model():
    ...     a, b = pm.HalfNormal("a", shape=2), pm.Normal("b")
    >>> never_negative(2 * a[0]), never_negative(b), never_negative(pm.math.exp(b))
    (True, False, True)
    """
    if isinstance(v, Constant):
        return bool(np.all(np.asarray(v.data) >= 0))
    if v.owner is None:
        return False
    op, inputs = v.owner.op, v.owner.inputs
    if isinstance(op, Elemwise):
        function = str(op.scalar_op)
        return function in ROOTS or (function in SUMS and all(map(never_negative, inputs)))
    if isinstance(op, DimShuffle | Subtensor):
        return never_negative(inputs[0])
    name = str(getattr(op, "name", ""))
    return name in POSITIVE or (name in LOWER and never_negative(inputs[LOWER[name]]))
