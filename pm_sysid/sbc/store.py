"""Finished fits of a calibration in a folder, from which an interrupted one goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from pm_sysid.storage import check_identity, locked, read, read_settings, write, write_settings

#: What tells one fit function from another of the same name.
LINES = "lines of fit"


class Row(NamedTuple):
    """One fit: numbers by parameter (columns, parameters), draws ranked, seconds, statistics, and what it failed of.

    ``record`` are numbers that tell its data from others.
    """

    table: np.ndarray
    ranked: int
    seconds: float
    statistics: Mapping[str, float]
    message: str
    record: Sequence[float] = ()


def numbers_of(data: Mapping[str, Any]) -> list[float]:
    """Of each array of data how many values are missing, and two sums of the others with weights drawn at random."""
    found = list[float]()
    for name in sorted(data):
        values = np.ravel(np.asarray(data[name], dtype=float))
        missing = np.isnan(values)
        weights = np.random.default_rng(0).uniform(0.5, 1.5, (2, len(values)))
        found += [float(missing.sum()), *(weights @ np.where(missing, 0.0, np.abs(values)))]
        found.append(float(weights[0] @ np.where(missing, 0.0, values)))
    return found


def code_of(fit: Any) -> str:
    """Digest of what the lines of a function do; empty for what has none, such as a fit by name."""
    code = getattr(fit, "__code__", None)
    return "" if code is None else hashlib.sha256(repr(_parts(code)).encode()).hexdigest()[:16]


def _parts(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(_parts(c) if isinstance(c, CodeType) else _text(c) for c in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, constants


def _text(constant: Any) -> str:
    return repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


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
            known = {LINES: identity.get(LINES), **known}  # which folders of earlier versions do not have
            check_identity(known, identity, f"{str(self.folder)!r} holds another calibration", "give a new folder")
        else:
            write_settings(self.file, identity)

    def check(self, row: Row, truth: np.ndarray, record: Sequence[float]) -> None:
        """Refuse fits of another model: true quantities or record of its first fit are others with the same seed."""
        same = [np.allclose(row.table[0], truth, rtol=1e-6, atol=0, equal_nan=True)]
        if row.record:  # which fits of earlier versions do not have
            same.append(len(row.record) == len(record) and np.allclose(row.record, record, rtol=1e-6, atol=0))
        if row.ranked and not all(same):
            raise ValueError(
                f"{str(self.folder)!r} holds the fits of another model or of other records: the first true values or the first "
                "record differ; give a new folder."
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
