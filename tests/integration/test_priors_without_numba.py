"""Log densities of models that NumPy computes for many points at once: numba would compile them for half a minute and more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pymc.distributions.transforms import ordered

import pm_sysid as sid
from pm_sysid.compat import OpFromGraph, toposort
from pm_sysid.likelihood.coordinates import checked
from pm_sysid.likelihood.posterior_functions import PosteriorFunctions

SYSTEM = sid.System(
    lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
)
RECORD = sid.TimeSeries(0.1 * np.arange(10), None, np.exp(-0.1 * np.arange(10)))
GRID = np.linspace(0.0, 2.0, 50)


def lkj() -> Any:
    root, _, _ = pm.LKJCholeskyCov("L", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(0.3), compute_corr=True)
    return pm.MvNormal("both", np.ones(2), chol=root)[0]


PRIORS: dict[str, Callable[[], Any]] = {
    "deterministic": lambda: pm.Deterministic("rate", pm.math.exp(pm.Normal("log rate", 0.0, 0.3))),
    "mixture": lambda: pm.Mixture("rate", [0.5, 0.5], [pm.Normal.dist(1.0, 0.1), pm.Normal.dist(2.0, 0.1)]),
    "interpolated": lambda: pm.Interpolated("rate", GRID, np.exp(-((GRID - 1.0) ** 2))),
    "lkj": lkj,
    "simplex": lambda: pm.Dirichlet("parts", np.ones(3))[0],
    "ordered": lambda: pm.Normal("two", [0.5, 1.5], 0.3, transform=ordered, initval=[0.5, 1.5])[0],
    "sorted": lambda: pm.math.sort(pm.Normal("three", 1.0, 0.1, shape=3))[0],
}


@pytest.mark.filterwarnings("ignore:SplineWrapper should implement", "ignore:PyTensor could not link")  # both by PyMC
@pytest.mark.parametrize("prior", [pytest.param(p, marks=[pytest.mark.slow] * (p in ("lkj",))) for p in PRIORS])
def test_no_prior_needs_numba(prior: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pm.Model() as model:
        sid.ODEFilter("y", SYSTEM, RECORD, {"rate": PRIORS[prior]()}, noise=0.1, x0=1.0, substeps=2)
    by_pymc = model.compile_logp(mode=pytensor.compile.mode.Mode("py", "fast_compile"))
    function = pytensor.function

    def with_a_mode(*arguments: Any, **options: Any) -> Any:
        assert "mode" in options, "compiled by numba"
        return function(*arguments, **options)

    monkeypatch.setattr(pytensor, "function", with_a_mode)
    target, functions = sid.Target(model), PosteriorFunctions(model)
    x = target.draw_prior(4, random_seed=1)
    value, gradient = functions.descent_function()(x)
    assert_allclose(-value, target.log_prior(x) + target.log_likelihood(x), rtol=1e-10)
    sizes = [np.shape(target.coordinates.point[v.name]) for v in model.value_vars]
    ends = np.cumsum([int(np.prod(size)) for size in sizes])[:-1]
    for point, expected in zip(x, -value, strict=True):
        parts = [part.reshape(size) for part, size in zip(np.split(point, ends), sizes, strict=True)]
        assert_allclose(by_pymc(dict(zip([v.name for v in model.value_vars], parts, strict=True))), expected, rtol=1e-10)
    for k, step in enumerate(1e-6 * np.eye(x.shape[1])):
        rise = (functions.values(x + step) - functions.values(x - step)) / 2e-6
        assert_allclose(-gradient[:, k], rise, rtol=1e-5, atol=1e-5)


def test_an_operation_with_a_gradient_of_its_own_keeps_it() -> None:
    x, inside = pt.dvector(), pt.dvector()
    own = OpFromGraph([inside], [pt.sqrt(inside**2)], pullback=lambda inputs, outputs, g: [g[0] * pt.sign(inputs[0])])
    kept = checked(own(x).sum())
    assert any(node.op is own for node in toposort([kept]))
    assert_allclose(pytensor.grad(kept, x).eval({x: np.array([0.0, -2.0])}), [0.0, -1.0])
    assert not any(isinstance(node.op, OpFromGraph) for node in toposort([checked(pt.logsumexp(x))]))
