"""Columns of numbers out of text files and MATLAB files, and what makes a record of them."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pm_sysid.arguments import among, number, place, shown, whole, words
from pm_sysid.records.units import SECONDS, scaled, split_header, without_units
from pm_sysid.records.validation import FloatArray, Names

type PathLike = str | os.PathLike[str]
type Columns = dict[str, FloatArray]

_MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "-nan", "#n/a"})
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", " ": "spaces", "|": "bar"}
_CLOCK = re.compile(r"\d{1,2}:\d{2}(:\d{2}([.,]\d*)?)?(\s*[AaPp][Mm])?")
_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{2,4}\b")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(([.,' \u00a0\u202f])\d{3})(\2\d{3})*([.,]\d*)?")
_SEARCHED = 200  # lines in which the header is looked for, to say where it is


# -- text -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextFormat:
    """How a text file holds its columns, for ``TimeSeries.from_csv(..., format=TextFormat(...))``.

    Parameters
    ----------
    columns : sequence of str, optional
        Names of all columns of a file that has no header.
    delimiter : str, default "auto"
        Character between cells, a space for any blanks; by default that one of comma, semicolon, tab, blanks and bar by
        which the header is cut into the names wanted.
    decimal : {".", ","}
        Decimal sign.
    skip, unit_lines : int, default 0
        Lines before the header, and lines between it and the first row (units).
    missing : sequence of str, optional
        What marks a missing value beside empty cells, NaN, NA, N/A, null and none.
    encoding : str, default "utf-8-sig"
        Encoding of the text.
    dates : str, optional
        How dates in the column of times are written if not as in ISO 8601, in the signs of ``datetime.strptime``:
        ``"%d.%m.%Y %H:%M:%S"``, or ``"%m/%d/%Y %I:%M %p"``.

    Raises
    ------
    ValueError, TypeError
        For a decimal sign, a delimiter, a number of lines, names, an encoding or dates that are none.

    Examples
    --------
    >>> import pm_sysid as sid
    >>> sid.TextFormat(decimal=",", unit_lines=1).decimal
    ','
    """

    columns: Sequence[str] | None = None
    delimiter: str = "auto"
    decimal: str = "."
    skip: int = 0
    unit_lines: int = 0
    missing: Sequence[str] = ()
    encoding: str = "utf-8-sig"
    dates: str | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        if not among(self.decimal, (".", ",")):
            raise ValueError(f'decimal must be "." or ",", but is {self.decimal!r}')
        if not among(self.delimiter, ("auto",)) and (not isinstance(self.delimiter, str) or len(self.delimiter) != 1):
            raise ValueError(f'delimiter must be "auto" or one character (" " for any spaces), but is {self.delimiter!r}')
        for what, count in (("skip", self.skip), ("unit_lines", self.unit_lines)):
            if not whole(count, 0):
                raise ValueError(f"{what} must be a number of lines, 0 or more, but is {shown(count)}")
        if not isinstance(self.encoding, str) or "\0" in self.encoding:
            raise TypeError(f"encoding is {shown(self.encoding)}; give the name of an encoding, such as 'latin-1'")
        if self.dates is not None and not isinstance(self.dates, str):
            raise TypeError(f"dates is {shown(self.dates)}; give how dates are written, such as '%d.%m.%Y %H:%M:%S'")
        if self.dates is not None and ("%" not in self.dates or ("%d" in self.dates and "%y" not in self.dates.lower())):
            raise ValueError(f"dates is {self.dates!r}; give how dates are written, with their year: '%d.%m.%Y %H:%M:%S'")
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(words(self.columns, "columns")))
        object.__setattr__(self, "missing", tuple(words(self.missing, "missing")))


class Text(NamedTuple):
    """Columns of a text file by the names that were asked for, their units where the file has them, and their first line."""

    columns: Columns
    units: dict[str, str]
    line: int


def csv_columns(path: PathLike, names: Sequence[str], time: str | None, form: TextFormat) -> Text:
    """Named columns of a text file; ISO dates in `time` become seconds from the first.

    Units stand in the header behind the name (``z [mm]``, which may be asked for as ``z``), or in a line below it.
    """
    path = place(path, "path")
    if not isinstance(form, TextFormat):
        raise TypeError(f"format is {shown(form)}; give a TextFormat, such as TextFormat(decimal=',')")
    if form.dates is not None and time is None:
        raise ValueError(f"dates is {form.dates!r}, and no column holds the times: give time=..., or leave dates out")
    columns, decimal, skip, unit_lines, encoding = form.columns, form.decimal, form.skip, form.unit_lines, form.encoding
    try:
        lines = Path(path).read_text(encoding=encoding).rstrip().splitlines()
    except LookupError as error:
        raise ValueError(f"encoding is {encoding!r}, which Python does not know; give one such as 'latin-1'") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f'{path} is not text in {encoding}; pass TextFormat(encoding="latin-1"), "utf-16" or what wrote it'
        ) from error
    if len(lines) <= skip:
        raise ValueError(
            f"{path} has {len(lines)} lines, of which skip={skip} leaves none; pass a smaller skip in TextFormat(skip=...)"
        )
    delimiter, header = _header(path, lines, skip, names, columns, form.delimiter, decimal)
    if not names:
        raise ValueError(_nothing_wanted(path, (repr(cell) for cell in header if cell)))
    first = skip + unit_lines + (columns is None)
    rows = _rows(lines[first:], delimiter)
    if not rows:
        raise ValueError(f"{path} has no rows below its header in line {first}")
    for line in range(first - unit_lines, first):
        written = dict(enumerate(_cells(lines[line], delimiter)))
        if all(_is_number(written.get(_places(header, name)[0], ""), decimal) for name in names):
            raise ValueError(f"line {line + 1} of {path} holds numbers, no units, and unit_lines={unit_lines} would drop it")
    for line, row in enumerate(rows, start=first + 1):
        if len(row) != len(header):
            _check_row(path, line, row, header, decimal)
    tokens = _MISSING | {token.strip().lower() for token in form.missing}
    result = {}
    for name in names:
        at = _places(header, name)[0]
        cells, start = [row[at] for row in rows], first + 1
        dates = _seconds(path, name, cells, start, form.dates) if name == time else None
        # A time of zero is one, also where zero marks a value that is missing.
        own = frozenset(t for t in tokens if not _is_number(t, decimal)) if name == time else tokens
        result[name] = _numbers(path, name, cells, start, decimal, own, unit_lines) if dates is None else dates
    found = {name: split_header(header[_places(header, name)[0]])[1] for name in names}
    if unit_lines:
        texts = _cells(lines[first - unit_lines], delimiter)
        below = {name: texts[_places(header, name)[0]].strip("[]()") for name in names if len(texts) == len(header)}
        found = {name: found[name] or below.get(name, "") for name in names}
    return Text(result, {name: unit for name, unit in found.items() if unit and unit != "-"}, first + 1)


def _places(header: Sequence[str], name: str) -> list[int]:
    """Columns of a name: those called so or, where there are none, those called so without their unit."""
    exact = [i for i, cell in enumerate(header) if cell == name]
    return exact or [i for i, cell in enumerate(header) if split_header(cell)[0] == name]


def _has(header: Sequence[str], names: Sequence[str]) -> bool:
    return all(_places(header, name) for name in names)


def _rows(lines: list[str], delimiter: str) -> list[list[str]]:
    if delimiter == " ":
        return [line.split() for line in lines]
    return list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=False))


def _cells(line: str, delimiter: str) -> list[str]:
    return [cell.strip() for row in _rows([line], delimiter) for cell in row]


def _header(
    path: PathLike,
    lines: list[str],
    skip: int,
    names: Sequence[str],
    columns: Sequence[str] | None,
    delimiter: str,
    decimal: str,
) -> tuple[str, list[str]]:
    """Delimiter and names of all columns; an automatic delimiter is the one that the header is cut by into the names."""
    candidates = [d for d in _DELIMITERS if not (d == decimal)] if delimiter == "auto" else [delimiter]
    if columns is not None:
        header = list(columns)
        found = [d for d in candidates if len(_trimmed(_cells(lines[skip], d), len(header))) == len(header)]
        if not found:
            counts = ", ".join(f"{len(_cells(lines[skip], d))} by {_DELIMITERS.get(d, d)}" for d in candidates)
            raise ValueError(f"columns names {len(header)} columns, but line {skip + 1} of {path} has {counts}; name each")
        chosen = found[0]
    else:
        chosen = next((d for d in candidates if names and _has(_cells(lines[skip], d), names)), "")
        if not chosen:
            # Cells of the same number in the header and below it are no accident.
            below = lines[min(skip + 1, len(lines) - 1)]
            width = {d: len(_cells(lines[skip], d)) for d in candidates}
            regular = [d for d in candidates if width[d] > 1 and width[d] == len(_cells(below, d))]
            chosen = max(regular or candidates, key=lambda d: width[d])
        header = _cells(lines[skip], chosen)
        _check_found(path, lines, skip, names, candidates, header)
    for name in names:
        if not _places(header, name):
            raise ValueError(f"there is no column {name!r}; columns names {', '.join(header)}")
        if (count := len(_places(header, name))) > 1:
            raise ValueError(f"{path} has {count} columns called {name!r}; pass TextFormat(columns=[...]) with other names")
    return chosen, header


def _check_found(
    path: PathLike, lines: list[str], skip: int, names: Sequence[str], candidates: list[str], header: list[str]
) -> None:
    """Say which column is missing, and in which line it is found if in any."""
    if not (lacking := [name for name in names if not _places(header, name)]):
        return
    for where, line in enumerate(lines[:_SEARCHED]):
        for d in candidates:
            if where != skip and _has(_cells(line, d), names):
                raise ValueError(f"the header of {path} is in line {where + 1}; pass TextFormat(skip={where})")
    near = get_close_matches(lacking[0], [h for h in header if h], 1) or [h for h in header if lacking[0].lower() in h.lower()]
    raise ValueError(
        f"there is no column {lacking[0]!r} in line {skip + 1} of {path}{f' (is it {near[0]!r}?)' if near else ''}; there are "
        f"{', '.join(repr(h) for h in header if h)}; pass TextFormat(...) with delimiter=... if these are cut in the wrong "
        "places, skip=... if the header is further down, columns=[...] if there is none"
    )


def _trimmed(row: list[str], width: int) -> list[str]:
    """Leave out empty cells behind the last column: some loggers end their lines with a delimiter."""
    while len(row) > width and not row[-1].strip():
        row = row[:-1]
    return row


def _check_row(path: PathLike, number: int, row: list[str], header: list[str], decimal: str) -> None:
    if len(_trimmed(row, len(header))) == len(header):
        return
    if not any(map(str.strip, row)):
        raise ValueError(f"line {number} of {path} is empty; delete it, or write what was missed there as empty cells")
    remedy = "complete or delete it"
    if len(row) > len(header):
        remedy = f'check the delimiter, and pass TextFormat(decimal=",") for decimal commas (decimal is {decimal!r})'
    raise ValueError(f"line {number} of {path} has {len(row)} cells, but there are {len(header)} columns; {remedy}")


def _numbers(
    path: PathLike, name: str, cells: list[str], start: int, decimal: str, tokens: frozenset[str], unit_lines: int
) -> FloatArray:
    # A mark is a number in most files, such as -9999, and may be written as -9999.0 in the next.
    marks = [_number(token, decimal) for token in tokens if _is_number(token, decimal)]
    try:
        values = np.array([_number(cell, decimal) for cell in cells])
    except ValueError:  # one by one, to tell what is missing from what is wrong
        values = np.empty(len(cells))
    else:
        return np.where(np.isin(values, marks), np.nan, values)
    for i, cell in enumerate(map(str.strip, cells)):
        try:
            values[i] = np.nan if cell.lower() in tokens else _number(cell, decimal)
        except ValueError:
            unit_line = unit_lines + 1 if i == 0 else None
            raise ValueError(
                f"line {start + i} of {path} has {cell!r} in column {name!r}, which is no number; "
                f"{_remedy(name, cell, decimal, unit_line)}"
            ) from None
    return np.where(np.isin(values, marks), np.nan, values)


def _remedy(name: str, cell: str, decimal: str, unit_lines: int | None) -> str:
    """What to do about a cell that is no number; with `unit_lines` it may be one of so many lines of units.

    Examples
    --------
    >>> _remedy("F", "12 %", ".", None)
    "write it without the sign, with scale={'F': 0.01} if it is a share of one"
    """
    other = "." if decimal == "," else ","
    by_other = f'pass TextFormat(decimal="{other}") for decimal {"commas" if other == "," else "points"}'
    thousands = "numbers without a sign between thousands"
    if _DATE.match(cell):
        return "give TextFormat(dates='%d.%m.%Y %H:%M'), or as dates are written there, if it is the column of the times"
    if _CLOCK.fullmatch(cell):
        return "write clock times as seconds from the first, or with their dates, such as 2024-01-31T13:05:00"
    if cell.endswith("%") and any(_is_number(cell[:-1].strip(), sign) for sign in ".,"):
        return f"write it without the sign, with scale={{{name!r}: 0.01}} if it is a share of one"
    if other in cell and _is_number(cell, other):
        return f"{by_other}, or write {thousands}" if _THOUSANDS.fullmatch(cell) else by_other
    if _THOUSANDS.fullmatch(cell):
        return f"write {thousands}"
    if unit_lines is not None and (cell.startswith("1/") or not cell[:1].isdigit()):
        return f"pass TextFormat(unit_lines={unit_lines}) if the line holds units"
    return "correct it, or list it in TextFormat(missing=[...]) if it marks a missing value"


def _is_number(cell: str, decimal: str) -> bool:
    try:
        _number(cell, decimal)
    except ValueError:
        return False
    return True


def _number(cell: str, decimal: str) -> float:
    if "_" in cell:  # Python's way to write 1_000
        raise ValueError
    if decimal == ",":
        if "." in cell:  # 1.234 would be a thousand and some
            raise ValueError
        cell = cell.replace(",", ".")
    return float(cell)


def _seconds(path: PathLike, name: str, cells: list[str], start: int, form: str | None) -> FloatArray | None:
    """Seconds from the first of dates in a form, by default that of ISO 8601; None if the first cell is no ISO date."""
    if form is None and (not _is_date(cells[0]) or _is_number(cells[0].replace(",", "."), ".")):
        return None  # 20240131 may be either, and is a number
    seconds = np.empty(len(cells))
    try:
        first = _date(cells[0], form)
    except (ValueError, re.error) as error:
        raise ValueError(
            f"line {start} of {path} has {cells[0]!r} in column {name!r}, which is not written as TextFormat(dates={form!r}) "
            "says"
        ) from error
    for i, cell in enumerate(map(str.strip, cells)):
        try:
            seconds[i] = (_date(cell, form) - first).total_seconds()
        except (ValueError, TypeError):
            what = "has a time zone, or none, unlike" if form is None and _is_date(cell) else "is no date such as"
            raise ValueError(
                f"line {start + i} of {path} has {cell!r} in column {name!r}, which {what} {cells[0].strip()!r} in line "
                f"{start}; correct it, or leave the row out"
            ) from None
    return seconds


def _date(cell: str, form: str | None) -> datetime:
    return datetime.fromisoformat(cell.strip()) if form is None else datetime.strptime(cell.strip(), form)


def _is_date(cell: str) -> bool:
    try:
        _date(cell, None)
    except ValueError:
        return False
    return True


# -- MATLAB -----------------------------------------------------------------------------------------------------------


def mat_columns(path: PathLike, names: Sequence[str]) -> Columns:
    """Named variables of a MATLAB file, ``a.b`` being the field b of the structure a, with samples along the first axis."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    path = place(path, "path")
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}")
    try:
        content = loadmat(path, simplify_cells=True)
    except NotImplementedError as error:
        raise ValueError(
            f"{path} is a MATLAB file of version 7.3 (HDF5), which SciPy does not read; save it in MATLAB with "
            'save(file, "-v7"), or read it with h5py and pass the arrays to TimeSeries'
        ) from error
    except (ValueError, TypeError, MatReadError) as error:
        raise ValueError(f"{path} is no MATLAB file of version 4 to 7: {error}") from error
    there = _flat({k: v for k, v in content.items() if not k.startswith("__")})
    shapes = [f"{k} {np.shape(v)}" for k, v in there.items()]
    if not names:
        raise ValueError(_nothing_wanted(path, shapes))
    columns = {}
    for name in names:
        if name not in there:
            raise ValueError(f"there is no variable {name!r} in {path}; there are {', '.join(shapes) or 'none'}")
        columns[name] = _upright(path, name, np.asarray(there[name]))
    return columns


def _nothing_wanted(path: PathLike, there: Iterable[str]) -> str:
    return (
        f"say which channels of {path} are inputs and which are outputs, and where the times are, such as inputs='F', outputs="
        f"['z', 'v'], time='t' (or fs=..., the sampling rate in Hz); there are {', '.join(there) or 'none'}"
    )


def _flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {before + key: value}
    return flat


def _upright(path: PathLike, name: str, value: np.ndarray) -> FloatArray:
    if value.dtype.kind not in "biuf" or value.ndim > 2:
        raise ValueError(
            f"the variable {name!r} of {path} has dtype {value.dtype} and shape {value.shape}; it must hold real numbers in at "
            "most two dimensions: take it apart in MATLAB, or read it with scipy.io.loadmat and pass arrays to TimeSeries"
        )
    if value.ndim == 2 and value.shape[0] < value.shape[1]:
        value = value.T
    return np.atleast_1d(value.astype(float))


def by_channel(text: Text, scale: Any) -> tuple[Text, dict[str, str], Any]:
    """Columns that were asked for with their unit, ``z [mm]``, under the names of their channels, ``z``.

    Also returned are these names by what was asked for, and the factors, which may be given by either.
    """
    short = without_units(text.columns)
    columns = {short[name]: values for name, values in text.columns.items()}
    units = {short[name]: unit for name, unit in text.units.items()}
    if isinstance(scale, Mapping):
        known = {**{name: split_header(str(name))[0] for name in scale if split_header(str(name))[0] in columns}, **short}
        scale = {name if name in columns else known.get(name, name): factor for name, factor in scale.items()}
    return Text(columns, units, text.line), short, scale


def called(names: Names, short: Mapping[str, str]) -> Names:
    """Names of channels as `short` has them."""
    if names is None or isinstance(names, str):
        return names if names is None else short[names]
    return [short[name] for name in names]


# -- records ----------------------------------------------------------------------------------------------------------


def wanted(inputs: Names, outputs: Names, time: str | None, fs: Any) -> list[str]:
    """Columns to look for, each once; none where no channel is asked for, which the reader answers by a list of them."""
    if inputs is None and outputs is None:
        return []
    if (time is None) == (fs is None):
        given = "neither is given" if fs is None else f"both are given ({time!r}, {fs!r})"
        raise ValueError(f"pass either time, the column of the times in seconds, or fs, the sampling rate in Hz; {given}")
    names = [*_listed(inputs, "inputs"), *_listed(outputs, "outputs"), *([time] if time is not None else [])]
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"inputs, outputs and time must be names of columns, but {name!r} is {type(name).__name__}")
    return list(dict.fromkeys(names))


def record_arguments(
    columns: Columns,
    inputs: Names,
    outputs: Names,
    time: str | None,
    fs: Any,
    scale: Mapping[str, float] | None,
    *,
    dotted: bool = False,
    units: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Turn scaled columns into the arguments of a record.

    A column of n channels becomes ``name1, ..., name{n}``; of `dotted` names channels keep what is behind the last dot. Units
    of columns are scaled with them; one that a factor makes unknown is left out.
    """
    if not isinstance(scale, Mapping | None):
        raise TypeError(f"scale is {shown(scale)}; give a dict of factors by column")
    factors = dict(scale or {})
    for name, factor in factors.items():
        if name not in columns:
            raise ValueError(f"scale names {name!r}, which is not read; it may name {', '.join(columns)}")
        if isinstance(factor, bool) or not number(factor, f"scale[{name!r}]", "give a finite factor other than 0"):
            raise ValueError(f"scale[{name!r}] must be a finite factor other than 0, but is {factor!r}")
    columns = {name: values * factors.get(name, 1.0) for name, values in columns.items()}
    u, input_names = _channels(columns, inputs, dotted)
    y, output_names = _channels(columns, outputs, dotted)
    values = u if y is None else y
    if values is None:
        raise ValueError("inputs and outputs are both empty; name at least one column")
    if time is not None and time not in factors:
        _check_seconds(time, (units or {}).get(time, ""))
    t = columns[time] if time is not None else np.arange(len(values)) / _rate(fs)
    channels = {*_listed(input_names), *_listed(output_names)}
    found = {name: scaled(unit, factors.get(name, 1.0)) for name, unit in (units or {}).items() if name in channels}
    return {"t": t, "u": u, "y": y, "inputs": input_names, "outputs": output_names, "units": found}


def _check_seconds(time: str, unit: str) -> None:
    """Refuse times in another unit, which the file gives with the column or its name ends in (``t_ms``, ``t / ms``)."""
    if seconds := SECONDS.get(unit):
        raise ValueError(
            f"the times in the column {time!r} are in {unit}, and times of a record are in seconds; "
            f"pass scale={{{time!r}: {seconds:g}}}"
        )
    *before, ending = re.split(r"[_/\s]+", time.strip())
    if not unit and before and (seconds := SECONDS.get(ending)):
        raise ValueError(
            f"the name of the column {time!r} ends in {ending}, and times of a record are in seconds; pass scale={{{time!r}: "
            f"{seconds:g}}}, or scale={{{time!r}: 1.0}} if they are"
        )


def _rate(fs: Any) -> float:
    try:
        rate = 0.0 if isinstance(fs, bool) else number(fs, "fs")
    except (TypeError, ValueError):
        rate = 0.0
    if not rate > 1e-100:
        raise ValueError(f"fs must be a positive sampling rate in Hz, but is {shown(fs)}")
    return rate


def _listed(names: Names, argument: str = "inputs or outputs") -> list[str]:
    if names is None or isinstance(names, str):
        return [] if names is None else [names]
    try:
        return list(names)
    except TypeError:
        raise TypeError(f"{argument} is {shown(names)}; give names of columns, or None") from None


def _channels(columns: Columns, names: Names, dotted: bool) -> tuple[FloatArray | None, Names]:
    if names is None or len(names) == 0:
        return None, None
    labels, arrays = [], []
    for name in _listed(names):
        values, field = columns[name], name.rpartition(".")[2] if dotted else name
        labels += [field] if values.ndim == 1 else [f"{field}{i + 1}" for i in range(values.shape[1])]
        arrays.append(values)
    if isinstance(names, str):
        return arrays[0], labels
    if len({len(values) for values in arrays}) > 1:
        sizes = ", ".join(f"{name} {len(columns[name])}" for name in names)
        raise ValueError(f"channels must have one number of samples, but have {sizes}; they belong to different records")
    return np.column_stack(arrays), labels
