"""A bar in the terminal that says what long work is doing, and that is gone when the work has ended or was interrupted.

What compiles functions says so by :func:`compiling`, :func:`announced` and :func:`expecting`, wherever it is: the bar that is
up shows it, and without a bar nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec
from typing import Any

from rich import get_console
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column


class Bar:
    """Where long work reports: ``bar("compiling")`` changes the text behind the title, ``advance`` counts what is done."""

    def __init__(self, title: str, progress: Progress | None, total: int | None) -> None:
        self.title, self.progress, self.text = title, progress, ""
        #: Functions that have been compiled or will be, in this order.
        self.functions: list[str] = []
        self.task = None if progress is None else progress.add_task(title, total=total)

    def __call__(self, text: str = "", advance: int = 0) -> None:
        """Show a text, and so many more pieces of work as done; nothing where the bar is not visible."""
        self.text = text
        if self.progress is not None and self.task is not None:
            description = f"{self.title}: {text}" if text else self.title
            self.progress.update(self.task, description=description, advance=advance)

    @contextmanager
    def compiling(self, function: str) -> Iterator[None]:
        """Say which function is being compiled, and of how many; then what was said before."""
        before = self.text
        self.expect([function])
        self(f"compiling {self.functions.index(function) + 1} of {len(self.functions)}: {function}")
        if self.progress is not None:
            self.progress.refresh()  # compiled code may hold the interpreter's lock, and the bar could not be drawn meanwhile
        try:
            yield
        finally:
            self(before)

    def expect(self, functions: Iterable[str]) -> None:
        """Count functions among those that are compiled."""
        self.functions += [f for f in dict.fromkeys(functions) if f not in self.functions]


#: The bar that is up.
_UP: ContextVar[Bar | None] = ContextVar("pm_sysid_bar", default=None)


@contextmanager
def compiling(function: str) -> Iterator[None]:
    """Say on the bar that is up, if there is one, that a function is being compiled."""
    bar = _UP.get()
    if bar is None:
        yield
        return
    with bar.compiling(function):
        yield


def expecting(functions: Iterable[str]) -> None:
    """Tell the bar that is up which functions are going to be compiled, so that it can say of how many."""
    if (bar := _UP.get()) is not None:
        bar.expect(functions)


def doing(text: str) -> None:
    """Say on the bar that is up, if there is one, what is being done."""
    if (bar := _UP.get()) is not None:
        bar(text)


class Announced:
    """A function whose first call, in which numba compiles it, is shown as compilation."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function, self.compiled = name, function, False

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        if self.compiled:
            return self.function(*arguments)
        with compiling(self.name):
            self.compiled = True  # whether the call succeeds or not
            return self.function(*arguments)


def announced(name: str, build: Callable[[], Callable[..., Any]]) -> Announced:
    """Build a function that is compiled, saying so now and in its first call."""
    with compiling(name):
        return Announced(name, build())


@contextmanager
def progress_bar(title: str, visible: bool, total: int | None = None) -> Iterator[Bar]:
    """Show a title with the time since the start or, where a ``total`` is known, with the number done and the time left.

    Where a bar is up already, as of a caller that does this work many times, that one stays and this one is not shown.
    Nor is it where nobody could see it move: in a file, or in a notebook without ipywidgets, where rich would only warn.
    """
    outside = _UP.get()
    if not (visible and _moves(get_console())) or (outside is not None and outside.progress is not None):
        with _up(Bar(title, None, total)) as bar:
            yield bar
        return
    text = TextColumn("{task.description}", table_column=Column(no_wrap=False))  # what says the time left is not cut off
    columns = (
        (SpinnerColumn(), text, TimeElapsedColumn())
        if total is None
        else (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    )
    with Progress(*columns, transient=True) as progress, _up(Bar(title, progress, total)) as bar:
        yield bar


def drawable(progressbar: bool) -> bool:
    """Whether PyMC may draw a bar: not in a notebook without ipywidgets, where it would warn at every change."""
    return progressbar and not (get_console().is_jupyter and find_spec("ipywidgets") is None)


def _moves(console: Console) -> bool:
    """Whether a line can be written over and taken away."""
    return find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal


@contextmanager
def _up(bar: Bar) -> Iterator[Bar]:
    """Have a bar told what is compiled; an invisible one keeps it from a visible one outside."""
    token = _UP.set(bar)
    try:
        yield bar
    finally:
        _UP.reset(token)


def time_left(share: float, seconds: float) -> str:
    """How long the rest takes at the pace so far, in words; empty while that is not known.

    Examples
    --------
    >>> time_left(0.25, 30.0), time_left(0.0, 30.0)
    ('1:30 left', '')
    """
    if not 0 < share <= 1:
        return ""
    rest = round(seconds * (1 - share) / share)
    return f"{rest // 60}:{rest % 60:02d} left"


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


class Rate(TextColumn):
    """Text column that also replaces the speed of PyMC's bar by the fields ``rate`` and ``rate_unit``.

    PyMC divides the share of the data that was taken in by all the time since the start, and calls that stages a second.
    """

    def callbacks(self, task: Task) -> None:
        """Called by PyMC before a row of its bar is drawn."""
        task.fields["sampling_speed"], task.fields["speed_unit"] = task.fields["rate"], task.fields["rate_unit"]


class UnknownRate(float):
    """A rate that nobody measured, shown as nothing: PyMC's bar formats a number there."""

    def __new__(cls) -> UnknownRate:  # noqa: D102
        return super().__new__(cls, "nan")

    def __format__(self, specification: str) -> str:
        return ""


#: The fields of :class:`Rate` where there is none.
NO_RATE: dict[str, Any] = {"rate": UnknownRate(), "rate_unit": ""}


def rate_of(count: float, seconds: float, what: str) -> dict[str, Any]:
    """The fields of :class:`Rate`."""
    rate = count / seconds if seconds > 0 else 0.0
    for prefix, size in (("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return {"rate": rate / size, "rate_unit": f"{prefix} {what}/s"}
    return {"rate": rate, "rate_unit": f"{what}/s"}
