"""Progress bars: what they show, and that nothing is left of them."""

import io
from collections.abc import Iterator

import pytest
import rich

from pm_sysid.progress import progress_bar


@pytest.fixture
def terminal() -> Iterator[io.StringIO]:
    """What is written to a terminal."""
    written, console = io.StringIO(), rich.get_console()
    before = dict(console.__dict__)
    rich.reconfigure(file=written, force_terminal=True, width=100)
    yield written
    console.__dict__ = before


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


def test_an_invisible_bar_writes_nothing(terminal: io.StringIO) -> None:
    with progress_bar("fits", False, 3) as bar:
        bar("compiling", advance=1)
    assert terminal.getvalue() == ""
