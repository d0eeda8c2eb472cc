"""Finished fits of a calibration in a folder, from which an interrupted one goes on."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
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
    """Digest of what the lines of a function do, with its defaults; empty for what has none, such as a fit by name.

    Of a partial function what is given to it counts as well, and of an object that is called its class.
    """
    given = list[str]()
    while isinstance(fit, partial):
        given.append(_text((fit.args, sorted(fit.keywords.items()))))
        fit = fit.func
    function = fit if hasattr(fit, "__code__") else type(fit).__call__
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    defaults = _text(getattr(function, "__defaults__", None)), _text(getattr(function, "__kwdefaults__", None))
    digest = hashlib.sha256(repr((_parts(code), defaults, given)).encode()).hexdigest()[:16]
    return f"{digest} in Python {sys.version_info.major}.{sys.version_info.minor}"


def _parts(code: CodeType) -> tuple[Any, ...]:
    constants = tuple(_parts(c) if isinstance(c, CodeType) else _text(c) for c in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, constants


def _text(constant: Any) -> str:
    """Representation that is the same in another process."""
    shown = repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
    return re.sub(r" at 0x[0-9a-f]+", "", shown)


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
            now = str(identity.get(LINES, ""))
            before = str(known.get(LINES, now))  # which folders of earlier versions do not have
            if before.partition(" in ")[2] != now.partition(" in ")[2]:  # other versions of Python write other code
                before = now
            known = {**known, LINES: before}
            check_identity(known, identity, f"{str(self.folder)!r} holds another calibration", "give a new folder")
        else:
            write_settings(self.file, identity)

    @property
    def other(self) -> str:
        """Why fits are refused."""
        return (
            f"{str(self.folder)!r} holds the fits of another model or of other records: the first true values or the first "
            "record differ; give a new folder."
        )

    def check(self, row: Row, truth: np.ndarray, record: Sequence[float]) -> None:
        """Refuse fits of another model: true quantities or record of its first fit are others with the same seed."""
        same = [np.allclose(row.table[0], truth, rtol=1e-6, atol=0, equal_nan=True)]
        if row.record:  # which fits of earlier versions do not have
            same.append(len(row.record) == len(record) and np.allclose(row.record, record, rtol=1e-6, atol=0, equal_nan=True))
        if not all(same):
            raise ValueError(self.other)

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
