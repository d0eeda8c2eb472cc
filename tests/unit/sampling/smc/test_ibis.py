"""What the kernel tells PyMC's progress bar, also from another process."""

from __future__ import annotations

import pickle

import numpy as np
import pymc as pm

import pm_sysid as sid
from pm_sysid.progress import Beta


def test_the_progress_bar_shows_sample_effective_size_and_evidence() -> None:
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=np.linspace(0.0, 1.0, 12))
    kernel = sid.IBIS(50, model=model)
    kernel.initialize(None, np.random.default_rng(1))
    columns, first = kernel._progressbar_config(2)
    (update,) = kernel._make_progressbar_update_functions()
    assert [column.text_format for column in columns] == [f"{{task.fields[{name}]}}" for name in first]
    assert first == {"sample": ["", ""], "ess": ["", ""], "evidence": ["", ""]}
    kernel.update_beta_and_weights()
    sent = pickle.loads(pickle.dumps(kernel.beta))  # as a process of a chain sends it
    state = kernel.state
    assert sent == kernel.beta == kernel.sequential.share(state)
    expected = {"sample": f"{state.n}/12", "ess": f"{state.ess:.0f}", "evidence": f"{state.log_evidence:.2f}"}
    assert update({"beta": sent}) == expected
    assert update({"beta": Beta(0.0)}) == {"sample": "", "ess": "", "evidence": ""}
