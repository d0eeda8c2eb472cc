"""What PyMC's progress bar shows of a sequential run: sample, effective size, evidence."""

from __future__ import annotations

from typing import Any

from rich.progress import TextColumn
from rich.table import Column

COLUMNS = {"sample": "Sample", "ess": "ESS", "evidence": "Log evidence"}


class Beta(float):
    """Fraction of the data taken in, with what a progress bar shows; PyMC hands a number to its bars, and only that."""

    text: tuple[str, str, str] = ("0", "", "")

    def __reduce__(self) -> Any:
        return beta, (float(self), self.text)


def beta(value: float, text: tuple[str, str, str]) -> Beta:
    """Return a fraction that carries a text for each column."""
    result = Beta(value)
    result.text = text
    return result


class SequentialBar:
    """Columns of the bar, as PyMC asks a kernel for them."""

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> Any:
        columns = [TextColumn(f"{{task.fields[{k}]}}", table_column=Column(v, ratio=1)) for k, v in COLUMNS.items()]
        return columns, {key: [""] * n_chains for key in COLUMNS}

    @staticmethod
    def _make_progressbar_update_functions() -> Any:
        def update(stats: dict[str, Any]) -> dict[str, Any]:
            return dict(zip(COLUMNS, getattr(stats["beta"], "text", ("", "", "")), strict=True))

        return (update,)
