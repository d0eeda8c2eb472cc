"""The log posterior and its gradient at many points, one by one and in lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid
from pm_sysid.likelihood import posterior_functions as module
from pm_sysid.likelihood.mode import Hunt
from pm_sysid.likelihood.posterior_functions import PosteriorFunctions

DECAY = sid.System(
    lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
)
TIMES = np.linspace(0.0, 2.0, 11)


@pytest.fixture
def model() -> pm.Model:
    with pm.Model() as model:
        record = sid.TimeSeries(TIMES, None, np.exp(-1.5 * TIMES) + 0.05 * np.sin(9 * TIMES))
        noise = pm.LogNormal("noise", np.log(0.1), 1.0)
        sid.ODEFilter("y", DECAY, record, {"rate": pm.LogNormal("rate")}, noise=noise, x0=1.0, substeps=2)
    return model


def test_many_gradients_of_a_short_record_are_computed_in_lanes_after_the_first_ones(
    model: pm.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one they take 1.9 ms each, which of the tens of thousands of a rough density is a minute."""
    built: list[str] = []

    def noted(name: str) -> Any:
        build = getattr(PosteriorFunctions, name)

        def noting(self: PosteriorFunctions) -> Any:
            built.append(name)
            return build(self)

        return noting

    for name in ("_compiled_gradient", "_compiled_gradients"):
        monkeypatch.setattr(PosteriorFunctions, name, noted(name))
    monkeypatch.setattr(module, "SINGLE", 6)
    points = np.random.default_rng(0).normal([0.3, -2.0], 0.5, (4, 2))
    functions = PosteriorFunctions(model)
    first, second = functions.descent_function(), functions.descent_function()  # one count for both
    early = first(points)
    assert built == ["_compiled_gradient"]
    again, late = second(points), first(points)
    assert built == ["_compiled_gradient", "_compiled_gradients"]
    for found in (again, late):
        np.testing.assert_allclose(found[0], early[0], rtol=1e-12)
        np.testing.assert_allclose(found[1], early[1], rtol=1e-9)
    # Another search begins as this one did: its digits do not depend on what has been compiled before.
    one_more = PosteriorFunctions(model).descent_function()(points)
    assert built == ["_compiled_gradient", "_compiled_gradients"]
    assert all(np.array_equal(a, b) for a, b in zip(one_more, early, strict=True))
    functions.begin()
    assert all(np.array_equal(a, b) for a, b in zip(functions.descent_function()(points), early, strict=True))
    functions.descent_function()(points)
    Hunt(functions, functions.first, "here", lambda text: None)  # as each data set of a calibration has one
    assert all(np.array_equal(a, b) for a, b in zip(functions.descent_function()(points), early, strict=True))


def test_gradients_that_numba_computes_stay_one_by_one(model: pm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes microseconds, and to compile lanes by numba takes half a minute."""
    monkeypatch.setattr(module, "SINGLE", 2)
    monkeypatch.setattr(module, "on_whole_arrays", lambda inputs, outputs: False)
    monkeypatch.setattr(PosteriorFunctions, "_compiled_gradients", lambda self: pytest.fail("compiled in lanes"))
    gradients, points = PosteriorFunctions(model).descent_function(), np.array([[0.3, -2.0]] * 3)
    first, second = gradients(points), gradients(points)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
