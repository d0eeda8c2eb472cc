"""What speaks against an evidence, from the statistics of a sequential run."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from pm_sysid.sampling.smc.stages import doubts, held, one_after_the_other

#: Samples taken in by the stages of two chains, of which the second has fewer.
TIME = np.array([[10.0, 40, 60, 80, 100], [20, 50, 90, 100, np.nan]])


def statistics(**changed: object) -> xr.Dataset:
    """Of a run that nothing speaks against."""
    columns = {
        "time_index": TIME, "log_evidence": -TIME, "log_evidence_se": 0.05 + 0 * TIME, "log_product": 0.1 - TIME,
        "log_product_se": 0.2 + 0 * TIME, "proposal_ess": 0.4 + 0 * TIME, "pareto_k": 0.3 + 0 * TIME, "memory": 0.1 + 0 * TIME,
        "survivors": 500 + 0 * TIME, "log_around": -TIME, "log_around_se": 0.1 + 0 * TIME,
    }  # fmt: skip
    return xr.Dataset({k: (("chain", "stage"), np.asarray(v, dtype=float)) for k, v in (columns | changed).items()})


def test_nothing_speaks_against_a_good_run() -> None:
    assert doubts(statistics()) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"log_evidence": -TIME + [[0.0], [0.5]]}, "at least one has not found the whole posterior"),
        ({"log_product": 1.5 - TIME}, "Particles were lost on the way"),
        ({"log_product": -4.0 - TIME, "proposal_ess": 0.1 + 0 * TIME}, "particles did not follow the posterior"),
        ({"log_evidence_se": 0.6 + 0 * TIME}, "differ by 0.60 in log evidence"),
        ({"pareto_k": 0.9 + 0 * TIME}, "No independent proposal fits"),
        ({"memory": np.where(TIME == 100, 0.7, 0.1) + 0 * TIME}, "The particles of the last stage have hardly moved"),
        ({"memory": np.where(TIME < 100, 0.7, 0.1) + 0 * TIME}, "hardly moved in 67% of the stages"),
        ({"survivors": 3 + 0 * TIME}, "possible for 3 particles only"),
    ],
)
def test_each_reason_is_given_for_what_it_says_and_no_other(changed: dict[str, object], said: str) -> None:
    reasons = doubts(statistics(**changed))
    assert len(reasons) == 1 and said in reasons[0]


def test_stages_of_the_second_half_count_of_each_chain_by_its_own_record() -> None:
    memory = np.array([[0.9, 0.9, 0.1, 0.9, 0.1], [0.9, 0.6, 0.1, 0.1, np.nan]])
    np.testing.assert_allclose(held(statistics(memory=memory)), [1 / 3, 1 / 3])
    # A run that takes in all samples at once has no record on whose way it could lose something.
    assert held(statistics(time_index=100 + 0 * TIME, memory=0.9 + 0 * TIME)).tolist() == [0.0, 0.0]


def test_an_earlier_run_whose_chains_differed_is_not_forgotten() -> None:
    """What went on from it has an error of its own, which is smaller."""
    earlier, later = statistics(), statistics()
    earlier.attrs["chains_sd"], later.attrs["chains_sd"] = 3.0, 0.01
    assert one_after_the_other(earlier, later).attrs["chains_sd"] == 3.0
    assert one_after_the_other(statistics(), later).attrs["chains_sd"] == 0.01
