"""A bar in the terminal that says what long work is doing, and that is gone when the work has ended or was interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column


class Bar:
    """Where long work reports: ``bar("compiling")`` changes the text behind the title, ``advance`` counts what is done."""

    def __init__(self, title: str, progress: Progress | None, total: int | None) -> None:
        self.title, self.progress = title, progress
        self.task = None if progress is None else progress.add_task(title, total=total)

    def __call__(self, text: str = "", advance: int = 0) -> None:
        """Show a text, and so many more pieces of work as done; nothing where the bar is not visible."""
        if self.progress is not None and self.task is not None:
            description = f"{self.title}: {text}" if text else self.title
            self.progress.update(self.task, description=description, advance=advance)


@contextmanager
def progress_bar(title: str, visible: bool, total: int | None = None) -> Iterator[Bar]:
    """Show a title with the time since the start or, where a ``total`` is known, with the number done and the time left."""
    if not visible:
        yield Bar(title, None, total)
        return
    text = TextColumn("{task.description}")
    columns = (
        (SpinnerColumn(), text, TimeElapsedColumn())
        if total is None
        else (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    )
    with Progress(*columns, transient=True) as progress:
        yield Bar(title, progress, total)


class Beta(float):
    """Share of the data that a stage of sequential Monte Carlo has taken in, with statistics of the stage.

    PyMC hands one number to the progress bars of its sequential samplers, from another process where chains run in parallel,
    and nothing else: statistics for the bar can only travel with that number.
    """

    def __new__(cls, value: float, stats: Mapping[str, Any] | None = None) -> Beta:  # noqa: D102
        return super().__new__(cls, value)

    def __init__(self, value: float, stats: Mapping[str, Any] | None = None) -> None:
        self.stats = dict(stats or {})


def text_columns(columns: Mapping[str, tuple[str, str, Any]], n_chains: int) -> tuple[list[TextColumn], dict[str, list[Any]]]:
    """Columns that PyMC shows in the progress bar of a sampler, and their first values for each chain.

    ``columns`` has for every statistic the title, the format with braces for the value, and the first value.
    """
    shown = [
        TextColumn(form.replace("{", f"{{task.fields[{name}]"), table_column=Column(title, ratio=1))
        for name, (title, form, _) in columns.items()
    ]
    return shown, {name: [first] * n_chains for name, (*_, first) in columns.items()}
