"""Sentences of a report: their levels at the thresholds, and the page that states these."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from pm_sysid.records.residual_tests import between_outputs, input_tests, residual_tests, with_squares
from pm_sysid.reports import verdicts
from pm_sysid.reports.diagnostics import Diagnostics

PAGE = Path(__file__).parents[3] / "docs" / "how_to" / "report.md"
RNG = np.random.default_rng(1)
WHITE, INPUT = RNG.standard_normal((2, 2000))


def level(*arguments, **options) -> str:
    return verdicts.run("run", "y", *arguments, **options).level


def found(r_hat: float, ess: float) -> Diagnostics:
    one = np.array([1.0])
    return Diagnostics(["k"], one, one, one, one, np.array([r_hat]), np.array([ess]), np.array([ess]))


def test_the_page_states_the_thresholds_of_the_code() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert rows[2:] == ["| " + " | ".join(row) + " |" for row in verdicts.TABLE]


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.19, 1.5, 2.9, 5.0])
@pytest.mark.parametrize("fit", [-20.0, 10.0, 33.0, 49.0, 60.0, 89.0, 99.0])
@pytest.mark.parametrize("colour", ["is not white (80 % of lags outside the bounds)", None])
def test_no_run_is_fine_whose_residuals_are_no_noise_or_unknown(ratio: float, fit: float, colour: str | None) -> None:
    assert level(ratio, fit, 1.0, colour) != "good" and level(ratio, fit, None, colour) != "good"


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.19, 1.5, 5.0])
@pytest.mark.parametrize("fit", [-20.0, 10.0, 33.0, 49.9])
def test_no_poor_fit_is_fine_whatever_the_noise(ratio: float, fit: float) -> None:
    assert level(ratio, fit, 1.0, "") != "good"


def test_a_fair_fit_that_leaves_noise_is_fine() -> None:
    assert level(1.0, 75.0, 1.0, "") == "good" and level(1.0, 75.0, 1.0) == "good"
    assert level(1.5, 75.0, 1.0) == "look" and level(4.0, 95.0, 1.0) == "look"
    assert level(4.0, 75.0, 1.0, "is not white") == "bad" and level(4.0, 75.0, 1.0) == "look"
    swallowed = verdicts.run("run", "y", 1.0, 33.0, 1.0, "follows the input (correlation 0.5 at lag 1)")
    assert swallowed.level == "bad" and "covers what the structure lacks" in swallowed.text


def test_a_free_run_without_the_process_noise_of_the_model_is_no_problem() -> None:
    for ratio, fit in ((1.5, 75.0), (9.0, -20.0)):
        found = verdicts.run("run", "y", ratio, fit, 1.0, "", driven=True)
        assert found.level == "look" and "lacks the process noise" in found.text
    assert level(1.0, 75.0, 1.0, "", driven=True) == "good"


def test_colour_in_words() -> None:
    assert verdicts.coloured(residual_tests(WHITE, INPUT)) == ""
    assert verdicts.coloured(residual_tests(WHITE[1:] + WHITE[:-1], INPUT[1:])).startswith("is not white")
    assert verdicts.coloured(residual_tests(WHITE + INPUT, INPUT)).startswith("follows the input")


def test_innovations_are_compared_with_the_distribution_of_the_model() -> None:
    """Their normal numbers are given; what is said names the distribution that these stand for."""
    right, wrong = residual_tests(WHITE), residual_tests(WHITE**3)
    for freedom in (np.inf, 4.0):
        assert not [v for v in verdicts.residual("y", right, freedom) if v.level != "good"]
    normal, heavy = ("".join(v.text for v in verdicts.residual("y", wrong, freedom)) for freedom in (np.inf, 4.0))
    assert "are not normal, as the model takes them to be: look for outliers" in normal
    assert "do not follow the t distribution with 4 degrees of freedom of the model's noise" in heavy
    assert "normal" not in heavy and "outliers" not in heavy
    law = "the model's t distribution with 4 degrees of freedom (Jarque-Bera"
    assert verdicts.sentences(right, 4.0)[-1].startswith(f"They follow {law}")
    assert verdicts.sentences(wrong, 4.0)[-1].startswith(f"They do not follow {law}")
    assert verdicts.sentences(wrong)[-1].startswith("They are not normal")


def test_innovations_that_follow_the_input_are_not_called_white() -> None:
    told = list(verdicts.residual("y", residual_tests(WHITE + 0.15 * INPUT, INPUT)))
    assert [v.level for v in told] == ["look"] and "follow the input" in told[0].text
    told = list(verdicts.residual("y", residual_tests(WHITE, INPUT)))
    assert [v.level for v in told] == ["good"]


def test_the_input_that_innovations_follow_is_named() -> None:
    other = np.random.default_rng(2).standard_normal(2000)
    told = list(verdicts.residual("y", input_tests(WHITE + 0.15 * other, {"u": INPUT, "w": other, "still": 0 * other}, 25)))
    assert [v.level for v in told] == ["look"] and "follow the input w (correlation 0.1" in told[0].text
    assert input_tests(WHITE, {"still": np.ones(2000)}, 25).cross_p is None


@pytest.mark.slow
def test_the_search_over_inputs_raises_no_false_alarms() -> None:
    rng, p = np.random.default_rng(3), []
    for _ in range(200):
        e, *inputs = rng.standard_normal((6, 300))
        p.append(input_tests(e, dict(zip("abcde", inputs, strict=True)), 10).cross_p)
    assert stats.kstest(p, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(("offset", "expected"), [(0.0, "good"), (0.04, "good"), (0.3, "look"), (-0.7, "bad")])
def test_an_offset_that_matters_is_no_noise(offset: float, expected: str) -> None:
    noise = RNG.standard_normal(20_000)
    tests = residual_tests((noise - noise.mean()) / noise.std() + offset)
    (verdict,) = verdicts.residual("y", tests)
    assert verdict.level == expected
    left = verdicts.left_over("run", "y", tests)
    if expected == "good":
        assert verdicts.coloured(tests) == "" and left.level == "good"
    else:
        assert "not centred on zero" in verdict.text and "offset of the sensor, or of the input, a parameter" in verdict.text
        assert verdicts.coloured(tests).startswith(f"is not centred on zero (mean {offset:.2f}") and left.level == "look"


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (400, 1.0, "good"),
        (400, 1.19, "look"),
        (400, 0.83, "look"),
        (100, 1.15, "good"),
        (100, 1.3, "look"),
        (20_000, 1.08, "good"),
    ],
)
def test_a_size_of_the_noise_is_judged_by_its_own_error(count: int, size: float, expected: str) -> None:
    noise = np.random.default_rng(4).standard_normal(count)
    told = list(verdicts.residual("y", residual_tests(size * (noise - noise.mean()) / noise.std())))
    assert ("look" in [v.level for v in told]) == (expected == "look")
    assert any(f"{size:.2f} times the standard deviation" in v.text for v in told) == (expected == "look")


@pytest.mark.parametrize(
    "r_hat, ess, expected",
    [
        (1.005, 900.0, ["good", "good"]),
        (1.03, 900.0, ["look", "good"]),
        (1.3, 900.0, ["bad", "good"]),
        (1.005, 300.0, ["good", "look"]),
        (1.005, 60.0, ["good", "bad"]),
    ],
)
def test_convergence(r_hat: float, ess: float, expected: list[str]) -> None:
    assert [v.level for v in verdicts.sampling(None, found(r_hat, ess))] == expected


def test_a_stuck_chain_is_seen_beside_parameters_that_move() -> None:
    one = np.ones(2)
    both = Diagnostics(["k", "c"], one, one, one, one, np.array([1.0, np.nan]), np.array([900.0, np.nan]), one * 900)
    first = next(verdicts.sampling(None, both))
    assert first.level == "bad" and "draws of c do not vary" in first.text


@pytest.mark.parametrize("last, expected", [(1.0, "bad"), (0.0, None), (np.nan, "look")])
def test_chains_that_agree_and_say_that_they_have_missed_a_part_are_a_problem(last: float, expected: str | None) -> None:
    missed = np.full((2, 5), np.nan)
    missed[:, -1] = 0.0, last
    idata = xr.DataTree.from_dict({"sample_stats": xr.Dataset({"missed": (("chain", "draw"), missed)})})
    found_levels = [v.level for v in verdicts.sampling(idata, found(1.0, 900.0))]
    assert found_levels[0] == "good" and set(found_levels) - {"good"} == ({expected} if expected else set())


@pytest.mark.parametrize("doubt, expected", [("", "good"), ("One chain has not found the whole posterior.", "bad")])
def test_an_evidence_that_its_sampler_doubts_is_not_called_good(doubt: str, expected: str) -> None:
    dims = ("chain", "stage")
    columns = {"log_evidence": (dims, np.array([[-3.0], [-3.1]])), "log_evidence_se": (dims, np.full((2, 1), 0.1))}
    columns |= {"time_index": (dims, np.ones((2, 1))), "proposal_ess": (dims, np.full((2, 1), 0.5))}
    idata = xr.DataTree.from_dict({"sample_stats": xr.Dataset(columns, attrs={"doubt": doubt})})
    last = list(verdicts.sampling(idata, found(1.0, 900.0)))[-1]
    assert last.level == expected and doubt in last.text


@pytest.mark.parametrize(
    ("error", "fits", "colour", "level"),
    [
        (0.8, (99.0, 95.0, 80.0), "", "good"),
        (0.8, (99.0, 95.0, 10.0), "", "look"),  # the process does it all
        (0.8, (99.0, 95.0, 80.0), "is not white", "look"),
        (0.8, (99.0, 95.0, 80.0), None, "look"),
        (2.0, (97.0, 95.0, 80.0), "", "look"),
        (5.0, (97.0, 95.0, 80.0), "", "bad"),
        (0.8, (30.0, 20.0, 80.0), "", "look"),  # the noise is most of it
        (0.8, (30.0, 20.0, 80.0), None, "look"),
        (0.8, (30.0, 20.0, 80.0), "is not white", "bad"),  # a noise that covers what the structure lacks
        (1.3, (30.0, 20.0, 80.0), "", "bad"),
        (np.nan, (30.0, 20.0, 80.0), "", "bad"),
        (np.nan, (99.0, 95.0, np.nan), "", "look"),
    ],
)
def test_a_fit_with_a_process_inferred_is_judged_by_what_it_could_not_help(error, fits, colour, level) -> None:
    found = verdicts.inferred("record", "y", "d", error, fits, colour)
    assert found.level == level and "with d inferred" in found.text and "one sample ahead" in found.text


@pytest.mark.parametrize(
    ("rank", "start_known", "level"),
    [(0.5, True, "good"), (0.01, True, "bad"), (0.01, False, "look"), (0.99, True, "look"), (None, True, "look")],
)
def test_runs_on_drawn_paths_are_judged_by_their_spread(rank, start_known, level) -> None:
    assert verdicts.spread("run", "y", "d", 20.0, 90.0, rank, start_known).level == level


def test_a_drift_that_correlations_do_not_see_is_not_called_noise() -> None:
    tests = residual_tests(WHITE + np.linspace(-0.15, 0.15, 2000), INPUT)
    assert tests.ljung_box_p > 0.01 and verdicts.coloured(tests).startswith("is not steady (samples ")
    told = list(verdicts.residual("y", tests))
    assert [v.level for v in told] == ["look"] and "A drift, or a disturbance, is not in the model" in told[0].text
    assert "not steady" in verdicts.left_over("run", "y", tests).text and verdicts.left_over("run", "y", tests).level == "look"


def test_of_a_strong_disturbance_it_is_said_where_it_acts() -> None:
    tests = residual_tests(WHITE + 3 * (np.abs(np.arange(2000) - 700) < 100))
    (told,) = [v for v in verdicts.residual("y", tests) if "white" in v.text]
    assert told.level != "good" and "are without samples" in told.text and "Leave these samples out" in told.text
    assert "something acts there" in verdicts.left_over("run", "y", tests).text


def test_a_burst_is_worth_a_look_and_a_little_of_it_is_not() -> None:
    for factor, levels in ((1.6, ["good", "look"]), (1.1, ["good"])):
        told = list(verdicts.residual("y", residual_tests(WHITE * np.where(np.arange(2000) < 1000, factor, 1.0) / factor**0.5)))
        assert [v.level for v in told if "normal" not in v.text and "standard deviation that" not in v.text] == levels


def test_innovations_that_follow_the_square_of_an_input_are_not_called_white() -> None:
    inputs = with_squares({"F": INPUT, "switch": np.sign(INPUT)})
    told = list(verdicts.residual("y", input_tests(WHITE + 0.15 * (INPUT**2 - 1), inputs, 25)))
    assert [v.level for v in told] == ["look"] and "follow the input F squared" in told[0].text


def test_outputs_that_err_together_are_said() -> None:
    rng = np.random.default_rng(0)
    a, b, c, part = rng.standard_normal((4, 400))
    alone = between_outputs({"a": a, "b": b, "c": np.where(np.arange(400) < 390, np.nan, c)})
    assert alone is not None and [v.level for v in verdicts.common(alone)] == ["good"]
    for size, level in ((0.5, "look"), (2.0, "bad")):
        pair = between_outputs({"a": a, "b": b + size * part, "c": c + size * part})
        assert pair is not None and {pair.first, pair.second} == {"b", "c"}
        (told,) = verdicts.common(pair)
        assert told.level == level and "Innovations of b and c are correlated (0." in told.text
    assert between_outputs({"a": a}) is None and between_outputs({"a": a, "still": np.zeros(400)}) is None


def test_the_search_over_pairs_of_outputs_raises_no_false_alarms() -> None:
    rng, p = np.random.default_rng(3), []
    for _ in range(200):
        found = between_outputs(dict(zip("abcd", rng.standard_normal((4, 100)), strict=True)))
        p.append(found.p if found else np.nan)
    assert stats.kstest(p, "uniform").pvalue > 1e-3


def test_what_speaks_against_draws_is_repeated_where_they_are_read() -> None:
    tree = xr.DataTree()
    assert not verdicts.distrust(tree) and not verdicts.distrust({"k": 1.0})
    tree.attrs.update(trusted=1, verdict="Nothing is known against these draws.")
    assert not verdicts.distrust(tree)
    tree.attrs.update(trusted=0, verdict="These draws cannot be trusted. There are 2 modes.")
    first, *_ = verdicts.sampling(tree, found(1.0, 1000.0))
    assert first == verdicts.Verdict("bad", "sid.sample: These draws cannot be trusted. There are 2 modes.")


def test_a_fit_that_is_as_good_as_the_noise_allows_is_not_called_wrong() -> None:
    """With noise of half of the output, 49.8 % was called a wrong structure, though the error was the noise."""
    text = verdicts.inferred("record", "y", "d", 0.975, (49.8, 48.0, 45.0), "").text
    assert "structure is wrong" not in text and "as near as such a noise allows" in text and "0.975 times the noise" in text


def test_what_linearising_costs_is_said_once() -> None:
    reason = "With the processes integrated out by particles, and not linearised, the mean of a would move by 1.2."
    now = "With the processes integrated out by particles, and not linearised, the mean of a would move by 1.1."
    numbers = {"log_evidence": -3.0, "log_evidence_se": 0.1, "time_index": 1.0, "proposal_ess": 0.5}
    columns = {name: (("chain", "stage"), np.full((2, 1), value)) for name, value in numbers.items()}
    tree = xr.DataTree.from_dict({"sample_stats": xr.Dataset(columns, attrs={"doubt": reason})})
    assert verdicts.told_before(tree, now) and not verdicts.told_before(xr.DataTree(), now)  # as after sample_ibis
    tree.attrs.update(trusted=0, verdict=f"These draws cannot be trusted. {reason}")
    said = [v.text for v in verdicts.sampling(tree, found(1.0, 1000.0))]
    assert sum(reason in text for text in said) == 1 and any("see what sid.sample says of these draws" in text for text in said)
    assert not verdicts.told_before(tree, "With half the step, the mean of a would move by 1.1.")


def test_a_louder_noise_with_nothing_in_it_is_no_systematic_error() -> None:
    """Nor is it a run that drifts away; errors that are not white, or not tested, may be either."""
    for fit in (97.0, 80.0, 20.0):
        found = verdicts.run("validation", "y", 2.0, fit, 1.0, "")
        assert found.level == "look" and "white: the noise was louder there" in found.text
        for colour in ("is not white", None):
            assert "white:" not in verdicts.run("validation", "y", 2.0, fit, 1.0, colour).text
