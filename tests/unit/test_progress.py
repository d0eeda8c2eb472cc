"""Progress bars: what they show, and that nothing is left of them."""

import io
import re
import sys
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import rich

import pm_sysid as sid
from pm_sysid.progress import announced, compiling, doing, drawable, expecting, progress_bar, rate_of, time_left


@pytest.fixture
def terminal() -> Iterator[io.StringIO]:
    """What is written to a terminal."""
    written, console = io.StringIO(), rich.get_console()
    before = dict(console.__dict__)
    rich.reconfigure(file=written, force_terminal=True, width=100)
    yield written
    console.__dict__ = before


@pytest.mark.parametrize(
    "share, seconds, said",
    [(0.5, 7.0, "0:07 left"), (0.1, 60.0, "9:00 left"), (1.0, 5.0, "0:00 left"), (0.0, 5.0, ""), (float("nan"), 5.0, "")],
)
def test_time_left_is_extrapolated_from_the_share_that_is_done(share: float, seconds: float, said: str) -> None:
    assert time_left(share, seconds) == said


@pytest.mark.parametrize("total, shown", [(None, "0:00:0"), (3, "1/3")])
def test_a_bar_shows_its_text_and_is_gone_after_an_interrupt(terminal: io.StringIO, total: int | None, shown: str) -> None:
    with pytest.raises(KeyboardInterrupt), progress_bar("fits", True, total) as bar:
        bar("compiling", advance=1)
        assert bar.progress is not None
        bar.progress.refresh()
        raise KeyboardInterrupt
    text = terminal.getvalue()
    assert "fits: compiling" in text and shown in text
    assert "\x1b[2K" in text.rpartition("compiling")[2]  # the line is erased


@pytest.mark.parametrize("notebook", [False, True])
def test_where_a_line_could_not_move_there_is_none(terminal: io.StringIO, monkeypatch, notebook: bool) -> None:
    console = rich.get_console()
    console._force_terminal, console.is_jupyter = None, notebook  # a file, or a notebook without ipywidgets
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with progress_bar("fits", True, 3) as bar:
            bar("compiling", advance=1)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("notebook", [False, True])
def test_bars_of_pymc_are_off_in_a_notebook_without_ipywidgets(terminal: io.StringIO, monkeypatch, notebook: bool) -> None:
    rich.get_console().is_jupyter = notebook
    monkeypatch.setattr("pm_sysid.progress.find_spec", lambda name: object())  # it is installed
    assert drawable(True) and not drawable(False)
    monkeypatch.setattr("pm_sysid.progress.find_spec", lambda name: None)
    assert drawable(True) is not notebook


def test_an_invisible_bar_writes_nothing(terminal: io.StringIO) -> None:
    with progress_bar("fits", False, 3) as bar:
        bar("compiling", advance=1)
    assert terminal.getvalue() == ""


def test_the_bar_that_is_up_says_what_is_compiled_and_of_how_many(terminal: io.StringIO) -> None:
    with progress_bar("sample_ibis", True) as bar:
        bar("drawing from the prior")
        expecting(["log-likelihood of 1000 particles", "log prior"])
        run = announced("log-likelihood of 1000 particles", lambda: lambda x: 2 * x)
        assert bar.text == "drawing from the prior"
        with compiling("log prior"):
            assert bar.text == "compiling 2 of 2: log prior"
        assert run(3) == 6
        bar("stage 1")
        assert run(4) == 8
        assert bar.text == "stage 1"
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    said = [t.strip() for t in re.findall(r"compiling \d of \d: [a-z0-9 -]+?(?= \d+:)", text)]
    first, second = "compiling 1 of 2: log-likelihood of 1000 particles", "compiling 2 of 2: log prior"
    assert list(dict.fromkeys(said)) == [first, second] and said[-1] == first  # numba compiles in the first call


def test_a_function_that_nobody_expected_is_counted(terminal: io.StringIO) -> None:
    with progress_bar("find_mode", True) as bar:
        expecting(["gradient"])
        with compiling("gradient"), compiling("filter"):
            assert bar.text == "compiling 2 of 2: filter"
        assert bar.text == ""


def test_a_first_call_that_fails_is_not_the_first_again() -> None:
    calls = []

    def fails(x: float) -> float:
        calls.append(bar.text)
        raise ValueError("no")

    with progress_bar("fits", False) as bar:
        function = announced("log posterior", lambda: fails)
        for _ in range(2):
            with pytest.raises(ValueError, match="no"):
                function(1.0)
    assert calls == ["compiling 1 of 1: log posterior", ""]


def test_without_a_bar_nothing_is_said_and_an_invisible_bar_hides_the_one_outside(terminal: io.StringIO) -> None:
    with compiling("log prior"):
        expecting(["log prior"])
    assert terminal.getvalue() == ""
    with progress_bar("report", True) as outer:
        with progress_bar("find_mode", False), compiling("log posterior"):
            assert outer.text == ""
        with compiling("innovations"):
            assert outer.text == "compiling 1 of 1: innovations"


def test_what_was_compiled_before_the_first_result_is_not_in_the_time_left(terminal: io.StringIO) -> None:
    clock = 0.0
    with progress_bar("fits", True, 12) as bar:
        assert bar.progress is not None and bar.task is not None
        bar.progress.get_time = bar.progress.tasks[0]._get_time = lambda: clock
        with compiling("log-likelihood"):
            clock = 60.0
        for _ in range(2):
            clock += 1.0
            bar("", advance=1)
        assert bar.progress.tasks[0].time_remaining == 10.0


@pytest.mark.parametrize("count, unit, rate", [(50, "evals/s", 25.0), (5000, "k evals/s", 2.5), (5e6, "M evals/s", 2.5)])
def test_rates_have_a_unit_in_which_they_can_be_read(count: float, unit: str, rate: float) -> None:
    assert rate_of(count, 2.0, "evals") == {"rate": rate, "rate_unit": unit}
    assert rate_of(count, 0.0, "evals")["rate"] == 0.0


def test_a_fit_says_what_it_is_doing(terminal: io.StringIO) -> None:
    decay = sid.System(
        lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    )
    t = np.linspace(0.0, 2.0, 41)
    record = sid.TimeSeries(t, None, np.exp(-1.5 * t))
    options = dict(predictor=sid.ExtendedKalman(substeps=2), x0=1.0)
    assert sid.fit_pem(decay, record, {"rate": 1.0}, **options, progressbar=False).success
    assert terminal.getvalue() == ""
    with progress_bar("calibrate", True) as bar:
        assert sid.fit_pem(decay, record, {"rate": 1.0}, **options).success
        assert bar.text == ""  # the bar outside stays as it was
    terminal.truncate(0)
    assert sid.fit_pem(decay, record, {"rate": 1.0}, **options).success
    assert "fit_pem" in terminal.getvalue()


def test_a_search_says_how_far_it_is() -> None:
    with progress_bar("fit", False) as bar:
        doing("evaluation 3")
        assert bar.text == "evaluation 3"
    doing("nobody listens")
