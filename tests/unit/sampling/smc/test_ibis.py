"""What the kernel tells PyMC's progress bar, also from another process."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pymc as pm
import pytest
from pymc.progress_bar import SMCProgressBarManager

import pm_sysid as sid
from pm_sysid.progress import NO_RATE, Bar, Beta, rate_of
from pm_sysid.sampling.smc import ibis


def test_the_progress_bar_shows_samples_effective_size_acceptance_evidence_and_the_rate_of_the_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.linspace(0.0, 1.0, 12))
    clock = 100.0
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(ibis.time, "perf_counter", lambda: clock)
    kernel = sid.IBIS(50, model=model)
    kernel.initialize(None, np.random.default_rng(1))
    columns, first = kernel._progressbar_config(2)
    (update,) = kernel._make_progressbar_update_functions()
    shown = ["sample", "ess", "accepted", "evidence"]
    assert [column.text_format for column in columns] == [f"{{task.fields[{name}]}}" for name in shown]
    assert first == {**{name: ["", ""] for name in shown}, **{name: [none] * 2 for name, none in NO_RATE.items()}}
    monkeypatch.setenv("COLUMNS", "80")
    assert len(kernel._progressbar_config(1)[0]) == 3
    before, clock = kernel.state.evaluations, clock + 0.5
    kernel.update_beta_and_weights()
    first_rate = 2 * (kernel.state.evaluations - before)
    sent = pickle.loads(pickle.dumps(kernel.beta))  # as a process of a chain sends it
    state = kernel.state
    assert sent == kernel.beta == kernel.sequential.share(state)
    expected = {"sample": f"{state.n}/12", "ess": f"{state.ess:.0f}", "accepted": "1.00"}
    told = update({"beta": sent})
    assert told == {**expected, "evidence": f"{state.log_evidence:.1f}", "rate": told["rate"], "rate_unit": told["rate_unit"]}
    assert rate_in(told) == pytest.approx(first_rate)
    assert update({"beta": Beta(0.0)}) == dict.fromkeys(shown, "")
    # The next stage takes four seconds, whatever the one before took.
    kernel.step()
    clock += 4.0
    kernel.beta = kernel._progress()
    assert rate_in(update({"beta": kernel.beta})) == pytest.approx((kernel.state.evaluations - state.evaluations) / 4)


def rate_in(told: dict[str, Any]) -> float:
    """Rate in evaluations a second."""
    return float(told["rate"]) * {"evals/s": 1, "k evals/s": 1e3, "M evals/s": 1e6}[told["rate_unit"]]


def test_pymc_shows_this_rate_in_place_of_its_own(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.linspace(0.0, 1.0, 12))
    kernel = sid.IBIS(50, model=model)
    stage = {"time_index": 6, "ess": 20.0, "accept_rate": 0.43, "log_evidence": -12.34, **rate_of(9e6, 2.0, "evals")}
    with SMCProgressBarManager(kernel, 1) as manager:
        manager.update(0, 3, Beta(0.5, stage), 0.0)
    assert capsys.readouterr().out.splitlines()[-2].split()[1:8] == ["3", "6/12", "20", "0.43", "-12.3", "4.50", "M"]
    del stage["rate"], stage["rate_unit"]  # as of a stage that was made elsewhere
    with SMCProgressBarManager(kernel, 1) as manager:
        manager.update(0, 3, Beta(0.5, stage), 0.0)
    assert capsys.readouterr().out.splitlines()[-2].split()[1:7] == ["3", "6/12", "20", "0.43", "-12.3", "0:00:00"]


def test_what_is_compiled_is_said_before_pymc_shows_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    show = Bar.__call__

    def recorded(bar: Bar, text: str = "", advance: int = 0) -> None:
        said.append(text)
        show(bar, text, advance)

    monkeypatch.setattr(Bar, "__call__", recorded)
    with pm.Model():
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.linspace(0.0, 1.0, 12))
        sid.sample_ibis(50, chains=1, random_seed=1, progressbar=False)
    numbered = ["compiling 1 of 2: log-likelihood of other data", "compiling 2 of 2: log prior"]
    assert said[0] == "drawing from the prior"
    assert list(dict.fromkeys(t for t in said if t.startswith("compiling"))) == numbered
