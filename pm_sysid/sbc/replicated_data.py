"""Parameters from a model's prior, and the records that the model, or another simulator, makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
from pytensor.compile import SharedVariable

from pm_sysid.arguments import among
from pm_sysid.compat import replace_rng_nodes
from pm_sysid.likelihood.filter_view import filter_names, filter_view
from pm_sysid.likelihood.ode_filter import set_data
from pm_sysid.likelihood.prior_draws import Prior
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.functions import compiled

type Generator = Literal["model"] | Callable[[dict[str, Any], np.random.Generator], Any]


class ImpossibleRecord(ValueError):
    """A record that cannot be simulated with the parameters drawn."""


class Replicate(NamedTuple):
    """Parameters by name (free and deterministic variables), and data by the name of the observed variable."""

    truth: dict[str, np.ndarray]
    data: dict[str, Any]


class Data:
    """The observed variables of a model, filled with one record after the other; the rest of the model stays.

    What a filter knows of the initial state is a prior that stays as well: read off each record anew, it would be a prior that
    has seen the data, and nothing that parameters can be drawn from beforehand.

    Raises
    ------
    ValueError
        If an observed variable has constants for data, which no compiled function would see change.
    """

    def __init__(self, model: pm.Model) -> None:
        self.model = model
        self.filters = filter_names(model)
        self.shared: dict[str, SharedVariable] = {}
        for rv in model.observed_RVs:
            value = model.rvs_to_values[rv]
            if not isinstance(value, SharedVariable):
                raise ValueError(
                    f"the data of {rv.name!r} are constants, which cannot be replaced in a compiled model; write "
                    f'observed=pm.Data("{rv.name}_data", values).'
                )
            self.shared[rv.name] = value
        self.original = {name: np.array(v.get_value(), dtype=float) for name, v in self.shared.items()}
        views = {name: filter_view(name, model) for name in self.filters}
        #: Of each filter, what a record brings besides its measurements, and what it knows of the initial state.
        self.records = {name: view.arrays() for name, view in views.items()}
        self.starts = {name: view.starts() for name, view in views.items()}
        self.coords = dict(model.coords)

    def put(self, data: Mapping[str, Any]) -> None:
        """Replace the data: arrays, or records of ODE filters; what was missing in an array's place stays missing."""
        for name, given in data.items():
            self.check(name, given)
            if name in self.filters and _is_record(given):
                set_data({name: given}, self.model)
                view = filter_view(name, self.model)
                view.put(view.arrays(), self.starts[name])
            else:
                array = np.where(np.isnan(self.original[name]), np.nan, np.asarray(given, dtype=float))
                self.shared[name].set_value(array.astype(self.shared[name].dtype))

    def check(self, name: str, given: Any) -> None:
        """Refuse data for another variable, or of another shape."""
        if name not in self.shared:
            raise ValueError(f"there is no observed variable {name!r}; the model has {list(self.shared)}.")
        if _is_record(given):
            if name not in self.filters:
                raise ValueError(f"{name!r} is no ODEFilter and takes no TimeSeries; give an array.")
            if _array(given).size != self.original[name].size:
                raise ValueError(
                    f"the record for {name!r} has {_array(given).size} values; simulate {self.original[name].size}, as the "
                    "model has."
                )
        elif np.shape(given) != self.original[name].shape:
            raise ValueError(
                f"the data for {name!r} have the shape {np.shape(given)}; the model's is {self.original[name].shape}."
            )

    def current(self) -> dict[str, np.ndarray]:
        """Data as they are."""
        return {name: np.array(v.get_value(), dtype=float) for name, v in self.shared.items()}

    def restore(self) -> None:
        """Put everything back: measurements, inputs, times, initial states."""
        for name, value in self.original.items():
            self.shared[name].set_value(value.astype(self.shared[name].dtype))
        for name in self.filters:
            filter_view(name, self.model).put(self.records[name], self.starts[name])
            time = f"{name}_time"
            if self.coords.get(time) is not None:
                self.model.set_dim(time, len(self.coords[time]), coord_values=self.coords[time])


class Replicates:
    """Parameters from the prior with records simulated from them, each reproducible by its seed alone."""

    def __init__(self, model: pm.Model, data: Data, generate: Generator) -> None:
        if not among(generate, ("model",)) and not callable(generate):
            raise ValueError(f"generate is {generate!r}; give 'model', or a function of (params, rng) that returns a record.")
        self.data, self.generate = data, generate
        self.prior = Prior(model, observed=generate == "model")
        self.starts = _starts(model, data.filters) if callable(generate) else None

    def __call__(self, seed: np.random.SeedSequence) -> Replicate:
        """Draw one.

        Raises
        ------
        ImpossibleRecord
            If the record is not finite where the model's was measured.
        """
        first, second, third = seed.spawn(3)
        drawn = self.prior.draw(1, np.random.default_rng(first))
        coordinates = self.prior.coordinates
        row = coordinates.unconstrained({name: drawn[name] for name in self.prior.names})
        truth = {name: value[0] for name, value in coordinates.constrained(row).items()}
        truth |= {name: drawn[name][0] for name in self.prior.names}  # as drawn, not transformed there and back
        if callable(self.generate):
            params: dict[str, Any] = {k: v.item() if v.ndim == 0 else v for k, v in truth.items()}
            made = self.generate(self._initial_states(truth, third) | params, np.random.default_rng(second))
            data = self._named(made)
        else:
            data = {name: drawn[name][0] for name in self.prior.others}
        for name, given in data.items():
            self.data.check(name, given)
            if np.any(~np.isfinite(_array(given)) & ~np.isnan(self.data.original[name].ravel())):
                raise ImpossibleRecord(
                    f"the record of {name!r} simulated from the prior is not finite: the prior allows parameters with which "
                    f"the system diverges, such as {_text(truth)}."
                )
        return Replicate(truth, data)

    def _initial_states(self, truth: Mapping[str, np.ndarray], seed: np.random.SeedSequence) -> dict[str, Any]:
        """Initial state of each filter's records, drawn from what the filter knows of it."""
        if self.starts is None:
            return {}
        rng, found = np.random.default_rng(seed), {}
        drawn = self.starts(*(truth[name] for name in self.prior.names))
        for name, mean, std in zip(self.data.filters, drawn[::2], drawn[1::2], strict=True):
            states = filter_view(name, self.data.model).system.states
            rows = mean + std * rng.standard_normal(mean.shape)
            each = [dict(zip(states, map(float, row), strict=True)) for row in rows]
            found[f"{name}_x0"] = each if len(each) > 1 else each[0]
        return found

    def _named(self, made: Any) -> dict[str, Any]:
        if isinstance(made, Mapping):
            return dict(made)
        names = list(self.data.shared)
        if len(names) > 1:
            raise ValueError(f"the model observes {names}; generate must return a dict of records by these names.")
        return {names[0]: made}


def _starts(model: pm.Model, filters: Sequence[str]) -> Any:
    """Compiled means and standard deviations of the initial states of filters, for values of the free variables."""
    unknowns = [filter_view(name, model).unknowns for name in filters]
    graphs = [matrix for u in unknowns for matrix in (u.x0, u.x0_std)]
    return compiled(model.free_RVs, replace_rng_nodes(graphs)) if graphs else None


def _is_record(given: Any) -> bool:
    return isinstance(given, TimeSeries) or (isinstance(given, list | tuple) and all(isinstance(r, TimeSeries) for r in given))


def _array(given: Any) -> np.ndarray:
    """Data as one column after the other."""
    if _is_record(given):
        given = np.concatenate([r.output_matrix for r in ([given] if isinstance(given, TimeSeries) else given)])
    return np.ravel(np.asarray(given, dtype=float))


def _text(truth: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{k} = {float(v):.4g}" for k, v in truth.items() if np.ndim(v) == 0)
