"""Fits of one model to one record after the other: everything is compiled once, and reads the data that the model has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pm_sysid.arguments import among, count
from pm_sysid.compat import CpuLeapfrogIntegrator, QuadPotentialFull, logp_dlogp, replace_rng_nodes
from pm_sysid.idata import posterior_of
from pm_sysid.likelihood.filter_view import filter_names, filter_view
from pm_sysid.likelihood.mode import best_peak
from pm_sysid.likelihood.posterior_functions import PosteriorFunctions
from pm_sysid.likelihood.prior_draws import Prior, possible_draws
from pm_sysid.likelihood.target import Target
from pm_sysid.pem.fit import fit_pem
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.functions import compiled
from pm_sysid.sampling.annealing.step import DataAnnealing
from pm_sysid.sampling.smc.algorithm import CROWD, Sequential
from pm_sysid.sampling.smc.moves import Moves
from pm_sysid.sampling.smc.particle_state import Start
from pm_sysid.sbc.replicated_data import Data
from pm_sysid.steps.sensors import PLAIN


class Drawn(NamedTuple):
    """Draws (chain, draw, ...) by the name of the variable, and numbers that say how the fit went."""

    values: Mapping[str, np.ndarray]
    statistics: Mapping[str, float]


#: A fit of the model to its present data.
type Refit = Callable[[np.random.Generator], Drawn]


class NUTSRefit:
    """NUTS from the posterior mode with its curvature as mass matrix, as :func:`sample` does.

    The mode is looked for from draws of the prior: from the model's initial point alone a search may end in a mode of its own,
    and that would be counted against the posterior. Filters keep their steps, which are a part of what is calibrated. Chains
    start at draws from the Laplace approximation.
    """

    def __init__(
        self,
        model: pm.Model,
        *,
        draws: int = 500,
        tune: int = 200,
        chains: int = 2,
        target_accept: float = 0.8,
        prior_draws: int = 500,
        starts: int = 4,
    ) -> None:
        self.prior, self.model = Prior(model), model
        self.draws, self.tune, self.chains = (_count(*item) for item in (("draws", draws), ("tune", tune), ("chains", chains)))
        self.starts, self.functions = _count("starts", starts), PosteriorFunctions(model)
        # The same for all records: the prior does not change with them.
        self.cloud = possible_draws(self.functions.coordinates, _count("prior_draws", prior_draws), 0)
        point = model.initial_point()
        with model:
            self.step = pm.NUTS(model=model, scaling=np.ones(self.functions.first.size), target_accept=target_accept)
        self.shapes = [(v.name, np.shape(point[v.name])) for v in model.value_vars]

    def __call__(self, rng: np.random.Generator) -> Drawn:
        """Sample."""
        best = best_peak(self.functions, self.cloud, self.starts)
        mode, covariance = best.point, best.covariance
        root = np.linalg.cholesky(covariance)
        rows, diverging = [], 0.0
        for chain in rng.spawn(self.chains):
            tries = (mode + 0.7**k * root @ chain.standard_normal(mode.size) for k in range(60))
            q = next(filter(self._possible, tries), mode)
            found, diverged = self._chain(q, covariance, chain)
            rows.append(found)
            diverging += diverged
        total = self.chains * self.draws
        if diverging == total:
            raise RuntimeError("all draws of NUTS diverged.")
        return Drawn(_constrained(self.prior, np.stack(rows)), {"diverging": diverging / total, "mode": float(best.converged)})

    def _possible(self, q: np.ndarray) -> bool:
        return bool(self.functions.values(q[None])[0] > -np.inf)

    def _chain(self, q: np.ndarray, covariance: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, int]:
        step = self.step
        step.potential = QuadPotentialFull(covariance)
        step.integrator = CpuLeapfrogIntegrator(step.potential, logp_dlogp(step))
        step.setup_chain(rng, self.tune, self.draws)
        step.reset_tuning()
        point, rows, diverged = self._point(q), [], 0
        for i in range(self.tune + self.draws):
            if i == self.tune:
                step.stop_tuning()
            point, [row] = step.step(point)
            if i >= self.tune:
                diverged += row["diverging"]
                rows.append(np.concatenate([np.ravel(point[name]) for name, _ in self.shapes]))
        return np.stack(rows), diverged

    def _point(self, q: np.ndarray) -> dict[str, np.ndarray]:
        ends = np.cumsum([int(np.prod(shape)) for _, shape in self.shapes])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes, np.split(q, ends[:-1]), strict=True)}


class IBISRefit:
    """One run of :class:`IBIS`; its waste-free Markov chains of the last stage are the chains."""

    def __init__(
        self,
        model: pm.Model,
        *,
        draws: int = 1000,
        threshold: float = 0.3,
        moves: Moves | None = None,
        threads: int | None = None,
    ) -> None:
        self.prior = Prior(model)
        self.sequential = Sequential(Target(model, threads), draws, threshold, Moves() if moves is None else moves)
        # Compiled here, by one draw of the prior, and not in the first fit.
        self.sequential.init(Start(self.prior.particles(1, np.random.default_rng(0))))

    def __call__(self, rng: np.random.Generator) -> Drawn:
        """Sample."""
        # From the compiled prior: that of the target is compiled with every call.
        state = self.sequential.init(Start(self.prior.particles(CROWD * self.sequential.draws, rng)))
        while not self.sequential.finished(state):
            state = self.sequential.step(state, rng)
        statistics = {"stages": float(state.stage), "accept_rate": state.accept_rate, "proposal_ess": state.proposal_ess}
        return Drawn(_constrained(self.prior, self.sequential.chains(state)), statistics)


class AnnealingRefit:
    """Chains of :class:`DataAnnealing` from draws of the prior."""

    def __init__(
        self, model: pm.Model, *, draws: int = 6000, tune: int = 2000, chains: int = 2, thin: int = 5, **settings: Any
    ) -> None:
        self.prior, self.model = Prior(model), model
        given = {"draws": draws, "tune": tune, "chains": chains, "thin": thin}
        self.draws, self.tune, self.chains, self.thin = (_count(*item) for item in given.items())
        self.step = DataAnnealing(model=model, **settings)

    def __call__(self, rng: np.random.Generator) -> Drawn:
        """Sample."""
        step, rows, accepted = self.step, [], 0.0
        for chain in rng.spawn(self.chains):
            q = self.prior.coordinates.unconstrained(self.prior.draw(1, chain))[0]
            point = {name: q[place.where].reshape(place.shape) for name, place in step.layout.items()}
            step.setup_chain(chain, self.tune, self.draws)
            kept = []
            for i in range(self.tune + self.draws):
                if i == self.tune:
                    step.stop_tuning()
                point, [row] = step.step(point)
                if i >= self.tune:
                    accepted += float(row["accepted"])
                    if i % self.thin == 0:
                        kept.append(np.concatenate([np.ravel(point[name]) for name in step.layout]))
            rows.append(np.stack(kept))
        statistics = {"accept_rate": accepted / (self.chains * self.draws)}
        return Drawn(_constrained(self.prior, np.stack(rows)), statistics)


class PEMRefit:
    """:func:`fit_pem` from the model's initial point, and draws of the Laplace approximation around it.

    The model is read for what a fit needs: the system, which of its parameters are free variables and which numbers, and the
    initial state if it is known; another one is estimated. Priors play no part, except that the search starts in their middle.
    """

    def __init__(self, model: pm.Model, *, data: Any = None, draws: int = 1000, **options: Any) -> None:
        filters = filter_names(model)
        if len(model.observed_RVs) != 1 or not filters:
            raise ValueError("fit='pem' needs a model that observes one ODEFilter and nothing else.")
        if not isinstance(data, TimeSeries):
            raise TypeError(
                f"fit='pem' predicts a record, and data is {type(data).__name__}; give the record that the model was built "
                "with: calibrate(..., fit='pem', data=record)."
            )
        view = filter_view(model=model)
        self.record, self.draws, self.options, self.name = data, _count("draws", draws), options, view.name
        self.values, self.system, unknowns = Data(model), view.system, view.unknowns
        prior = Prior(model)
        free = prior.draw(2, np.random.default_rng(0))
        if unknowns.own:
            raise ValueError("fit='pem' takes parameters that all records share; the model has some for each record.")
        if self.system.latents or view.problem.form.sensors != PLAIN:
            raise ValueError(
                "fit='pem' takes Gaussian white noise of each output alone, and no processes; take 'nuts' or 'ibis' for this "
                "model."
            )
        graphs = [unknowns.params, unknowns.x0, unknowns.x0_std, unknowns.noise]
        function = compiled(model.free_RVs, replace_rng_nodes(graphs))
        found = [function(*(free[rv.name][i] for rv in model.free_RVs)) for i in range(2)]
        self.guess, self.fixed, self.names = {}, {}, {}
        (x0, moved), (std, other) = ([f[i] for f in found] for i in (1, 2))
        # Known numbers are given; what the model infers or marginalises is estimated, unless the options say otherwise.
        self.x0 = {} if np.any(std) else {"x0": dict(zip(self.system.states, x0[0], strict=True))}
        if not (np.array_equal(x0, moved) and np.array_equal(std, other)):
            self.x0 = {}
            for i, name in enumerate(self.system.states):
                source = None if std[0, i] or other[0, i] else _source(free, [float(x0[0, i]), float(moved[0, i])])
                if source is not None:
                    self.names[f"x0.{name}"] = source
        start = _initial(model)
        for i, name in enumerate(self.system.params):
            source = _source(free, [float(f[0][i]) for f in found])
            if source is None:
                self.fixed[name] = float(found[0][0][i])
                continue
            self.guess[name], self.names[name] = start[source], source
        for i, output in enumerate(self.system.outputs):
            source = _source(free, [float(f[3][i]) for f in found])
            if source is not None:
                self.names[f"noise_{output}"] = source

    def __call__(self, rng: np.random.Generator) -> Drawn:
        """Fit, and draw."""
        record = self.record.replace(y=self.values.current()[self.name])
        fit = fit_pem(self.system, record, self.guess, fixed=self.fixed, **{**self.x0, **self.options})
        if not fit.success:
            raise RuntimeError(f"fit_pem was not successful: {fit.message}")
        posterior = posterior_of(fit.laplace(self.draws, chains=1, random_seed=rng))
        drawn = {str(k): v.values for k, v in posterior.items()}
        params = self.system.params
        for name, where in params.vectors().items():
            if params.shapes[name] and name in drawn:
                drawn |= dict(zip(params[where], np.moveaxis(drawn[name].reshape(1, self.draws, -1), -1, 0), strict=True))
        values = {self.names[k]: v for k, v in drawn.items() if k in self.names}
        return Drawn(values, {"iterations": float(fit.nit)})


class FunctionRefit:
    """A user's function of the model and a generator, which returns draws with the dims chain and draw."""

    def __init__(self, model: pm.Model, function: Callable[[pm.Model, np.random.Generator], Any]) -> None:
        self.model, self.function = model, function

    def __call__(self, rng: np.random.Generator) -> Drawn:
        """Call it."""
        result = self.function(self.model, rng)
        if not isinstance(result, xr.DataTree | xr.Dataset):
            raise TypeError(f"fit returned {type(result).__name__}; return what pm.sample returns, or a Dataset of draws.")
        posterior = posterior_of(result)
        return Drawn({str(k): v.transpose("chain", "draw", ...).values for k, v in posterior.items()}, {})


FITS: dict[str, Callable[..., Refit]] = {"nuts": NUTSRefit, "ibis": IBISRefit, "annealing": AnnealingRefit, "pem": PEMRefit}


def refit_of(fit: Any, model: pm.Model, options: Mapping[str, Any]) -> Refit:
    """Fit by name or by a user's function."""
    if callable(fit):
        if options:
            raise TypeError(f"{sorted(options)} are settings of fits by name; let your own fit bring its settings.")
        return FunctionRefit(model, fit)
    if not among(fit, FITS):
        raise ValueError(f"fit is {fit!r}; give one of {sorted(FITS)}, or a function of (model, rng) that returns draws.")
    return FITS[fit](model, **options)


def _constrained(prior: Prior, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Free and deterministic variables of rows (chain, draw, d)."""
    flat = prior.coordinates.constrained(rows.reshape(-1, rows.shape[-1]))
    return {name: values.reshape(*rows.shape[:2], *values.shape[1:]) for name, values in flat.items()}


def _count(name: str, value: Any) -> int:
    return count(value, name, most=10**8)


def _initial(model: pm.Model) -> dict[str, float]:
    """Scalar free variables at the model's initial point, in their own space."""
    prior = Prior(model)
    point = model.initial_point()
    row = np.concatenate([np.ravel(point[v.name]) for v in model.value_vars]).astype(float)
    return {k: float(v[0]) for k, v in prior.coordinates.constrained(row[None]).items() if v.ndim == 1}


def _source(free: Mapping[str, np.ndarray], values: list[float]) -> str | None:
    """Free variable that a quantity is, judged by two draws; None if it is a number."""
    if values[0] == values[1]:
        return None
    names = [name for name, drawn in free.items() if drawn.ndim == 1 and drawn.tolist() == values]
    if not names:
        raise ValueError(
            "fit='pem' needs parameters and noise that are scalar free variables or numbers; the model has expressions of "
            "variables, or entries of vectors. Give each entry a variable of its own, or take another fit."
        )
    return names[0]
