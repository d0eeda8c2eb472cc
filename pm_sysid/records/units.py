"""Units of channels: out of headers, through factors, onto labels."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pm_sysid.arguments import shown

#: Powers of ten of the prefixes that measuring systems write.
PREFIXES = {"p": -12, "n": -9, "u": -6, "µ": -6, "μ": -6, "m": -3, "c": -2, "d": -1, "": 0, "h": 2, "k": 3, "M": 6, "G": 9}
#: Units that may follow a prefix.
BASES = ("m", "m/s", "m/s^2", "m/s²", "m/s2", "N", "Nm", "N m", "V", "A", "Pa", "bar", "Hz", "s", "rad", "W", "K", "ohm")
#: Seconds in other units of time.
SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "min": 60.0,
    "h": 3600.0,
    "hours": 3600.0,
    "days": 86400.0,
}
#: What has the dim of the outputs and no unit.
PURE = ("standardised", "censored")
#: ``q[3]`` is an entry of a vector and ``x(t)`` a function: neither is a name with a unit.
_HEADER = re.compile(r"^(?P<name>.*\S)(?:\s*\[(?P<square>[^\[\]\d][^\[\]]*)\]|\s+\((?P<round>[^()\d][^()]*)\))$")


def split_header(cell: str) -> tuple[str, str]:
    """Name and unit of a header: a unit stands in brackets behind the name.

    Examples
    --------
    >>> (
    ...     split_header("Force [kN]"),
    ...     split_header("z (mm)"),
    ...     split_header("y2"),
    ...     split_header("[V]"),
    ... )
    (('Force', 'kN'), ('z', 'mm'), ('y2', ''), ('[V]', ''))
    """
    found = _HEADER.match(cell.strip())
    if not found:
        return cell.strip(), ""
    return found["name"].strip(), (found["square"] or found["round"]).strip()


def without_units(names: Iterable[str]) -> dict[str, str]:
    """Names of channels by what a user called them: without a unit, unless two would then be the same.

    Examples
    --------
    >>> without_units(["F [N]", "z"]), without_units(["z [mm]", "z [V]"])
    ({'F [N]': 'F', 'z': 'z'}, {'z [mm]': 'z [mm]', 'z [V]': 'z [V]'})
    """
    plain = {name: split_header(name)[0] for name in names}
    counts = Counter(plain.values())
    return {name: short if counts[short] == 1 else name for name, short in plain.items()}


def scaled(unit: str, factor: float) -> str:
    """Unit of values that were multiplied by a factor; empty where the factor is no change of a known prefix.

    Examples
    --------
    >>> scaled("mm", 1e-3), scaled("kN", 1e3), scaled("V", 1.0), scaled("V", 2.5)
    ('m', 'N', 'V', '')
    """
    if factor == 1:
        return unit
    for base in BASES:
        prefix = unit.removesuffix(base)
        if unit.endswith(base) and prefix in PREFIXES:
            for other, power in PREFIXES.items():
                if math.isclose(factor, 10.0 ** (PREFIXES[prefix] - power), rel_tol=1e-9):
                    return other + base
    return ""


#: What is written for something else in units, once characters of the same look are one.
SPELLINGS = {"μ": "u", "Ω": "ohm", "Ohm": "ohm", "°": "deg", "·": "", "⋅": "", "*": "", "^": "", " ": ""}


def same_unit(one: str, other: str) -> bool:
    """Whether two units are written for the same, as far as spelling goes; one that is not known is that of the other.

    Examples
    --------
    >>> same_unit("m/s^2", "m/s²"), same_unit("N m", "Nm"), same_unit("m", ""), same_unit("m", "mm")
    (True, True, True, False)
    """
    return not one or not other or _spelled(one) == _spelled(other)


def _spelled(unit: str) -> str:
    unit = unicodedata.normalize("NFKC", unit)
    for mark, plain in SPELLINGS.items():
        unit = unit.replace(mark, plain)
    return unit


def checked_units(units: Any, names: Iterable[str]) -> Mapping[str, str]:
    """Units by channel, read-only; those that are empty are left out.

    Raises
    ------
    TypeError, ValueError
        If it is no mapping of channels that there are to texts.
    """
    if not isinstance(units, Mapping | None):
        raise TypeError(f"units is {shown(units)}; give a dict of units by channel, such as {{'F': 'N'}}")
    there = tuple(names)
    for name, unit in (units or {}).items():
        if name not in there:
            raise ValueError(f"units names {name!r}; the record has {', '.join(there) or 'no channels'}")
        if not isinstance(unit, str):
            raise TypeError(f"units[{name!r}] is {shown(unit)}; give a text, such as 'N'")
    return MappingProxyType({name: unit.strip() for name, unit in (units or {}).items() if unit.strip()})


def with_unit(name: str, unit: str | None) -> str:
    """Label of an axis or a column.

    Examples
    --------
    >>> with_unit("F", "N"), with_unit("F", None)
    ('F (N)', 'F')
    """
    return f"{name} ({unit})" if unit else name


def label_units[Labelled](data: Labelled, outputs: Sequence[str], units: Mapping[str, str]) -> Labelled:
    """Write the units of outputs, and of the time, into a dataset's attributes.

    Parameters
    ----------
    data : xarray.Dataset
        With a variable for each output, or variables with the dim ``output``, which then gets a coordinate ``units`` ("" where
        a unit is unknown); where all outputs have the same unit, such variables have it as well.
    outputs : sequence of str
        Outputs of the system.
    units : mapping of str to str
        Those known, by output.

    Returns
    -------
    xarray.Dataset
        The same one.
    """
    found: Any = data
    known = [units.get(name, "") for name in outputs]
    if "time" in found.coords:
        found["time"].attrs["units"] = "s"
    if not any(known):
        return data
    for name, unit in zip(outputs, known, strict=True):
        if unit and name in found:
            found[name].attrs["units"] = unit
    if "output" in found.dims:
        found = found.assign_coords(units=("output", known))
        for name, variable in found.data_vars.items():
            if "output" in variable.dims and len(set(known)) == 1 and name not in PURE:
                variable.attrs["units"] = known[0]
    return found  # type: ignore[no-any-return]
