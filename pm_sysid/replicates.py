"""Parameters from a model's prior, and the records that the model, or another simulator, makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.pytensorf import compile as compile_draws
from pymc.pytensorf import reseed_rngs
from pytensor.compile.sharedvalue import SharedVariable

from pm_sysid.coordinates import Coordinates
from pm_sysid.doors import among
from pm_sysid.likelihood import ODEFilterRV, set_data
from pm_sysid.target import checked
from pm_sysid.timeseries import TimeSeries

type Generator = Literal["model"] | Callable[[dict[str, Any], np.random.Generator], Any]

#: Draws from the prior for each that obeys the potentials, beyond which these contradict it.
MOST_TRIED = 100_000


class ImpossibleRecord(ValueError):
    """A record that cannot be simulated with the parameters drawn."""


class Replicate(NamedTuple):
    """Parameters by name (free and deterministic variables), and data by the name of the observed variable."""

    truth: dict[str, np.ndarray]
    data: dict[str, Any]


class Prior:
    """Draws of the free variables of a model, with or without what they make the observed ones, compiled once.

    Potentials cut the prior, or thin it out, as they do in :class:`Target`.
    """

    def __init__(self, model: pm.Model, *, observed: bool = False) -> None:
        self.model, self.coordinates = model, Coordinates(model)
        self.names = [rv.name for rv in model.free_RVs]
        self.others = [rv.name for rv in model.observed_RVs] if observed else []
        variables = [*model.free_RVs, *(model.observed_RVs if observed else [])]
        self._draw, updates = compile_draws([], variables, return_updates=True)
        self._rngs = list(updates)

    @cached_property
    def _potential(self) -> Callable[[np.ndarray], np.ndarray]:
        particles = pt.dmatrix("particles")
        graph = checked(self.model.logp(vars=self.model.potentials, jacobian=False))
        (batched,) = self.coordinates.vectorised([graph], particles)
        function: Callable[[np.ndarray], np.ndarray] = pytensor.function([particles], batched, on_unused_input="ignore")
        return function

    def draw(self, count: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draws (count, ...) of each variable by name."""
        reseed_rngs(self._rngs, int(rng.integers(2**63)))
        kept: list[list[np.ndarray]] = []
        for tried in range(1, MOST_TRIED * count):
            drawn = self._draw()
            if self._obeys(drawn, rng):
                kept.append(drawn)
            if len(kept) == count:
                break
            if tried >= MOST_TRIED and not kept:
                raise ValueError(
                    f"none of {tried} prior draws obeys the model's potentials; the constraints contradict the priors."
                )
        return {name: np.stack(v) for name, v in zip([*self.names, *self.others], zip(*kept, strict=True), strict=True)}

    def _obeys(self, drawn: list[np.ndarray], rng: np.random.Generator) -> bool:
        if not self.model.potentials:
            return True
        row = self.coordinates.unconstrained({k: v[None] for k, v in zip(self.names, drawn, strict=False)})
        with np.errstate(all="ignore"):
            value = float(np.ravel(self._potential(row))[0])
        if value > 0:
            raise ValueError(
                f"a potential of the model is {value:.3g} for a draw of the prior; prior draws can only be thinned out: write "
                "potentials that are at most zero (constraints are zero or minus infinity)."
            )
        return bool(-rng.standard_exponential() < value)


class Data:
    """The observed variables of a model, filled with one record after the other; the rest of the model stays.

    Raises
    ------
    ValueError
        If an observed variable has constants for data, which no compiled function would see change.
    """

    def __init__(self, model: pm.Model) -> None:
        self.model = model
        self.filters = [rv.name for rv in model.observed_RVs if isinstance(rv.owner.op, ODEFilterRV)]
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

    def put(self, data: Mapping[str, Any]) -> None:
        """Replace the data: arrays, or records of ODE filters; what was missing in an array's place stays missing."""
        for name, given in data.items():
            self.check(name, given)
            if name in self.filters and _is_record(given):
                set_data({name: given}, self.model)
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
        """Put the original measurements back."""
        for name, value in self.original.items():
            self.shared[name].set_value(value.astype(self.shared[name].dtype))


class Replicates:
    """Parameters from the prior with records simulated from them, each reproducible by its seed alone."""

    def __init__(self, model: pm.Model, data: Data, generate: Generator) -> None:
        if not among(generate, ("model",)) and not callable(generate):
            raise ValueError(f"generate is {generate!r}; give 'model', or a function of (params, rng) that returns a record.")
        self.data, self.generate = data, generate
        self.prior = Prior(model, observed=generate == "model")

    def __call__(self, seed: np.random.SeedSequence) -> Replicate:
        """Draw one.

        Raises
        ------
        ImpossibleRecord
            If the record is not finite where the model's was measured.
        """
        first, second = seed.spawn(2)
        drawn = self.prior.draw(1, np.random.default_rng(first))
        coordinates = self.prior.coordinates
        row = coordinates.unconstrained({name: drawn[name] for name in self.prior.names})
        truth = {name: value[0] for name, value in coordinates.constrained(row).items()}
        truth |= {name: drawn[name][0] for name in self.prior.names}  # as drawn, not transformed there and back
        if callable(self.generate):
            made = self.generate({k: v.item() if v.ndim == 0 else v for k, v in truth.items()}, np.random.default_rng(second))
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

    def _named(self, made: Any) -> dict[str, Any]:
        if isinstance(made, Mapping):
            return dict(made)
        names = list(self.data.shared)
        if len(names) > 1:
            raise ValueError(f"the model observes {names}; generate must return a dict of records by these names.")
        return {names[0]: made}


def _is_record(given: Any) -> bool:
    return isinstance(given, TimeSeries) or (isinstance(given, list | tuple) and all(isinstance(r, TimeSeries) for r in given))


def _array(given: Any) -> np.ndarray:
    """Data as one column after the other."""
    if _is_record(given):
        given = np.concatenate([r.output_matrix for r in ([given] if isinstance(given, TimeSeries) else given)])
    return np.ravel(np.asarray(given, dtype=float))


def _text(truth: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{k} = {float(v):.4g}" for k, v in truth.items() if np.ndim(v) == 0)
