"""An ODE filter of a model by name: its op, the graphs it depends on, and the records it holds now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pymc as pm
from pytensor.graph import ancestors

from pm_sysid.likelihood.coordinates import model_of
from pm_sysid.likelihood.filter_rv import ODEFilterRV, numbers, numbers_of, shared_under, unpack
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.checks import check_records
from pm_sysid.solve.filter_graph import Problem, RecordData, Unknowns
from pm_sysid.symbolic.system import System


@dataclass(frozen=True, eq=False)
class FilterView:
    """What is behind the random variable of an :class:`ODEFilter`; made by :func:`filter_view`.

    Graphs are those of the model. Arrays are read from its shared variables when they are asked for, so that after
    :func:`set_data` they are the new ones.

    Attributes
    ----------
    name : str
        Name of the random variable.
    model : pm.Model
        The model it is in.
    rv : TensorVariable
        The random variable, shape (T,) or (T, n_y).
    op : ODEFilterRV
        Its op, with the settings that do not change, ``problem`` and ``flat``, and the number of steps, ``substeps``.
    unknowns : Unknowns
        Graphs of the parameters, the initial state, the noise and the diffusion.
    data : RecordData
        Arrays of the records: shared variables, or parts of one.
    """

    name: str
    model: pm.Model
    rv: Any
    op: ODEFilterRV
    unknowns: Unknowns
    data: RecordData

    @property
    def problem(self) -> Problem:
        """The system and the form of its filter."""
        return self.op.problem

    @property
    def system(self) -> System:
        """The system."""
        return self.op.problem.system

    @property
    def observed(self) -> Any:
        """Shared variable with the measurements, of the shape of the random variable."""
        return self.model.rvs_to_values[self.rv]

    @property
    def y(self) -> Any:
        """Graph of the measurements, shape (T, n_y)."""
        return self.observed[:, None] if self.op.flat else self.observed

    @property
    def finds_diffusion(self) -> bool:
        """Whether the filter estimates its diffusion by itself."""
        return self.problem.calibrated or self.problem.form.dynamic

    @property
    def free_diffusion(self) -> bool:
        """Whether the diffusion depends on free variables: it then stands for process noise."""
        known = set() if self.finds_diffusion else set(ancestors([self.unknowns.diffusion]))
        return any(v in known for v in self.model.free_RVs)

    @property
    def free(self) -> list[Any]:
        """Free variables of the model that the filter depends on, in the model's order."""
        known = set(ancestors(self.unknowns))
        return [v for v in self.model.free_RVs if v in known]

    @property
    def n_records(self) -> int:
        """How many records it was built for."""
        return int(self.data.starts.type.shape[0])

    @property
    def units(self) -> dict[str, str]:
        """Units of the outputs, as far as known and the same in all records."""
        given = self.op.grid.records
        each = [dict(zip(self.system.outputs, (r.units.get(o, "") for o in r.outputs), strict=True)) for r in given]
        return {name: unit for name, unit in each[0].items() if unit and all(e[name] == unit for e in each)}

    def arrays(self) -> RecordData:
        """Arrays of the records."""
        return RecordData(*map(value_of, self.data))

    def starts(self) -> tuple[np.ndarray, ...]:
        """Numbers (R, n_x) of the means and standard deviations of the initial states, zero in the place of variables."""
        return tuple(value_of(numbers_of(matrix)) for matrix in (self.unknowns.x0, self.unknowns.x0_std))

    def starts_of_first(self, n: int) -> tuple[np.ndarray, ...]:
        """The same if the records ended after n samples: what is read off a record depends on all of it."""
        records, left = [], n
        for record in self.op.grid.records:
            records.append(record[:left] if 0 < left < len(record) else record)
            left -= len(record)
        starts = self.op.start.states(self.system, records, self.problem.form.sensors)
        return tuple(np.array(rows, dtype=float) for rows in starts)

    def put(self, arrays: RecordData, starts: tuple[np.ndarray, ...] | None = None) -> None:
        """Exchange the arrays of the records, and the numbers of the initial states where these are given."""
        small = numbers(arrays, *(self.starts() if starts is None else starts))
        shared_under(self.data.counts).set_value(small)
        self.data.substeps.set_value(arrays.substeps)
        self.data.samples.set_value(arrays.samples)

    def forced(self, n: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Sums of the times and inputs of the first n samples (None: all), (1 + n_u,), which those of others do not have.

        Each sample has another weight; after them what tells how inputs move between the samples. And the sums of absolute
        values, of which rounding is a small part.
        """
        values = value_of(self.data.samples)[:n, : 1 + len(self.system.inputs)]
        weighted = np.random.default_rng(0).standard_normal(len(values))[:, None] * values
        smooth = self.problem.form.smoothness
        between = [-1.0 if smooth is None else float(smooth)] if self.system.inputs else []
        return np.append(weighted.sum(axis=0), between), np.append(np.abs(weighted).sum(axis=0), np.ones(len(between)))

    def measured(self) -> np.ndarray:
        """Measurements (T, n_y), NaN where a sample is missing."""
        y = value_of(self.observed)
        return y.reshape(len(y), -1)

    def records(self) -> list[TimeSeries]:
        """The records, with the system's names; whether one is periodic the filter does not know, so none is."""
        counts, samples, y = value_of(self.data.counts), value_of(self.data.samples), value_of(self.observed)
        held: dict[int | None, Any] = {0: "zoh", 1: "foh"}
        n_u = len(self.system.inputs)
        options: dict[str, Any] = {"inputs": self.system.inputs or None, "outputs": self.system.outputs}
        options["intersample"] = held.get(self.problem.form.smoothness, "bl")
        records, channels = [], (*self.system.inputs, *self.system.outputs)
        for given, (start, stop) in zip(
            self.op.grid.records, pairwise([0, *np.flatnonzero(counts < 0), len(counts)]), strict=True
        ):
            rows = samples[start:stop]
            named = zip(channels, (*given.inputs, *given.outputs), strict=True)
            units = {name: given.units[own] for name, own in named if own in given.units}
            u = rows[:, 1 : 1 + n_u] if n_u else None
            records.append(TimeSeries(rows[:, 0], u, y[start:stop], units=units, **options))
        return records

    def check_same(self, idata: Any) -> None:
        """Refuse draws that were made of another record than this filter has now.

        Raises
        ------
        ValueError
            If ``idata`` holds the measurements that it was made of, and these are others.
        """
        if "observed_data" not in getattr(idata, "children", ()) or self.name not in idata["observed_data"]:
            return
        before, now = np.asarray(idata["observed_data"][self.name]), value_of(self.observed)
        if before.shape != now.shape or not np.array_equal(before, now, equal_nan=True):
            raise ValueError(
                f"the measurements of {self.name!r} in the model are not those that idata was made of (set_data?); give it the "
                "same record, or sample again."
            )

    def records_or(self, data: TimeSeries | Sequence[TimeSeries] | None) -> list[TimeSeries]:
        """Other records, for the steps of this filter; its own without any.

        Raises
        ------
        ValueError
            If the steps are those of the filter's own records, interval by interval, and other intervals are given.
        """
        records = self.records() if data is None else check_records(self.system, data)
        grids = self.op.grid.choice.grids
        if grids is not None and [len(r) for r in records] != [len(g.counts) + 1 for g in grids]:
            raise ValueError("data: the steps of the filter are those of its own record, interval by interval; leave data out.")
        return records


def filter_view(name: str | None = None, model: pm.Model | None = None) -> FilterView:
    """Find an :class:`ODEFilter` in a model.

    Parameters
    ----------
    name : str, optional
        Name of the filter; needed if the model has several.
    model : pm.Model, optional
        Default: the model on the context stack.

    Raises
    ------
    ValueError
        If there is no such filter, or several (or none) and no ``name``.
    """
    model = model_of(model)
    names = filter_names(model)
    if name is None:
        if len(names) != 1:
            remedy = f"choose one of {names} by name=..." if names else "give a model with one"
            raise ValueError(f"name is None, which needs a model with one ODEFilter, but this one has {len(names)}; {remedy}.")
        (name,) = names
    rv = model.named_vars.get(name) if isinstance(name, str) else None
    if rv is None or rv.owner is None or not isinstance(rv.owner.op, ODEFilterRV):
        raise ValueError(f"the model has no ODEFilter named {name!r}; it has {names}.")
    _, unknowns, data = unpack(rv.owner.inputs)
    return FilterView(name, model, rv, rv.owner.op, unknowns, data)


def filter_names(model: pm.Model) -> list[str]:
    """Names of the ODE filters of a model, in its order."""
    return [str(v.name) for v in model.observed_RVs if v.owner is not None and isinstance(v.owner.op, ODEFilterRV)]


def value_of(variable: Any) -> np.ndarray:
    """Value of a shared variable, of a constant, or of a part of one, without compiling anything."""
    if hasattr(variable, "get_value"):
        return np.asarray(variable.get_value())
    if variable.owner is None:
        return np.asarray(variable.data)
    node = variable.owner
    found: list[list[Any]] = [[None] for _ in node.outputs]
    node.op.perform(node, [value_of(v) for v in node.inputs], found)
    return np.asarray(found[node.outputs.index(variable)][0])
