"""Log-likelihood of every sample for the draws of a posterior: taken from the result if there, else computed."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pm_sysid.arguments import among, seed, shown, whole
from pm_sysid.compat import SimulatorRV
from pm_sysid.idata import posterior_of, thinned
from pm_sysid.likelihood.coordinates import model_of
from pm_sysid.likelihood.filter_view import FilterView, filter_view
from pm_sysid.likelihood.target import Target
from pm_sysid.posterior.observed import check_sampled_on, measured_samples
from pm_sysid.posterior.own_parameters import OwnParameters

#: Most values that a likelihood is averaged over.
MOST = 10_000

type Space = Literal["model", "unconstrained"]


class Likelihood(NamedTuple):
    """Pointwise log-likelihood (chain, draw, point), also at the posterior mean, and the draws it belongs to."""

    draws: xr.DataArray
    posterior: xr.Dataset
    size: int | None  # of the unconstrained space
    at_mean: np.ndarray | None
    mean: dict[str, np.ndarray]


def evaluate(
    idata: Any, model: pm.Model | None, *, draws: int | None = None, space: Space = "model", mean: bool = True
) -> Likelihood:
    """Pointwise log-likelihood of posterior draws, and at their mean if asked for."""
    if not among(space, ("model", "unconstrained")):
        raise ValueError(f"space is {space!r}; give 'model' or 'unconstrained'.")
    model = pm.Model.get_context(error_if_none=False) if model is None else model
    posterior = posterior_of(idata)
    if model is not None:
        _check_likelihood(model_of(model))
        check_sampled_on(idata, model)
    picked = thinned(posterior, draws)
    posterior = posterior.isel(draw=picked)
    stored = _stored(idata, model, picked)
    if model is None:
        if mean or stored is None:
            what = "the log-likelihood at the posterior mean" if stored is not None else "the log-likelihood"
            raise ValueError(f"model is None, and none is on the context stack, but {what} must be computed; give the model.")
        return Likelihood(_points(stored), posterior, None, None, {})
    target = Target(model)
    names = [str(v.name) for v in model.free_RVs]
    if missing := [n for n in names if n not in posterior]:
        raise ValueError(f"the posterior lacks the model's variables {missing}; it has {sorted(map(str, posterior))}.")
    posterior = posterior[names]
    flat = {n: _pooled(posterior[n]) for n in names}
    everything = np.arange(target.n_samples + 1)
    at: np.ndarray | None = None
    centre: dict[str, np.ndarray] = {}
    if mean:
        if space == "model":
            centre = {n: v.mean(axis=0) for n, v in flat.items()}
            particle = target.unconstrained({n: v[None] for n, v in centre.items()})
        else:
            particle = target.unconstrained(flat).mean(axis=0, keepdims=True)
            centre = {n: v[0] for n, v in target.constrained(particle).items() if n in flat}
        last = target.unconstrained({n: v[-1:] for n, v in flat.items()})
        at, check = target.log_likelihood(np.concatenate([particle, last]), edges=everything)
        if stored is not None:
            _same(stored.values[-1, -1], check)
    if stored is None:
        values = target.log_likelihood(target.unconstrained(flat), edges=everything)
        shape = (posterior.sizes["chain"], posterior.sizes["draw"], target.n_samples)
        stored = xr.DataArray(values.reshape(shape), dims=("chain", "draw", "point"))
    points = _points(stored, measured_samples(model, stored.sizes["point"]))
    return Likelihood(points, posterior, target.size, None if at is None else at[points["point"].values], centre)


def log_likelihood_by_record(
    idata: Any, *, model: pm.Model | None = None, name: str | None = None, integrate: int = 0, random_seed: Any = None
) -> xr.DataTree:
    """Log-likelihood of each record in place of each sample: with it, ``az.loo`` leaves out one specimen at a time.

    Parameters
    ----------
    idata : xarray.DataTree or xarray.Dataset
        Posterior draws. Pointwise log-likelihoods are taken from the group ``log_likelihood`` if it exists, else computed.
    model : pm.Model, optional
        Default: the model on the context stack.
    name : str, optional
        Name of the :class:`ODEFilter`; needed if the model has several.
    integrate : int, default 0
        Over how many values of a specimen's own parameters its likelihood is averaged for each draw; 0: it is that of the draw.
        With 50 the leave-one-out that follows is that of a specimen of which nothing but the population is known.
    random_seed : int or numpy.random.Generator, optional
        Seed of these values.

    Returns
    -------
    xarray.DataTree
        The groups ``posterior`` and ``log_likelihood``, which has the filter's name with dims (chain, draw, record). With
        ``integrate`` also ``integration``, whose ``effective`` (chain, draw, record) is the effective number of values.

    Raises
    ------
    ValueError, TypeError
        If there is no such filter or no posterior, if the filter is not all that the model observes, or has a single record;
        if the posterior was sampled on other data than the model holds (by its group ``observed_data``); with ``integrate``,
        if no free variable of the model has an entry for each record that enters this record alone.

    Warns
    -----
    UserWarning
        If the values that were drawn are too few.

    Notes
    -----
    Given the parameters of a specimen, the record of this specimen is all that says what they are. Importance sampling has to
    reach from the posterior to what the other specimens say alone, which is far: the Pareto k that ``az.loo`` reports is then
    too large. With ``integrate`` the parameters of the specimen are integrated out first,
    ``p(y_r | shared) = E[p(y_r | own, shared)]`` over their prior given what is shared (by importance sampling from t
    distributions at the mode given the shared parameters of each draw), and what is left out moves the shared parameters alone.
    Source: Merkle, Furr and Rabe-Hesketh (2019), Bayesian comparison of latent variable models: conditional versus marginal
    likelihoods, Section 3.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr, pm_sysid as sid
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level,
    ...     states=("level",),
    ...     params=("rate",),
    ...     observe=lambda t, x, dx, u, p: x.level,
    ... )
    >>> records = [
    ...     sid.TimeSeries(np.arange(5) / 4, None, np.exp(-r * np.arange(5) / 4))
    ...     for r in (1.0, 1.2, 1.4)
    ... ]
    >>> with pm.Model() as model:
    ...     rate = pm.LogNormal("rate", 0.0, 0.3, shape=3)
    ...     _ = sid.ODEFilter(
    ...         "y", decay, records, dict(rate=rate), noise=0.1, x0=1.0, substeps=1
    ...     )
    >>> posterior = xr.Dataset(
    ...     {"rate": (("chain", "draw", "specimen"), [[[1.0, 1.2, 1.4], [1.1, 1.1, 1.3]]])}
    ... )
    >>> sid.log_likelihood_by_record(posterior, model=model)["log_likelihood"]["y"].sizes[
    ...     "record"
    ... ]
    3
    """
    view = filter_view(name, model)
    if view.n_records == 1:
        raise ValueError(f"{view.name!r} has a single record; give the model a list of them, or use az.loo on its samples.")
    if len(view.model.observed_RVs) != 1:
        names = [v.name for v in view.model.observed_RVs]
        raise ValueError(f"the model observes {names}; only of a model with one ODEFilter does a record have a log-likelihood.")
    if not whole(integrate, 0, MOST):
        raise ValueError(f"integrate is {shown(integrate)}; give a number of values from 0 to {MOST}, such as 50.")
    seed(random_seed)
    if integrate:
        return _integrated(idata, view, int(integrate), np.random.default_rng(random_seed))
    found = evaluate(idata, view.model, mean=False)
    record = np.cumsum(view.arrays().counts < 0)[found.draws["point"].to_numpy()]
    sums = found.draws.assign_coords(record=("point", record)).groupby("record").sum("point")
    group = xr.Dataset({view.name: sums.transpose("chain", "draw", "record")})
    return xr.DataTree.from_dict({"posterior": found.posterior, "log_likelihood": group})


def _integrated(idata: Any, view: FilterView, values: int, rng: np.random.Generator) -> xr.DataTree:
    """The same with each specimen's own parameters integrated out."""
    posterior = posterior_of(idata)
    check_sampled_on(idata, view.model)
    target = Target(view.model)
    names = [str(v.name) for v in view.model.free_RVs]
    if missing := [n for n in names if n not in posterior]:
        raise ValueError(f"the posterior lacks the model's variables {missing}; it has {sorted(map(str, posterior))}.")
    particles = target.unconstrained({n: _pooled(posterior[n]) for n in names})
    counts = view.arrays().counts
    edges = np.concatenate([[0], np.flatnonzero(counts < 0), [len(counts)]])
    own = OwnParameters(target, edges, particles[-1])
    found = own.integrated(particles, values, rng)
    dims, shape = ("chain", "draw", "record"), (posterior.sizes["chain"], posterior.sizes["draw"], view.n_records)
    coords = {d: posterior[d] for d in dims[:2] if d in posterior.coords}
    groups = {
        "posterior": posterior[names],
        "log_likelihood": xr.Dataset({view.name: (dims, found.log_likelihood.reshape(shape))}, coords),
        "integration": xr.Dataset({"effective": (dims, found.effective.reshape(shape))}, coords),
    }
    return xr.DataTree.from_dict(groups)


def _pooled(value: xr.DataArray) -> np.ndarray:
    """Values of all draws, shape (draws, ...)."""
    array = value.transpose("chain", "draw", ...).to_numpy()
    return array.reshape(-1, *array.shape[2:])


def _stored(idata: Any, model: pm.Model | None, picked: np.ndarray) -> xr.DataArray | None:
    """Log-likelihood of each sample (chain, draw, point) from the group of that name, if it has what the model observes."""
    if not isinstance(idata, xr.DataTree) or "log_likelihood" not in idata.children:
        return None
    group = idata["log_likelihood"].to_dataset()
    names = list(group) if model is None else [v.name for v in model.observed_RVs]
    if not names or any(n not in group for n in names):
        return None
    totals = {}
    for name in names:
        values = group[name].transpose("chain", "draw", ...).isel(draw=picked).to_numpy()
        if values.ndim < 3:
            raise ValueError(f"the log-likelihood of {name!r} is one number a draw; it must be a series over samples.")
        values = np.where(np.isnan(values).all(axis=(0, 1)), 0.0, values)
        totals[name] = values.sum(axis=tuple(range(3, values.ndim)))
    lengths = {name: total.shape[2] for name, total in totals.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"the variables of the log-likelihood have different numbers of samples: {lengths}; the criteria take the samples "
            "of all variables together, so give as many of each."
        )
    return xr.DataArray(sum(totals.values()), dims=("chain", "draw", "point"))


def _same(stored: np.ndarray, computed: np.ndarray) -> None:
    """Refuse a stored log-likelihood that the model does not have."""
    total = float(computed.sum())
    if stored.shape != computed.shape or not abs(float(stored.sum()) - total) <= 0.01 + 1e-6 * abs(total):
        raise ValueError(
            f"the group log_likelihood has {stored.sum():.6g} over {stored.size} samples for the last draw, but the model has "
            f"{total:.6g} over {computed.size}: another model or other data. Give the model it was computed with, or drop the "
            "group."
        )


def _check_likelihood(model: pm.Model) -> None:
    simulators = [str(v.name) for v in model.observed_RVs if isinstance(v.owner.op, SimulatorRV)]
    if simulators:
        raise ValueError(
            f"{simulators} have no likelihood (pm.Simulator), and so no criteria; sample_abc_ns compares such models by their "
            "probabilities."
        )


def _points(values: xr.DataArray, known: np.ndarray | bool = False) -> xr.DataArray:
    """Leave out samples where nothing was measured; refuse draws the model cannot have.

    A sample at the limit of a sensor may be certain for all draws: its log-likelihood is zero, and it is among the ``known``.
    """
    failed = ~np.isfinite(values.values).all(axis=2)
    if failed.any():
        raise ValueError(
            f"the log-likelihood of {failed.sum()} of {failed.size} draws is not finite; the draws are not from the posterior "
            "of this model, or were made with another solver or record."
        )
    measured = known | np.any(values.values != 0.0, axis=(0, 1))
    if not measured.any():
        raise ValueError("the record has no measurement: the log-likelihood of every sample is zero.")
    kept = values if measured.all() else values[..., measured]
    return kept.assign_coords(point=np.flatnonzero(measured))
