"""Sequential runs say what linearising about an uncertain initial state has done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
import pytest

import pm_sysid as sid
from pm_sysid.inference import sample_ibis as module
from pm_sysid.sampling.smc.stages import stages
from support import tiny

QUIET: dict[str, Any] = {"chains": 2, "cores": 1, "random_seed": 1, "progressbar": False}
T = np.linspace(0, 3, 31)


def outlier_at_the_start(noise: Any = None, **start: Any) -> pm.Model:
    """A decay whose first sample is an outlier: to a filter with a wide Gaussian there, it is where the decay begins."""
    y = np.exp(-T) + 0.02 * np.random.default_rng(100).standard_t(3.0, 31)
    y[0] += 1.0
    with pm.Model() as model:
        rate, scale = pm.LogNormal("rate", 0, 0.5), pm.HalfNormal("scale", 0.2)
        noise = sid.StudentT(nu=3.0, scale=scale) if noise is None else noise(scale)
        sid.ODEFilter("y", tiny.DECAY, sid.TimeSeries(T, None, y), {"rate": rate}, noise=noise, substeps=2, **start)
    return model


def test_an_outlier_in_the_first_sample_is_no_start_without_a_word() -> None:
    """The rate is twelve standard deviations off, and the log evidence thirty."""
    idata = sid.sample_ibis(300, model=outlier_at_the_start(), **QUIET)
    found = sid.log_evidence(idata)
    assert float(idata.posterior["rate"].mean()) > 1.2  # 1.014 with the initial state integrated out
    assert "has ruled out a part of the posterior" in found.doubt and "the linearisation biases it" in found.doubt
    assert found.error > 5


def test_what_is_no_approximation_has_no_doubt() -> None:
    for model in (outlier_at_the_start(noise=lambda scale: scale), outlier_at_the_start(x0=1.0)):
        assert sid.log_evidence(sid.sample_ibis(300, model=model, **QUIET)).doubt == ""


def test_long_records_of_gaussian_noise_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG", 30)
    cubic = sid.System(
        lambda t, x, u, p: -p.rate * x.level**3, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    )
    with pm.Model() as model:
        record = sid.TimeSeries(T, None, 1 / np.sqrt(1 + 2 * T))
        sid.ODEFilter("y", cubic, record, {"rate": pm.LogNormal("rate", 0, 0.5)}, noise=0.05, x0=1.0, x0_std=0.1, substeps=2)
    monkeypatch.setattr(module, "Linearised", None)  # is not asked
    sid.sample_ibis(200, model=model, **QUIET)


def test_an_interruption_leaves_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "Linearised", interrupted)
    idata = sid.sample_ibis(200, model=outlier_at_the_start(), **QUIET)
    assert "was not measured: interrupted" in stages(idata).attrs["doubt"]
