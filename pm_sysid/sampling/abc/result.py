"""What an ABC nested sampler returns."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pytensor.graph import vectorize_graph

from pm_sysid.likelihood.coordinates import model_dataset
from pm_sysid.notebook import html_line, html_table
from pm_sysid.recurrence.functions import compiled
from pm_sysid.sampling.abc.population import LIVING, Population, ProposalDistribution
from pm_sysid.sampling.abc.unit_cube import Cube
from pm_sysid.sampling.smc.resampling import systematic
from pm_sysid.sampling.smc.stages import GOOD_K

_log = logging.getLogger("pm_sysid")

type History = list[dict[str, Any]]


#: Differences of probabilities in standard errors, and at least this large, from which on they contradict each other.
FAR, LEAST = 4.0, 0.05
#: Effective particles, as a part of ``particles``, below which a result is in doubt.
FEW = 0.1
#: Relative difference of a model's mass by the run's particles and by fresh candidates, beyond their errors, that is said.
APART = 0.1
#: Relative standard error of a mass from which on few heavy candidates, which have no error that can be told, are said. A
#: simulator with noise has a seam of rare acceptances, and right masses known to a fifth.
HEAVY = 0.25
#: The same, from which on one or two candidates make the mass, of which no shape can be told.
SINGLE = 0.5
#: Relative standard error of the prior mass that constraints leave above which it is said.
CONSTRAINT_ERROR = 0.05


class RunMasses(NamedTuple):
    """Masses by the particles of a run, and their standard errors as if those were independent draws; both (K,)."""

    value: np.ndarray
    error: np.ndarray


class Masses(NamedTuple):
    """Prior mass of each model below a threshold, times its prior probability, with standard errors; all (K,).

    ``constraint`` is the relative standard error of the prior mass that constraints leave, which the masses share with the
    particles of the run; None for none. ``run`` are the masses by these particles, ``pareto_k`` (K,) is the Pareto shape of the
    weights of the fresh candidates, ``lost`` (K,) the probability of a model that died in the last round that had it, and
    ``left`` (K,) the masses at places that the run has left, where a search has found some. The error of a mass of zero is an
    upper limit.
    """

    value: np.ndarray
    error: np.ndarray
    constraint: np.ndarray | None = None
    run: RunMasses | None = None
    pareto_k: np.ndarray | None = None
    lost: np.ndarray | None = None
    left: np.ndarray | None = None

    @property
    def apart(self) -> np.ndarray:
        """Differences of masses by particles and by fresh candidates that are more than their errors explain; else zero."""
        if self.run is None:
            return np.zeros(len(self.value))
        away = np.abs(self.run.value - self.value)
        expected = np.maximum(FAR * np.hypot(self.error, self.run.error), APART * self.value)
        return np.where((away > expected) & (self.run.value > LIVING * self.run.value.sum()), away, 0.0)

    @property
    def total_error(self) -> np.ndarray:
        """Standard errors with those of the constraints, at least what is not explained by them."""
        shared = 0.0 if self.constraint is None else self.constraint
        left = 0.0 if self.left is None else self.left
        result: np.ndarray = np.maximum(np.hypot(self.error, self.value * shared), np.maximum(self.apart, left))
        return result

    def shares(self, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Masses as parts of their sum, which is positive, and the standard errors of these for ``error`` of the masses."""
        total = float(self.value.sum())
        measured = self.value / total
        # Of a ratio, by its linear terms.
        own, all_others = (1 - measured) * error, np.sqrt(np.sum(error**2) - error**2)
        return measured, np.hypot(own, measured * all_others) / total

    def probability_error(self, probability: np.ndarray) -> np.ndarray:
        """Standard errors of probabilities of the models; at least what they and these masses differ by."""
        if not self.value.sum() > 0:
            return np.full(len(probability), np.nan)
        measured, error = self.shares(self.total_error)
        result: np.ndarray = np.maximum(error, np.abs(measured - probability))
        return result

    def against(self, probability: np.ndarray, names: Sequence[str]) -> str:
        """What these masses have against probabilities of the models, in words; empty if nothing."""
        if not self.value.sum() > 0:
            return "no fresh candidate came below the last threshold: the masses of the models are not known."
        measured, error = self.shares(self.error)
        away = np.abs(measured - probability)
        if not np.any(away > np.maximum(FAR * error, LEAST)):
            return ""
        k = int(np.argmax(away - np.maximum(FAR * error, LEAST)))
        return (
            f"the probability of {names[k]!r} is {probability[k]:.2f} by the particles of the run, and {measured[k]:.2f} +- "
            f"{error[k]:.2f} by fresh candidates: the run lost a part of a model on its way. Take more particles."
        )

    def of_models(self, names: Sequence[str]) -> str:
        """Which masses are not known, and why, in words; empty if all are."""
        total, said = float(self.value.sum()), []
        if self.run is None or self.pareto_k is None or self.lost is None or not total > 0:
            return ""
        for k, name in enumerate(names):
            value, error, shape = self.value[k], self.error[k], self.pareto_k[k]
            left = 0.0 if self.left is None else self.left[k]
            if left > max(LEAST * (total + left), FAR * error):
                said.append(
                    f"{name!r} comes below the last threshold where the run has no particles, with about "
                    f"{left / (total + left):.2f} of the mass of all"
                )
                continue
            at_most = max(self.lost[k], 0.0 if self.lost[k] else min(error / total, 1.0))
            if value == 0 and at_most > LEAST:
                said.append(f"no fresh candidate of {name!r} came below the last threshold; it may hold {at_most:.2f} of all")
            elif self.apart[k] > 0:
                found = f"{self.run.value[k]:.3g} by the particles and {value:.3g} +- {error:.1g} by fresh candidates"
                said.append(f"the prior mass of {name!r} below the last threshold is {found}")
            elif value > LEAST * total and error > HEAVY * value and (shape > GOOD_K or error > SINGLE * value):
                said.append(
                    f"the mass of {name!r}, {value:.3g} +- {error:.1g}, hangs on few heavy candidates (Pareto k {shape:.2f})"
                )
        return f"{'; '.join(said)}: the proposals have missed a part. Take more particles." if said else ""

    def of_constraints(self, names: Sequence[str]) -> str:
        """Which prior masses that constraints leave are hardly known, in words; empty if none."""
        shared = np.zeros(len(names)) if self.constraint is None else self.constraint
        few = [f"{names[k]!r} to {shared[k]:.0%}" for k in range(len(names)) if shared[k] > CONSTRAINT_ERROR]
        if not few:
            return ""
        return (
            f"few prior draws obey the constraints, and the prior mass that these leave is known of {', '.join(few)} only: "
            "write the constraint into the priors."
        )


class ABCResult(xr.DataTree):  # type: ignore[no-untyped-call]  # a check of xarray's when it is subclassed
    """A tree that shows the probabilities of its models first in a notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """How the run ended and what it says of each model, before the tree."""
        tree = str(xr.DataTree._repr_html_(self))  # type: ignore[no-untyped-call]
        if "populations" not in self.children:  # a group of the tree
            return tree
        rounds = self.children["populations"].to_dataset()
        rows = [
            [
                name,
                f"{float(here['model_probability']):.3f}",
                f"{float(here['share'].values[-1]):.3f}",
                f"{float(here['model_mass']):.3g} ± {float(here['model_mass_se']):.1g}",
            ]
            for name in map(str, rounds["model"].values)
            for here in [rounds.sel(model=name)]
        ]
        count, threshold = rounds.sizes["population"], float(rounds["threshold"].values[-1])
        head = f"ABC-NS: {self.attrs.get('stopped', '')} after {count} populations, last threshold {threshold:.4g}"
        columns = ["model", "probability", "share of the particles", "prior mass below the threshold"]
        doubt = f"in doubt: {said}" if (said := self.attrs.get("doubt")) else ""
        said_first = html_line(head, strong=True) + html_table(columns, rows) + (html_line(doubt) if doubt else "")
        return said_first + tree


def row(
    population: Population, proposals: ProposalDistribution, acceptance: float, simulated: int, seconds: float, n_models: int
) -> dict[str, Any]:
    """Statistics of a round."""
    return {
        "threshold": population.threshold,
        "best": float(population.distance.min()),
        "acceptance": acceptance,
        "simulations": simulated,
        "ess": population.ess,
        "seconds": seconds,
        "probability": population.probability(n_models).tolist(),
        "share": population.share(n_models).tolist(),
        "log_mass": population.log_mass(n_models).tolist(),
        "log_volume": [float("nan") if r is None else r.standard.log_volume for r in proposals.regions],
    }


def result(
    models: Mapping[str, pm.Model],
    cubes: Sequence[Cube],
    population: Population,
    history: History,
    stopped: str,
    seed: int,
    masses: Masses | None,
    particles: int,
) -> xr.DataTree:
    """Posterior of each model, the rounds, and the last population."""
    rng = np.random.default_rng([seed, len(history), 1])
    groups: dict[str, Any] = {}
    for k, (name, model) in enumerate(models.items()):
        (rows,) = np.nonzero(population.model == k)
        if len(rows):
            groups[f"{name}/posterior"] = _posterior(model, cubes[k], population, rows, rng)
    unknown, names, probability = np.full(len(models), np.nan), list(models), population.probability(len(models))
    rounds, doubt = _rounds(names, history), ""
    if masses is None:
        rounds = rounds.assign({name: ("model", unknown) for name in ("model_mass", "model_mass_se", "model_probability_se")})
    else:
        rounds = rounds.assign(
            model_mass=("model", masses.value),
            model_mass_se=("model", masses.total_error),
            model_probability_se=("model", masses.probability_error(probability)),
        )
        said = [masses.against(probability, names) or masses.of_models(names), masses.of_constraints(names)]
        if population.ess < FEW * particles:
            said.append(f"a few heavy particles hold the posterior: it counts as {population.ess:.0f} draws, not {particles}.")
        doubt = " ".join(text for text in said if text)
    groups["populations"] = rounds
    if doubt:
        _log.warning("sample_abc_ns: %s", doubt)
    groups["particles"] = xr.Dataset(
        {
            "model": ("particle", np.array(names)[population.model]),
            "distance": ("particle", population.distance),
            "weight": ("particle", population.weight),
            "point": (("particle", "coordinate"), population.points),
        }
    )
    tree = ABCResult.from_dict(groups)
    tree.attrs.update(stopped=stopped, random_seed=seed, doubt=doubt)
    return tree


def _posterior(model: pm.Model, cube: Cube, population: Population, rows: np.ndarray, rng: np.random.Generator) -> xr.Dataset:
    """Draws of equal weight, as many as the model has particles."""
    weight = population.weight[rows] / np.sum(population.weight[rows])
    drawn = rows[systematic(weight, len(rows), rng)]
    values = cube.values(population.points[drawn, : cube.size])
    free = list(model.free_RVs)
    if model.deterministics:
        values |= _deterministics(model, [values[str(rv.name)] for rv in free])
    columns = {name: value[None] for name, value in values.items()}
    return model_dataset(model, columns, ["chain", "draw"])


def _deterministics(model: pm.Model, values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Deterministic variables at draws of the free ones."""
    many = {rv: pt.TensorType("float64", (None,) * (rv.type.ndim + 1))(name=rv.name) for rv in model.free_RVs}
    wanted = list(model.deterministics)
    batched = vectorize_graph(wanted, many)
    function = compiled(list(many.values()), batched)
    return {str(d.name): value for d, value in zip(wanted, function(*values), strict=True)}


def _rounds(names: list[str], history: History) -> xr.Dataset:
    """Statistics with dims (population,) and (population, model), and the model probabilities of the last population."""
    by_model = ("probability", "share", "log_mass", "log_volume")
    columns = {
        key: (("population", "model") if key in by_model else ("population",), np.array([h[key] for h in history]))
        for key in history[0]
    }
    columns["model_probability"] = ("model",), columns["probability"][1][-1]
    return xr.Dataset(columns, {"population": np.arange(1, len(history) + 1), "model": names})
