"""Finished fits of a calibration in a folder, from which an interrupted one goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pm_sysid.storage import check_identity, locked, read, read_settings, write, write_settings


class Row(NamedTuple):
    """One fit: numbers by parameter (columns, parameters), draws ranked, seconds, statistics, and what it failed of."""

    table: np.ndarray
    ranked: int
    seconds: float
    statistics: Mapping[str, float]
    message: str


class Store:
    """A folder with one file for each finished fit, and one for the settings of the calibration."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "calibration.json"

    @property
    def known(self) -> dict[str, Any]:
        """Settings of the calibration that the folder holds; empty for a new folder."""
        return read_settings(self.file, "remove it and give the calibration's random_seed, or a new folder")

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes out of the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return locked(self.file, "give another folder")

    def open(self, identity: dict[str, Any]) -> None:
        """Write the settings to a new folder, or check that the folder is of this calibration."""
        if known := self.known:
            check_identity(known, identity, f"{str(self.folder)!r} holds another calibration", "give a new folder")
        else:
            write_settings(self.file, identity)

    def check(self, row: Row, again: Callable[[], np.ndarray]) -> None:
        """Refuse fits of another model: its parameters and records would be others with the same seed."""
        if row.ranked and not np.allclose(row.table[0], again(), rtol=1e-6, atol=0, equal_nan=True):
            raise ValueError(
                f"{str(self.folder)!r} holds the fits of another model or of other records: the first true values differ; "
                "give a new folder."
            )

    def load(self, i: int) -> Row | None:
        """Fit number i, if it is there."""
        path = self._path(i)
        if not path.exists():
            return None
        try:
            arrays, rest = read(path)
            return Row(arrays["table"], **rest)
        except Exception as error:
            raise ValueError(f"{path} is no fit of a calibration, or is damaged ({error}); remove it.") from error

    def save(self, i: int, row: Row) -> None:
        """Keep a fit; a file is there whole or not at all."""
        rest = row._asdict()
        write(self._path(i), {"table": rest.pop("table")}, rest)

    def _path(self, i: int) -> Path:
        return self.folder / f"fit_{i:06d}.nc"
