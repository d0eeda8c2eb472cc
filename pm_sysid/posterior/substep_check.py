"""Whether the step of the filter biases the posterior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pm_sysid.arguments import count
from pm_sysid.idata import posterior_of, some_draws
from pm_sysid.likelihood.beyond_draws import FEWEST
from pm_sysid.likelihood.coordinates import model_of
from pm_sysid.likelihood.filter_steps import stands_for_error, unknowns_at, wall_beyond
from pm_sysid.likelihood.filter_view import FilterView, filter_names, filter_view
from pm_sysid.posterior.reweighting import Reweighted, reweighted
from pm_sysid.progress import announced
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.functions import compiled
from pm_sysid.solve.filter_graph import RecordData
from pm_sysid.solve.filter_substeps import LOGLIK_TOLERANCE, LogLikelihoodCriterion
from pm_sysid.solve.substeps import cut

#: About how many of the draws say where the posterior is when parameters beyond them are looked at.
LOOKED_AT = 40


@dataclass(frozen=True, repr=False)
class SubstepCheck(Reweighted):
    """Outcome of :func:`check_substeps`; printing it gives a verdict in words.

    Attributes
    ----------
    substeps, finer : int
        Filter steps a sample of the model, and those it was compared with.
    change : ndarray, shape (draws,)
        By how much the log-likelihood of each posterior draw changes.
    shift : dict of str to float
        By how many posterior standard deviations the posterior mean of each parameter moves.
    stretch : dict of str to float
        What the posterior standard deviation of each parameter is multiplied by.
    ess : float
        Effective share of the draws after reweighting to the finer steps; small where the two posteriors hardly overlap.
    beyond : str
        Where, beyond the draws, finer steps allow parameters that the present ones rule out; empty if nowhere.
    event : str
        When the equations change between the steps, coarse and fine, so that both pass over it, and what to do; empty
        if they do not, or if it does not matter.
    free_diffusion : bool
        Whether the diffusion is a parameter of the model: it may stand for process noise, whose size is meant for the present
        number of steps, so that another posterior with finer ones is no sign of integration error.
    """

    substeps: int
    finer: int
    beyond: str = ""
    event: str = ""
    free_diffusion: bool = False

    @property
    def level(self) -> str:
        """``"good"``, ``"look"`` or ``"bad"``."""
        if self.beyond or self.event:
            return "bad"
        return "look" if self.free_diffusion and super().level == "bad" else super().level

    @property
    def verdict(self) -> str:
        """What it means, in a sentence."""
        if self.event:
            return (
                f"{self.substeps} filter steps a sample, and {self.finer} as well, pass over what moves the log-likelihood."
                f"{self.event} Then sample again."
            )
        if self.beyond:
            return (
                f"{self.substeps} filter steps a sample rule out a part of the posterior: {self.beyond} Call "
                f"set_substeps({self.finer}) (or build the ODEFilter with a higher order) and sample again."
            )
        steps = f"With {self.finer} instead of {self.substeps} filter steps a sample"
        if self.free_diffusion and self.level != "good":
            name, shift = self.worst
            return (
                f"{steps} the posterior would be another one: the mean of {name} would move by {abs(shift):.2g} posterior "
                f"standard deviations, and of 100 draws {100 * self.ess:.0f} would still count. The diffusion is a "
                "parameter, and the number of steps belongs to what it means: whether there is integration error, only a "
                "filter that calibrates its diffusion ('mle') can tell."
            )
        remedy = f"Call set_substeps({self.finer}) (or build the ODEFilter with a higher order) and sample again."
        return self.said(steps, "integration error", remedy)

    def __repr__(self) -> str:
        return f"{self.verdict}\n{self.details}"


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

    ``substeps="auto"`` judges the step before sampling, at prior draws and on synthetic records. This judges it afterwards, on
    the record itself, where the posterior is: its draws are weighted by the likelihood with ``factor`` times as many substeps.
    :func:`settle_substeps` does so too, in less detail, and takes the steps that are missing. A diffusion that is a
    parameter of the model may stand for process noise; the number of steps then belongs to it, and is not called too small.

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
    ...     lambda t, x, u, p: -p.rate * x.level,
    ...     states=("level",),
    ...     params=("rate",),
    ...     observe=lambda t, x, dx, u, p: x.level,
    ... )
    >>> t = np.linspace(0.0, 2.0, 21)
    >>> with pm.Model() as model:
    ...     rate = {"rate": pm.LogNormal("rate")}
    ...     _ = sid.ODEFilter(
    ...         "y",
    ...         decay,
    ...         sid.TimeSeries(t, None, np.exp(-t)),
    ...         rate,
    ...         noise=0.1,
    ...         x0=1.0,
    ...         substeps=1,
    ...     )
    >>> draws = np.random.default_rng(1).normal(1.0, 0.05, (2, 200))
    >>> sid.check_substeps(xr.Dataset({"rate": (("chain", "draw"), draws)}), model=model)
    With 2 instead of 1 filter steps a sample the mean of rate would move ... integration error does not matter here.
      log-likelihood changes by ...
      shift in posterior standard deviations: rate ...
    """
    model = model_of(model)
    for label, value, least in (("factor", factor, 2), ("draws", draws, 2)):
        count(value, label, least)
    view = filter_view(name, model)
    problem, coarse, fine = view.problem, view.op.substeps, view.op.substeps * int(factor)
    posterior = posterior_of(idata)
    records = view.records_or(data)
    view.check_same(idata)
    few, points = some_draws(posterior, model.free_RVs, draws)

    arrays = RecordData.symbolic()
    loglik, _ = problem.run(view.y, view.unknowns, arrays)
    function = announced("log-likelihood", lambda: compiled([*model.free_RVs, *arrays], pt.sum(loglik)))
    sums, grids = [], view.op.grid.choice.grids
    for substeps in (coarse, fine):
        known = problem.data(records, cut(grids, substeps))
        sums.append([float(function(*p, *known)) for p in points])
    before, after = np.array(sums)
    if not np.isfinite(before).any() or not np.isfinite(after).any():
        raise ValueError("the log-likelihood is not finite at any of the draws; does idata belong to this model and its data?")
    change = np.where(np.isfinite(before), after - before, -np.inf)
    wall = None
    if data is None and len(points) >= FEWEST and stands_for_error(view):
        views = {n: filter_view(n, model) for n in filter_names(model)}
        wall = wall_beyond(views, [view.name], points[:: max(1, len(points) // LOOKED_AT)], points)()
    event = _between(view, records, points[:: max(1, len(points) // LOOKED_AT)], fine)
    said = "" if wall is None else wall.words
    return SubstepCheck(*reweighted(few, change), coarse, fine, said, event, view.free_diffusion)


def _between(view: FilterView, records: Sequence[TimeSeries], points: Sequence[Sequence[np.ndarray]], finer: int) -> str:
    """What steps of both kinds pass over at some draws, in words; empty if that does not matter, or no equation is abrupt."""
    if not view.system.abrupt:
        return ""
    at, y = unknowns_at(view, points), np.concatenate([r.output_matrix for r in records])
    grids = view.op.grid.choice.grids
    criterion = LogLikelihoodCriterion(view.problem, records, at, [y] * len(at), "", 0.5, grids=grids)
    half = -(-finer // 2)
    return criterion.event(half) if criterion.unseen(2 * half) >= LOGLIK_TOLERANCE else ""
