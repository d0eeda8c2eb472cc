"""Parameters, noise and initial states with a value for each record: several specimens in one filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pm_sysid.arguments import number
from pm_sysid.compat import MissingInputError, Mode
from pm_sysid.solve.checks import check_params, noise_entries, vector
from pm_sysid.symbolic.names import Names, Shape, entry
from pm_sysid.symbolic.system import System


def params_by_record(system: System, params: Mapping[str, Any], n_records: int) -> Any:
    """Parameters of a system as an expression: (P,) where all records share them, (R, P) where one has a value for each.

    Raises
    ------
    TypeError, ValueError
        As :func:`check_params`; for values with another number of records.
    """
    if not isinstance(params, Mapping):
        return vector(check_params(system, params))
    own = _by_record("params", system.params, params, n_records)
    base = check_params(system, {k: own[k][0] if k in own else v for k, v in params.items()})
    return _rows(system.params, base, _columns(system.params, own), n_records) if own and n_records > 1 else vector(base)


def noise_by_record(system: System, noise: Any, n_records: int) -> Any:
    """Standard deviations of the noise as an expression: (n_y,), or (R, n_y) where one has a value for each record.

    A variable or array of the shape (R, n_y) has a row for each record, and so has one of the shape (R,) for a single output.
    """
    outputs, what = system.outputs, "noise"
    if isinstance(noise, Mapping):
        own = _by_record(what, outputs, noise, n_records)
        base = noise_entries(system, {k: own[k][0] if k in own else v for k, v in noise.items()})
        columns = _columns(outputs, own)
    else:
        ndim = _ndim(noise)
        rows = None
        if n_records > 1 and (ndim == 2 or (ndim == 1 and len(outputs) == 1 and _length(_as_array(noise)) != 1)):
            rows = _as_array(noise)
            _check_length(what, rows, n_records)
        if rows is None:
            return vector(noise_entries(system, noise))
        table = rows[:, None] if ndim == 1 else rows
        width = table.type.shape[1] if isinstance(table, Variable) else table.shape[1]  # type: ignore[attr-defined]
        if width not in (None, len(outputs)):
            raise ValueError(f"noise has {width} columns; give one for each output: {outputs}.")
        columns = {name: table[:, i] for i, name in enumerate(outputs)}
        base = noise_entries(system, [c[0] for c in columns.values()])
    for name, column in columns.items():
        for value in [] if isinstance(column, Variable) else column:
            if not value > 0:
                raise ValueError(
                    f"noise of {name!r} is {value!r} for a record; a standard deviation must be positive and finite."
                )
    return _rows(outputs, base, columns, n_records) if columns and n_records > 1 else vector(base)


def start_by_record(states: Names, what: str, value: Any, n_records: int) -> list[Any] | None:
    """One mapping for each record from a mapping whose arrays have a row for each; None for anything else."""
    if not isinstance(value, Mapping) or n_records == 1:
        return None
    own = _by_record(what, states, value, n_records)
    return [{k: own[k][r] if k in own else v for k, v in value.items()} for r in range(n_records)] if own else None


def repeated(values: Any, n_records: int) -> Any:
    """A row (n,) for each record, if there is but one."""
    return (
        values
        if values.ndim == 2
        else pt.specify_shape(pt.broadcast_to(values, (n_records, values.shape[0])), (n_records, None))
    )


def with_entries(values: Any, entries: Any) -> Any:
    """Entries (n,) that all records share after parameters (P,), or after those of each record (R, P)."""
    if values.ndim == 1:
        return pt.concatenate([values, entries])
    return pt.concatenate([values, pt.broadcast_to(entries, (values.shape[0], entries.shape[0]))], axis=1)


def _by_record(what: str, names: Names, values: Mapping[str, Any], n_records: int) -> dict[str, Any]:
    """Those of the values that have one dimension more than the quantity has, by name: variables and arrays."""
    own = {}
    for name, value in values.items():
        shape = names.shapes.get(name, ()) if isinstance(name, str) else ()
        if _ndim(value) != len(shape) + 1:
            continue
        array, label = _as_array(value), f"{what}[{name!r}]"
        if n_records == 1 and _length(array) != 1:
            continue  # refused, with the remedy for a single record
        _check_length(label, array, n_records)
        if not isinstance(array, Variable):
            for v in array.ravel():
                number(v, label, "give finite numbers or a PyMC variable")
        own[name] = array
    return own


def _ndim(value: Any) -> int:
    if isinstance(value, Variable):
        return int(value.type.ndim)  # type: ignore[attr-defined]
    if isinstance(value, str | bytes | Mapping) or value is None:
        return 0
    if isinstance(value, list | tuple) and any(isinstance(v, Variable) for v in value):
        return 1 + _ndim(value[0])
    try:
        return int(np.ndim(value))
    except ValueError:
        return 0


def _as_array(value: Any) -> Any:
    """Variable, or array of numbers."""
    if isinstance(value, Variable):
        return value
    if isinstance(value, list | tuple) and any(isinstance(v, Variable) for v in value):
        return pt.stack([pt.as_tensor_variable(v) for v in value])
    return np.asarray(value)


def _length(value: Any) -> int | None:
    """How many rows; a variable's dims may say so only when they are evaluated, and its length may be an input's."""
    if not isinstance(value, Variable):
        return len(value)
    known = value.type.shape[0]  # type: ignore[attr-defined]
    if known is None:
        try:
            known = value.shape[0].eval(mode=Mode(linker="py", optimizer="fast_compile"))  # type: ignore[attr-defined]
        except MissingInputError:
            return None
    return int(known)


def _check_length(what: str, value: Any, n_records: int) -> None:
    found = _length(value)
    if found not in (None, n_records):
        raise ValueError(
            f"{what} has {found} rows for {n_records} record{'s' * (n_records > 1)}; give one value for all records, or a row "
            "for each of them, in their order."
        )


def _columns(names: Names, own: Mapping[str, Any]) -> dict[str, Any]:
    """Values (R,) by label of an entry."""
    columns = {}
    for name, value in own.items():
        shape: Shape = names.shapes.get(name, ())
        for i in np.ndindex(shape):
            columns[entry(name, i)] = value[(slice(None), *i)]
    return columns


def _rows(names: Sequence[str], base: Sequence[Any], columns: Mapping[str, Any], n_records: int) -> Any:
    """Matrix with a row for each record, in which what has no column of its own is the same in all rows."""
    if not any(isinstance(v, Variable) for v in (*base, *columns.values())):
        parts = [np.broadcast_to(columns.get(n, v), (n_records,)) for n, v in zip(names, base, strict=True)]
        return pt.as_tensor_variable(np.stack(parts, axis=1).astype(float))
    filled = []
    for name, value in zip(names, base, strict=True):
        column = pt.cast(pt.as_tensor_variable(columns.get(name, value)), "float64")
        filled.append(column if name in columns else pt.full((n_records,), column))
    return pt.specify_shape(pt.stack(filled, axis=1), (n_records, len(names)))
