"""What a user gives beside a system, checked against it: records, parameters, noise; the first step of every solution."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pm_sysid.arguments import among, number, shown
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.records.units import same_unit
from pm_sysid.symbolic.names import Names
from pm_sysid.symbolic.system import System

#: Outputs whose standard deviations differ by more than this factor get a word about sharing one noise.
UNEQUAL = 20.0
#: Where the package is: warnings are for the line of the user's that led into it.
PACKAGE = str(Path(__file__).parents[1])
#: What records are called that a model or a fit was made for, for :func:`check_channels`.
OF_FIT = "record {} of the fit"


def check_name(name: Any) -> None:
    """Refuse what cannot be the name of a random variable."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"name is {shown(name)}; give the name of the random variable, such as 'y'.")


def check_system(system: Any) -> None:
    """Refuse what is no system."""
    if not isinstance(system, System):
        raise TypeError(f"system is {type(system).__name__}; give a pm_sysid.System.")


def check_records(system: System, data: TimeSeries | Sequence[TimeSeries], *, need_y: bool = True) -> list[TimeSeries]:
    """Records as a list, checked against a system."""
    records = [data] if isinstance(data, TimeSeries) else list(data) if isinstance(data, list | tuple) else None
    if records is None or not records or not all(isinstance(r, TimeSeries) for r in records):
        raise TypeError(f"data is {type(data).__name__}; give a TimeSeries, or a list of TimeSeries.")
    for i, record in enumerate(records):
        which = f"data[{i}]" if len(records) > 1 else "data"
        n_u = record.input_matrix.shape[1]
        if known := [one.name for one in system.latents if one.role == "input" and one.name in record.inputs]:
            raise ValueError(
                f"{which} has the channel {known[0]!r}, which latent says was not recorded; drop the channel, or leave it "
                "out of latent."
            )
        if n_u != len(system.inputs):
            raise ValueError(
                f"{which} has {n_u} input channels {record.inputs}, but the system has the inputs {system.inputs}; "
                "give one channel for each input, in the same order (ODEFilter takes a process for one that was not recorded: "
                "latent=...)."
            )
        _check_order(which, "inputs", record.inputs, system.inputs)
        if need_y:
            if record.y is None:
                raise ValueError(f"{which} has no outputs; give the measured y, with NaN where a sample is missing.")
            if record.output_matrix.shape[1] != len(system.outputs):
                raise ValueError(
                    f"{which} has {record.output_matrix.shape[1]} output channels {record.outputs}, but the system "
                    f"observes {system.outputs}; give one channel for each output, in the same order."
                )
        if record.output_matrix.shape[1] == len(system.outputs):
            _check_order(which, "outputs", record.outputs, system.outputs)
        check_channels(which, record, "data[{}]", records[:i])
    return records


def check_channels(which: str, record: TimeSeries, other: str, others: Sequence[TimeSeries]) -> None:
    """Refuse a record whose channels are those of ``others`` in another order, or in other units where both are known.

    Channels are matched by order, and nothing is converted.

    ``other`` is what the others are called, with ``{}`` in place of the number of one of them.

    Raises
    ------
    ValueError
        If the units of a channel contradict each other, or the same names stand in another order.
    """
    for k, before in enumerate(others):
        for what, field, names, known in (
            ("input", "u", record.inputs, before.inputs),
            ("output", "y", record.outputs, before.outputs),
        ):
            _check_order(which, f"{what}s", names, known, other.format(k))
            for name, own in zip(names, known, strict=False) if len(names) == len(known) else ():
                unit, expected = record.units.get(name, ""), before.units.get(own, "")
                if not same_unit(unit, expected):
                    raise ValueError(
                        f"{which} has the {what} {name!r} in {unit!r}, and {other.format(k)} has it in {expected!r}: nothing "
                        f"is converted. Convert the record, record.replace({field}=..., units=...), or correct the unit, "
                        "record.replace(units=...)."
                    )


def warn_of_other_inputs(which: str, record: TimeSeries, others: Sequence[TimeSeries], names: Sequence[str]) -> None:
    """Warn if the inputs of a record have other names than those of the fit, or move otherwise between the samples.

    ``which`` is what the record is called, and ``names`` are those of the system, which a record may have, too; nothing is
    known of inputs without a name.
    """
    fit = others[0]
    if not fit.inputs or len(record.inputs) != len(fit.inputs):
        return
    if all(record.intersample != own.intersample for own in others):
        warnings.warn(
            f"{which} has inputs that are {record.intersample!r} between the samples, and {OF_FIT.format(0)} has "
            f"{fit.intersample!r}: give TimeSeries(..., intersample={fit.intersample!r}) if they are made alike.",
            skip_file_prefixes=(PACKAGE,),
        )
    if not any(all(map(_alike, record.inputs, known)) for known in (names, *(own.inputs for own in others))):
        warnings.warn(
            f"{which} has the inputs {record.inputs}, and {OF_FIT.format(0)} has {fit.inputs}: channels are matched by "
            "order. Name them alike if they are the same.",
            skip_file_prefixes=(PACKAGE,),
        )


def _alike(name: str, other: str) -> bool:
    """Whether two channels have one name, or one of them has none."""
    return name == other or any(re.fullmatch("u[0-9]*", one) for one in (name, other))


def _check_order(which: str, what: str, names: Sequence[str], expected: Sequence[str], other: str = "the system") -> None:
    """Refuse channels of which one has the name of another one's place; other names are taken as they come."""
    same_names = set(names) == set(expected)
    # Of names that a record gives by itself, u0 and u1, one may be that of another place by chance.
    given = [n for n in names if same_names or not re.fullmatch("[uy][0-9]*", n)]
    misplaced = [n for n, own in zip(names, expected, strict=False) if n != own and n in expected and n in given]
    if misplaced:
        same = "the same in another order" if same_names else f"{misplaced[0]!r} stands at another place"
        raise ValueError(
            f"{which} has the {what} {tuple(names)} and {other} {tuple(expected)}: {same}. Channels are matched by order; "
            "reorder those of the record, or name them otherwise."
        )


def check_params(system: System, params: Mapping[str, Any]) -> list[Any]:
    """Values of a system's parameters in order; scalars or scalar tensors."""
    if not isinstance(params, Mapping):
        raise TypeError(f"params is {type(params).__name__}; give a dict of values by name: {system.params}.")
    params = system.params.spread("params", params)
    missing = [p for p in system.params if p not in params]
    unknown = [p for p in params if not among(p, system.params)]
    if missing or unknown:
        parts = [f"lacks {missing}"] * bool(missing) + [f"has the unknown names {unknown}"] * bool(unknown)
        raise ValueError(f"params {' and '.join(parts)}; the system's parameters are {system.params}.")
    values = []
    for name in system.params:
        value = params[name]
        if isinstance(value, Variable):
            if value.type.ndim:  # type: ignore[attr-defined]
                raise ValueError(
                    f"params[{name!r}] has {value.type.ndim} dimensions; give a scalar variable, "  # type: ignore[attr-defined]
                    "or one entry of the vector for each parameter."
                )
        else:
            value = number(value, f"params[{name!r}]", "give a finite number or a scalar PyMC variable")
        values.append(value)
    return values


def vector_entries(what: str, value: Any, names: Sequence[str]) -> list[Any]:
    """One scalar variable for each name, from a scalar variable (shared by all) or a vector."""
    if value.type.ndim == 0:
        return [value] * len(names)
    if value.type.ndim > 1:
        raise ValueError(f"{what} has {value.type.ndim} dimensions; give a scalar variable or a vector for {names}.")
    if value.type.shape[0] not in (None, len(names)):
        raise ValueError(f"{what} has {value.type.shape[0]} entries; give a scalar or one entry for each: {names}.")
    return [value[i] for i in range(len(names))]


def noise_entries(system: System, noise: Any) -> list[Any]:
    """Noise standard deviation of each output."""
    n = len(system.outputs)
    if isinstance(noise, Mapping):
        noise = system.outputs.spread("noise", spread_numbers(system.outputs, noise))
        if set(noise) != set(system.outputs):
            raise ValueError(f"noise has the entries {sorted(noise)}; give one for each output: {system.outputs}.")
        values = [noise[o] for o in system.outputs]
    elif isinstance(noise, Variable):
        values = vector_entries("noise", noise, system.outputs)
    elif not np.iterable(noise) or isinstance(noise, str | bytes):
        values = [noise] * n
    else:
        values = list(noise)
        if len(values) != n:
            raise ValueError(f"noise has {len(values)} entries; give one, or one for each output: {system.outputs}.")
    for v in values:
        if not isinstance(v, Variable) and not number(v, "noise", "a standard deviation must be positive and finite") > 0:
            raise ValueError(f"noise is {v!r}; a standard deviation must be positive and finite.")
    return values


def spread_numbers(names: Names, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name, where a number or scalar variable stands for every entry of a vector."""
    shapes = names.shapes
    return {
        k: [v] * shapes[k][0]
        if among(k, shapes) and shapes[k] and not (v.type.ndim if isinstance(v, Variable) else np.ndim(v))
        else v
        for k, v in values.items()
    }


def warn_of_shared_noise(system: System, y: np.ndarray, noise: Any) -> None:
    """Warn if outputs whose sizes over ``y`` (T, n_y) differ share one standard deviation: their units differ, most likely."""
    shared = not isinstance(noise, Mapping) and (
        noise.type.ndim == 0 if isinstance(noise, Variable) else not np.iterable(noise)
    )
    if len(system.outputs) == 1 or not shared:
        return
    sizes = [float(np.std(column[~np.isnan(column)])) if not np.isnan(column).all() else 0.0 for column in y.T]
    large = max(sizes)
    small = min((s for s in sizes if s > 0), default=large)
    if large > UNEQUAL * small:
        listed = ", ".join(f"{name} {s:.2g}" for name, s in zip(system.outputs, sizes, strict=True))
        example = ", ".join(f'"{name}": ...' for name in system.outputs)
        warnings.warn(
            f"one noise is given for outputs of different size (standard deviations: {listed}); if their units differ, give "
            f"each its own: noise={{{example}}}. If they do share it, say so with a vector, noise=[s, s].",
            stacklevel=3,
        )


def vector(values: Sequence[Any]) -> Any:
    """Stack numbers and scalar tensors to a float vector (possibly empty)."""
    if not len(values):
        return pt.as_tensor_variable(np.empty(0))
    if not any(isinstance(v, Variable) for v in values):
        return pt.as_tensor_variable(np.array([float(v) for v in values]))
    return pt.stack([pt.cast(pt.as_tensor_variable(v), "float64") for v in values])
