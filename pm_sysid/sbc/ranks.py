"""Where a true value ranks among posterior draws, and of which quantities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pm_sysid.arguments import seed_sequence, words
from pm_sysid.compat import SimulatorRV
from pm_sysid.compat.arviz import array_stats
from pm_sysid.likelihood.coordinates import Coordinates, checked
from pm_sysid.likelihood.prior_draws import Prior
from pm_sysid.recurrence.functions import compiled

#: Name of the log-likelihood of the data among the quantities that are ranked.
LIKELIHOOD = "log_likelihood"
#: Draws from the prior for its standard deviations.
PRIOR_DRAWS = 1000


class Quantities:
    """The numbers that are ranked: elements of variables, and the log-likelihood."""

    def __init__(self, model: pm.Model, var_names: str | Sequence[str] | None) -> None:
        free, known = [rv.name for rv in model.free_RVs], [v.name for v in [*model.free_RVs, *model.deterministics]]
        names = free if var_names is None else words(var_names, "var_names")
        if unknown := [v for v in names if v not in known and v != LIKELIHOOD]:
            raise ValueError(
                f"var_names has {unknown[0]!r}; the model has the variables {known}, and {LIKELIHOOD!r} is ranked too."
            )
        simulated = any(isinstance(rv.owner.op, SimulatorRV) for rv in model.observed_RVs)
        self.likelihood = LIKELIHOOD in names or (var_names is None and not simulated)
        self.names, self.free = [v for v in names if v != LIKELIHOOD], free
        shapes = {v.name: tuple(int(s) for s in v.shape.eval()) for v in [*model.free_RVs, *model.deterministics]}
        self.labels = [
            f"{v}[{', '.join(map(str, i))}]" if shapes[v] else v for v in self.names for i in np.ndindex(shapes[v])
        ] + [LIKELIHOOD] * self.likelihood
        self.coordinates = Coordinates(model)
        if self.likelihood:
            particles = pt.dmatrix("particles")
            total = checked(model.logp(vars=model.observed_RVs, jacobian=False))
            (batched,) = self.coordinates.vectorised([total], particles)
            self._function = compiled([particles], batched)

    def of(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Table (draws, labels) of variables (draws, ...); with the log-likelihood of the data that the model has now."""
        needed = dict.fromkeys([*self.names, *(self.free if self.likelihood else ())])
        if missing := [v for v in needed if v not in values]:
            raise TypeError(
                f"the fit returns no draws of {missing}, but of {sorted(values)}; choose what to rank by var_names "
                f"(without {LIKELIHOOD!r}, which takes all free variables)."
            )
        columns = [np.reshape(values[v], (len(values[v]), -1)).astype(float) for v in self.names]
        if self.likelihood:
            with np.errstate(all="ignore"):
                rows = self.coordinates.unconstrained({v: values[v] for v in self.free})
                found = np.broadcast_to(self._function(rows), len(rows))
            columns.append(np.where(np.isnan(found), -np.inf, found)[:, None])
        return np.concatenate(columns, axis=1)

    def prior_sd(self, prior: Prior, seed: int) -> np.ndarray:
        """Prior standard deviations; NaN for the log-likelihood."""
        drawn = prior.draw(PRIOR_DRAWS, np.random.default_rng(seed_sequence(seed, 0)))
        rows = self.coordinates.unconstrained({v: drawn[v] for v in self.free})
        values = {**self.coordinates.constrained(rows), **{v: drawn[v] for v in self.free}}
        sds = [np.std(np.reshape(values[v], (PRIOR_DRAWS, -1)), axis=0, ddof=1) for v in self.names]
        return np.concatenate([*sds, [np.nan] * self.likelihood])


def ranks(truth: np.ndarray, draws: np.ndarray, ranked: int, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Numbers of a fit for the truth (P,) and draws (chain, draw, P): all columns but the first, and draws ranked among.

    Draws that are equal to the truth are below it with probability one half each, all together.
    """
    with np.errstate(all="ignore"):
        size = np.array([_ess(column) for column in np.moveaxis(draws, -1, 0)])
        r_hat = np.array([_r_hat(column) for column in np.moveaxis(draws, -1, 0)])
        flat = draws.reshape(-1, draws.shape[-1])
        mean, sd = flat.mean(axis=0), flat.std(axis=0, ddof=1)
    independent = np.nanmin(np.where(np.isfinite(size), size, np.nan)) if np.isfinite(size).any() else len(flat)
    count = int(np.clip(min(independent, ranked), 1, len(flat)))
    picked = flat[np.linspace(0, len(flat) - 1, count).round().astype(int)]
    below, equal = np.sum(picked < truth, axis=0), np.sum(picked == truth, axis=0)
    rank = below + rng.integers(0, equal + 1)
    pit = (rank + rng.random(truth.size)) / (count + 1)
    return np.stack([mean, sd, rank, pit, size, r_hat]), count


def _ess(draws: np.ndarray) -> float:
    """Effective sample size of draws (chain, draw) for the mean and the tails, whichever is smaller."""
    if draws.shape[1] < 4 or not np.all(np.isfinite(draws)):
        return float("nan")
    bulk = float(array_stats.ess(draws, method="bulk"))
    return min(bulk, float(array_stats.ess(draws, method="tail", prob=(0.05, 0.95))))


def _r_hat(draws: np.ndarray) -> float:
    """Potential scale reduction; that of short chains says nothing."""
    if draws.shape[1] < 100 or not np.all(np.isfinite(draws)):
        return float("nan")
    return float(array_stats.rhat(draws))
