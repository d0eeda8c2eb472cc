"""A line that says what long work is at, and that is gone when it has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def progress_line(title: str, visible: bool) -> Iterator[Callable[[str], None]]:
    """Show a title and the seconds since; the function that comes with it changes the words behind the title."""
    if not visible:
        yield lambda text: None
        return
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda text: bar.update(task, description=f"{title}: {text}")
