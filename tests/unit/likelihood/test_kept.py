"""Functions of a model are compiled once, for each thread, and anew when the model changes."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid
from pm_sysid.likelihood import coordinates, target
from pm_sysid.likelihood.kept import kept
from support import tiny

T = np.arange(30) / 10


def record(n: int = 30, seed: int = 0) -> sid.TimeSeries:
    return sid.TimeSeries(T[:n], None, np.random.default_rng(seed).standard_normal(n))


def decay() -> pm.Model:
    """A model of its own for each test, which may change it."""
    with pm.Model() as model:
        sid.ODEFilter("y", tiny.DECAY, record(), {"rate": pm.LogNormal("k", 0.0, 0.5)}, noise=1.0, substeps=2, x0=1.0)
    return model


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is compiled of particles while a test runs."""
    seen: list[Any] = []
    for module in (target, coordinates):
        compiled = module.compiled

        def counted(inputs: Any, outputs: Any, *, compiled: Any = compiled, **options: Any) -> Any:
            seen.append(outputs)
            return compiled(inputs, outputs, **options)

        monkeypatch.setattr(module, "compiled", counted)
    return seen


def numbers(model: pm.Model) -> list[np.ndarray]:
    of = sid.Target(model)
    x = np.linspace(-1, 1, 5)[:, None]
    return [of.log_prior(x), of.log_likelihood(x), of.constrained(x)["k"], of.unconstrained({"k": np.exp(x[:, 0])})]


def test_a_second_target_of_a_model_compiles_nothing(compilations: list[Any]) -> None:
    model = decay()
    first = numbers(model)
    assert compilations
    compilations.clear()
    for a, b in zip(first, numbers(model), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not compilations
    assert not sid.Target(model).functions


def test_new_data_are_seen_by_a_second_target_of_any_length() -> None:
    model = decay()
    before = numbers(model)[1]
    for n in (30, 12):
        with model:
            sid.set_data({"y": record(n, seed=3)})
        again = sid.Target(model)
        assert again.n_samples == n
        expected = [model.compile_logp(vars=model.observed_RVs)({"k_log__": v}) for v in np.linspace(-1, 1, 5)]
        np.testing.assert_allclose(again.log_likelihood(np.linspace(-1, 1, 5)[:, None]), expected, rtol=1e-10)
        assert not np.allclose(expected, before)


def test_a_model_that_has_changed_is_compiled_anew() -> None:
    model = decay()
    before = numbers(model)
    with model:
        pm.Potential("pull", -10.0 * model["k"])
    after = numbers(model)
    np.testing.assert_allclose(after[0], before[0] - 10.0 * before[2])
    np.testing.assert_array_equal(after[1], before[1])


def test_threads_share_no_function() -> None:
    """Compiled functions keep intermediate results in memory of their own."""
    model = decay()
    expected, point = numbers(model), model.initial_point()
    here = kept(model, point)
    with ThreadPoolExecutor(2) as pool:
        there = pool.submit(kept, model, point).result()
        assert there is not here
        assert here is kept(model, point)
        for found in pool.map(numbers, [model] * 4):
            for a, b in zip(expected, found, strict=True):
                np.testing.assert_array_equal(a, b)


def test_what_is_kept_goes_with_its_model() -> None:
    model = decay()
    numbers(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
