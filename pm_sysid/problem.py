"""A system, a solver and records as one log-likelihood expression: what every layer above asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from pm_sysid.doors import number
from pm_sysid.solver import Solver
from pm_sysid.steps.ek import FLOOR, FilterSteps, Output, calibration_recurrence, filter_recurrence
from pm_sysid.steps.inputs import FilterInputs, filter_inputs
from pm_sysid.steps.iwp import scales
from pm_sysid.steps.state import Form
from pm_sysid.system import System
from pm_sysid.timeseries import TimeSeries


class Unknowns(NamedTuple):
    """What a log-likelihood depends on besides the record; tensors or arrays.

    ``params`` (P,), ``x0`` and ``x0_std`` (R, n_x), ``noise`` (n_y,), ``diffusion`` (chains,; ignored when calibrated).
    """

    params: Any
    x0: Any
    x0_std: Any
    noise: Any
    diffusion: Any


class RecordData(NamedTuple):
    """Arrays of a record at a number of substeps; tensors or arrays. ``scale`` (q+1,), the rest as in FilterInputs."""

    scale: Any
    counts: Any
    starts: Any
    substeps: Any
    samples: Any

    @property
    def widths(self) -> tuple[tuple[int | None, ...], ...]:
        """Static shapes: another record may have another length, and nothing else."""
        lasting = self.scale.shape, (None,), self.starts.shape
        return *lasting, (None, self.substeps.shape[1]), (None, self.samples.shape[1])


@dataclass(frozen=True)
class Problem:
    """A system under a form of the filter; hashable, so that its recurrences are built once."""

    system: System
    form: Form
    calibrated: bool

    @classmethod
    def build(cls, system: System, solver: Solver, records: Sequence[TimeSeries], free: tuple[int, ...] = ()) -> Problem:
        """Form of the filter for records; ``free`` are the states whose initial value is uncertain."""
        return cls(system, solver.form(system, records, free), solver.calibrated)

    @property
    def steps(self) -> FilterSteps:
        """The symbolic steps."""
        return FilterSteps(self.system, self.form)

    def data(self, records: Sequence[TimeSeries], substeps: int) -> RecordData:
        """Evaluate the inputs of records for a number of substeps a sample."""
        steps = self.steps
        inputs: FilterInputs = filter_inputs(
            records,
            substeps=substeps,
            n_levels=steps.n_derivatives,
            jumps=steps.jumps,
            smoothness=self.form.smoothness,
            uniform=self.form.uniform,
        )
        return RecordData(scales(self.form.order, inputs.step), inputs.counts, inputs.starts, inputs.substeps, inputs.samples)

    def run(self, y: Any, unknowns: Unknowns, data: RecordData, output: Output = "loglik") -> tuple[Any, Any]:
        """Outputs (T, n) and final carry (R, n) of the filter as expressions.

        Parameters
        ----------
        y : tensor, shape (T, n_y)
            Measurements, NaN where missing (standard normal numbers for ``output="draw"``).
        """
        diffusion = self.calibrate(unknowns, data) if self.calibrated else unknowns.diffusion
        params = pt.concatenate([unknowns.params, diffusion, unknowns.noise, data.scale])
        starts = pt.concatenate([unknowns.x0, unknowns.x0_std, data.starts], axis=1)
        samples = pt.concatenate([data.samples, y], axis=1)
        outputs, final = filter_recurrence(self.system, self.form, output)(params, starts, data.counts, data.substeps, samples)
        return outputs, final

    def calibrate(self, unknowns: Unknowns, data: RecordData) -> Any:
        """Quasi-maximum-likelihood diffusion of each chain, shape (chains,); Eq. 19."""
        n_chains, n_y = len(self.system.chain_states), len(self.system.g)
        params = pt.concatenate([unknowns.params, np.ones(n_chains), np.ones(n_y), data.scale])
        starts = pt.concatenate([unknowns.x0, pt.zeros_like(unknowns.x0_std), data.starts], axis=1)
        _, final = calibration_recurrence(self.system, self.form)(params, starts, data.counts, data.substeps, data.samples)
        total = pt.sum(final[:, -n_chains:], axis=0)
        return pt.sqrt(total / pt.maximum(data.substeps.shape[0], 1) + FLOOR**2)


def check_records(system: System, data: TimeSeries | Sequence[TimeSeries], *, need_y: bool = True) -> list[TimeSeries]:
    """Records as a list, checked against a system."""
    records = [data] if isinstance(data, TimeSeries) else list(data) if isinstance(data, list | tuple) else None
    if records is None or not records or not all(isinstance(r, TimeSeries) for r in records):
        raise TypeError(f"data is {type(data).__name__}; give a TimeSeries, or a list of TimeSeries.")
    for i, record in enumerate(records):
        which = f"data[{i}]" if len(records) > 1 else "data"
        n_u = record.input_matrix.shape[1]
        if n_u != len(system.inputs):
            raise ValueError(
                f"{which} has {n_u} input channels {record.inputs}, but the system has the inputs {system.inputs}; "
                "give one channel for each input, in the same order."
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
    return records


def _check_order(which: str, what: str, names: Sequence[str], expected: Sequence[str]) -> None:
    """Refuse channels that have the system's names in another order; other names are taken as they come."""
    if tuple(names) != tuple(expected) and set(names) == set(expected):
        raise ValueError(
            f"{which} has the {what} {tuple(names)} and the system {tuple(expected)}: the same in another order. Channels are "
            "matched by order; reorder those of the record, or name them otherwise."
        )


def check_params(system: System, params: Mapping[str, Any]) -> list[Any]:
    """Values of a system's parameters in order; scalars or scalar tensors."""
    if not isinstance(params, Mapping):
        raise TypeError(f"params is {type(params).__name__}; give a dict of values by name: {system.params}.")
    missing = [p for p in system.params if p not in params]
    unknown = [p for p in params if p not in system.params]
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


def vector(values: Sequence[Any]) -> Any:
    """Stack numbers and scalar tensors to a float vector (possibly empty)."""
    if not len(values):
        return pt.as_tensor_variable(np.empty(0))
    if not any(isinstance(v, Variable) for v in values):
        return pt.as_tensor_variable(np.array([float(v) for v in values]))
    return pt.stack([pt.cast(pt.as_tensor_variable(v), "float64") for v in values])
