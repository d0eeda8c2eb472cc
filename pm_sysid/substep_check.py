"""Whether the step of the filter biases the posterior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr
from scipy.special import logsumexp

from pm_sysid.context import model_of
from pm_sysid.doors import count
from pm_sysid.innovations import points_of
from pm_sysid.likelihood import filter_variable
from pm_sysid.moments import elements, posterior_of, thinned
from pm_sysid.prediction import Source, only_filter
from pm_sysid.problem import RecordData, Unknowns, check_records
from pm_sysid.timeseries import TimeSeries

#: A posterior mean that moves by less than this many standard deviations stays where it is for every purpose.
FINE, VISIBLE = 0.1, 0.5
#: Below this share of effective draws reweighting says only that the posteriors differ; above the other, that they do not.
FEW, MOST = 0.1, 0.8


@dataclass(frozen=True, repr=False)
class SubstepCheck:
    """Outcome of :func:`check_substeps`; printing it gives a verdict in words.

    Attributes
    ----------
    substeps, finer : int
        Filter steps a sample of the model, and those it was compared with.
    change : ndarray, shape (draws,)
        By how much the log-likelihood of each posterior draw changes.
    shift : dict of str to float
        By how many posterior standard deviations the posterior mean of each parameter moves.
    ess : float
        Effective share of the draws after reweighting to the finer steps; small where the two posteriors hardly overlap.
    """

    substeps: int
    finer: int
    change: np.ndarray
    shift: dict[str, float]
    ess: float

    @property
    def worst(self) -> tuple[str, float]:
        """Parameter that moves most, and by how many standard deviations."""
        return max(self.shift.items(), key=lambda item: abs(item[1]))

    @property
    def level(self) -> str:
        """``"good"``, ``"look"`` or ``"bad"``."""
        size = abs(self.worst[1])
        if self.ess < FEW or not size < VISIBLE:
            return "bad"
        return "look" if size >= FINE or self.ess < MOST else "good"

    @property
    def verdict(self) -> str:
        """What it means, in a sentence."""
        name, shift = self.worst
        steps = f"With {self.finer} instead of {self.substeps} filter steps a sample"
        remedy = f"Build the ODEFilter with substeps={self.finer} (or a higher order) and sample again."
        if self.ess < FEW:
            share = f"of 100 draws {100 * self.ess:.0f} would still count"
            return f"{steps} the posterior would be another one ({share}): integration error biases it. {remedy}"
        moved = f"{steps} the mean of {name} would move by {abs(shift):.2g} posterior standard deviations"
        if self.level == "good":
            return f"{moved}, all others by less: integration error does not matter here."
        if self.level == "bad":
            return f"{moved}: integration error biases the posterior. {remedy}"
        shape = f", and the posterior have another shape (of 100 draws {100 * self.ess:.0f} would still count)"
        return f"{moved}{shape if self.ess < MOST else ''}: integration error can be seen. {remedy}"

    def __repr__(self) -> str:
        shifts = ", ".join(f"{name} {shift:+.2g}" for name, shift in self.shift.items())
        return (
            f"{self.verdict}\n  log-likelihood changes by {self.change.mean():+.3g} ± {self.change.std():.2g} over the draws\n"
            f"  shift in posterior standard deviations: {shifts}"
        )


def check_substeps(
    idata: Any,
    *,
    model: pm.Model | None = None,
    name: str | None = None,
    data: TimeSeries | Sequence[TimeSeries] | None = None,
    factor: int = 2,
    draws: int = 200,
) -> SubstepCheck:
    """Compare a posterior with what it would be with finer filter steps, without sampling again.

    ``substeps="auto"`` judges the step before sampling, at one point, on a synthetic record. This judges it afterwards, on
    the record itself, where the posterior is: its draws are weighted by the likelihood with ``factor`` times as many substeps.

    Parameters
    ----------
    idata : xarray.DataTree or xarray.Dataset
        Posterior draws, with dims ``chain`` and ``draw``.
    model : pm.Model, optional
        Default: the model on the context stack.
    name : str, optional
        Name of the :class:`ODEFilter`; needed if the model has several.
    data : TimeSeries or list of them, optional
        The records of the filter. By default they are read back from the model, which no longer knows whether a record is
        periodic.
    factor : int, default 2
        By how much to refine.
    draws : int, default 200
        About this many draws, evenly spaced.

    Returns
    -------
    SubstepCheck

    Raises
    ------
    ValueError
        If there is no such filter or no posterior, or arguments are impossible.

    Notes
    -----
    Importance weights ``p(y | draw, finer) / p(y | draw)``; the error that is left with the finer steps is not seen.

    Examples
    --------
    >>> import numpy as np, pymc as pm, xarray as xr, pm_sysid as sid
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    ... )
    >>> record = sid.TimeSeries(np.linspace(0.0, 2.0, 21), None, np.exp(-np.linspace(0.0, 2.0, 21)))
    >>> with pm.Model() as model:
    ...     rate = pm.LogNormal("rate")
    ...     _ = sid.ODEFilter("y", decay, record, dict(rate=rate), noise=0.1, x0=1.0, substeps=1)
    >>> draws = np.random.default_rng(1).normal(1.0, 0.05, (2, 200))
    >>> sid.check_substeps(xr.Dataset({"rate": (("chain", "draw"), draws)}), model=model)
    With 2 instead of 1 filter steps a sample the mean of rate would move ... integration error does not matter here.
      log-likelihood changes by ...
      shift in posterior standard deviations: rate ...
    """
    model = model_of(model)
    for label, value, least in (("factor", factor, 2), ("draws", draws, 2)):
        count(value, label, least)
    label = only_filter(model) if name is None else name
    op, rv, _ = filter_variable(label, model)
    source = Source(idata, model, label)
    records = source.records() if data is None else check_records(op.problem.system, data)
    posterior = posterior_of(idata)
    few = posterior.isel(draw=thinned(posterior, draws))[[v.name for v in model.free_RVs if v.name in posterior]]
    points = points_of(few, model, few.sizes["chain"] * few.sizes["draw"])

    arrays = RecordData(*(pt.tensor(dtype=a.dtype, shape=(None,) * a.ndim) for a in op.problem.data(records, 1)))
    value = model.rvs_to_values[rv]
    loglik, _ = op.problem.run(value[:, None] if op.flat else value, Unknowns(*rv.owner.inputs[1:6]), arrays)
    function = pytensor.function([*model.free_RVs, *arrays], pt.sum(loglik), on_unused_input="ignore")
    sums = []
    for substeps in (op.substeps, op.substeps * int(factor)):
        known = op.problem.data(records, substeps)
        sums.append([float(function(*p, *known)) for p in points])
    coarse, fine = np.array(sums)
    if not np.isfinite(coarse).any() or not np.isfinite(fine).any():
        raise ValueError("the log-likelihood is not finite at any of the draws; does idata belong to this model and its data?")
    change = np.where(np.isfinite(coarse), fine - coarse, -np.inf)
    weights = np.exp(change - logsumexp(change))
    shift, ess = _shift(few, weights), float(1.0 / (len(weights) * np.sum(weights**2)))
    return SubstepCheck(op.substeps, op.substeps * int(factor), change, shift, ess)


def _shift(draws: xr.Dataset, weights: np.ndarray) -> dict[str, float]:
    """Change of the mean by weighting, in standard deviations, by parameter."""
    values = elements(draws)
    flat = values.transpose("chain", "draw", "parameter").to_numpy().reshape(len(weights), -1)
    spread = np.maximum(flat.std(axis=0), np.finfo(float).tiny)
    moved = (weights @ flat - flat.mean(axis=0)) / spread
    return dict(zip(map(str, values["parameter"].to_numpy()), map(float, moved), strict=True))
