"""The steps of the ODE filters of a model, changed in place and judged again where its posterior is."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import xarray as xr

from pm_sysid.arguments import among, count, shown, whole
from pm_sysid.idata import points_of, posterior_of
from pm_sysid.likelihood.beyond_draws import FEWEST, WALL, BeyondDraws, Wall
from pm_sysid.likelihood.coordinates import model_of
from pm_sysid.likelihood.filter_view import FilterView, filter_names, filter_view
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.recurrence.functions import compiled
from pm_sysid.solve.filter_graph import Unknowns
from pm_sysid.solve.filter_substeps import (
    LEAST,
    LOGLIK_TOLERANCE,
    LogLikelihoodCriterion,
    adaptive_steps,
    enough_for_slopes,
    filter_substeps,
    following_steps,
    on_grids,
)
from pm_sysid.solve.substeps import LIMIT, MOST, StepChoice, in_words, searched_substeps, settled_substeps, warn

#: Samples, summed over the points, for which a log-likelihood is computed: fewer points for long records, but at least one.
MOST_EVALUATED = 400_000
#: About how many of the points tell what steps of their own would say.
OWN = 4
#: About how many draws tell whether the steps did for the posterior that they were drawn from.
JUDGED = 20
#: How much farther from the mean the likelihood is looked at for a wall, and a change of it in nats that is one.
FARTHER, STEEP = 3.0, 1.0
#: By how many nats such a point may be less likely than a Gaussian posterior with the draws' log-likelihoods says: less likely
#: ones are no part of the posterior, and where a log-likelihood is minus millions its digits say nothing.
BEYOND = 20.0
#: Draws that tell where a posterior is, when parameters beyond it are looked at.
LOCATING = 400
#: Steps over those that a search is on its way with.
QUARTER = 4
#: A number of steps has to do for this share of the points given.
SHARE = 0.9


def set_substeps(
    substeps: int | Literal["auto"] | Mapping[str, int | Literal["auto"]], model: pm.Model | None = None
) -> dict[str, StepChoice]:
    """Give the ODE filters of a model another number of steps, without building the model anew: :func:`set_data` for steps.

    Functions that are compiled already, such as those of :class:`Target`, take the new steps too, since the arrays of a record
    are shared variables. A number that is set is obeyed, and not judged.

    Parameters
    ----------
    substeps : int, "auto" or mapping by filter name
        Filter steps in a sampling interval, for every filter or for those named. ``"auto"`` judges them as
        :class:`ODEFilter` does.
    model : pm.Model, optional
        Default: the model on the context stack.

    Returns
    -------
    dict of str to StepChoice
        What each filter of the model takes now.

    Raises
    ------
    ValueError
        For a number that is no positive integer, a name that is no filter, or a model without filters.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pm_sysid as sid
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    ... )
    >>> t = np.linspace(0.0, 2.0, 21)
    >>> with pm.Model() as model:
    ...     rate = {"rate": pm.LogNormal("rate")}
    ...     _ = sid.ODEFilter("y", decay, sid.TimeSeries(t, None, np.exp(-t)), rate, noise=0.1, x0=1.0, substeps=1)
    ...     sid.set_substeps(4)["y"].substeps
    4
    """
    views = _filters(model)
    if isinstance(substeps, Mapping):
        if unknown := [name for name in substeps if name not in views]:
            raise ValueError(f"substeps are given for {unknown[0]!r}; the filters of the model are {list(views)}.")
        wanted = dict(substeps)
    else:
        wanted = dict.fromkeys(views, substeps)
    for name, number in wanted.items():
        if not among(number, ("auto",)) and not whole(number, 1, LIMIT):
            raise ValueError(f"substeps of {name!r} are {shown(number)}; give a positive integer or 'auto'.")
    for name, number in wanted.items():
        view = views[name]
        if number == "auto" and view.op.grid.choice.grids is not None:
            raise ValueError(
                f"the steps of {name!r} follow the solution of its record already, or were given for each sampling interval; "
                "give the number that each is cut into, or judge them by settle_substeps."
            )
        if number == "auto":
            records = measured_records(view)
            choice = filter_substeps(view.problem, records, view.unknowns, "auto", view.model, name, graded=False)
        else:
            grids = view.op.grid.choice.grids
            choice = StepChoice(int(number), int(number), "nowhere, as it was set", np.nan, False, grids)
        _put(view, choice)
    return {name: view.op.grid.choice for name, view in views.items()}


def settle_substeps(
    at: Any, *, model: pm.Model | None = None, points: int = 20, where: str | None = None
) -> dict[str, StepChoice]:
    """Judge the steps of the ODE filters of a model at points of its posterior, and take more of them where they are too few.

    The log-likelihood of the record itself is computed again with twice and four times as many steps. Filters that were built
    with ``substeps="auto"`` take twice as many until that makes less than 0.1 for nine of ten points (and never fewer than
    they have). Filters with a number of steps keep it; a warning says if it is too small. Steps that follow a solution are
    doubled further, if one point is given, until the slope of the log-likelihood there stays within one percent. Where the
    diffusion is a parameter of the model, it may stand for process noise, of a size that depends on the number of steps; they
    are then left as they are.

    Parameters
    ----------
    at : mapping, sequence of mappings, or xarray.DataTree or Dataset
        A point (values of the free variables by name, such as ``mode.initvals``), several, or posterior draws.
    model : pm.Model, optional
        Default: the model on the context stack.
    points : int, default 20
        About this many of the draws, evenly spaced; fewer for records of more than 20 000 samples.
    where : str, optional
        What the points are, in words, for the log and :func:`substeps_attrs`: ``"at the mode"``.

    Returns
    -------
    dict of str to StepChoice
        What each filter takes now, where it was judged, and the error that is left. Where ``substeps`` has risen, what was
        computed before holds for the coarser steps: find the mode, or sample, again.

    Raises
    ------
    ValueError
        For points that lack free variables, a model without filters, or arguments that are impossible.

    Warns
    -----
    SubstepWarning
        Where no number of steps up to 32 is enough, or fewer were asked for.

    Notes
    -----
    At a dozen points or more, parameters beyond them are looked at as well: too few steps can rule out a part of the posterior,
    of which draws then know nothing. Where finer steps make such parameters as likely as the points, steps are doubled, or a
    warning says so.

    What the log-likelihood still moves by estimates the integration error in it: its spread over the posterior shifts means,
    and its mean shifts the evidence. A point at which it is minus infinity with few and many steps says nothing.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pm_sysid as sid
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    ... )
    >>> t = np.linspace(0.0, 2.0, 21)
    >>> with pm.Model() as model:
    ...     rate = {"rate": pm.LogNormal("rate")}
    ...     _ = sid.ODEFilter("y", decay, sid.TimeSeries(t, None, np.exp(-t)), rate, noise=0.1, x0=1.0)
    ...     chosen = sid.settle_substeps({"rate": 1.0})["y"]
    >>> chosen.substeps, chosen.where, chosen.settled
    (1, 'at the point given', True)
    """
    views, points = _filters(model), count(points, "points")
    rows, said = _points(at, model_of(model), points)
    where = said if where is None else where
    if not isinstance(where, str):
        raise TypeError(f"where is {shown(where)}; give text, such as 'at the mode'.")
    _settle(views, rows, where, _points(at, model_of(model), max(points, LOCATING))[0])
    return {name: view.op.grid.choice for name, view in views.items()}


def _settle(
    views: Mapping[str, FilterView],
    rows: Sequence[Sequence[np.ndarray]],
    where: str,
    located: Sequence[Sequence[np.ndarray]] = (),
) -> None:
    """Judge the steps of filters at values of the free variables, and put in more where there are too few.

    With many values, ``located``, parameters beyond them are looked at as well. Filters whose diffusion is a parameter keep
    theirs: the number of steps belongs to what such a diffusion means.
    """
    for name, view in views.items():
        if view.free_diffusion:
            continue
        samples = sum(len(r) for r in _records(view))
        few = rows[:: max(1, -(-len(rows) * samples // MOST_EVALUATED))]
        choice = _judged(name, view, unknowns_at(view, few), where)
        if choice.replaces(view.op.grid.choice):
            _put(view, choice)
        view.op.grid.choice = choice
    if len(located) >= FEWEST:
        _settle_beyond(views, rows, located, where)


def wall_beyond(
    views: Mapping[str, FilterView],
    judged: Collection[str],
    rows: Sequence[Sequence[np.ndarray]],
    located: Sequence[Sequence[np.ndarray]],
) -> Callable[[], Wall | None]:
    """What looks for a wall beyond draws that finer steps of some filters move, by the steps that they have at each call.

    The likelihood is computed at ``rows``; ``located`` are more draws, which tell where the posterior is.
    """
    samples = sum(len(r) for v in views.values() for r in _records(v))
    look = BeyondDraws(next(iter(views.values())).model, views, rows, located, MOST_EVALUATED // max(samples, 1))
    return lambda: look.wall(lambda name, at, factor: _values(views[name], at, factor if name in judged else 1))


def stands_for_error(view: FilterView) -> bool:
    """Whether a filter's diffusion is no more than its integration error, so that its likelihood settles with more steps.

    Beyond draws of discrete variables there is nothing between one value and the next to look at: such models do not count.
    """
    continuous = all(np.issubdtype(v.type.dtype, np.floating) for v in view.model.free_RVs)
    return continuous and not view.op.grid.choice.grids and view.finds_diffusion and len(view.measured()) > 1


def _settle_beyond(
    views: Mapping[str, FilterView],
    rows: Sequence[Sequence[np.ndarray]],
    located: Sequence[Sequence[np.ndarray]],
    where: str,
) -> None:
    """Take more equal steps while finer ones allow parameters beyond draws that the present ones rule out.

    Diffusions of the user's are left alone: the likelihood then depends on the number of steps by intent.
    """
    judged = [name for name, view in views.items() if stands_for_error(view)]
    if not judged:
        return
    look = wall_beyond(views, judged, rows, located)
    while (wall := look()) is not None:
        behind = [n for n in judged if wall.finer[n] > WALL / 2]
        taken = False
        for name in behind:
            choice = views[name].op.grid.choice
            if choice.asked == "auto" and 2 * choice.substeps <= MOST:
                more = replace(choice, substeps=2 * choice.substeps, where=f"{where} and beyond")
                _put(views[name], more)
                taken = True
        if not taken:
            counts = ", ".join(f"{views[n].op.grid.choice.substeps} steps a sample of {n!r}" for n in behind)
            warn(
                f"With {counts or 'these steps'} a part of the posterior is ruled out: {wall.words} Take more substeps, or "
                "narrow the priors."
            )
            return


def _values(view: FilterView, rows: Sequence[Sequence[np.ndarray]], factor: int) -> np.ndarray:
    """Log-likelihoods of a filter at values of the free variables, with ``factor`` times its steps."""
    choice, y = view.op.grid.choice, view.measured()
    at = unknowns_at(view, rows)
    on = LogLikelihoodCriterion(view.problem, _records(view), at, [y] * len(at), "", SHARE, grids=choice.grids)
    return on.value(factor * choice.substeps)


def refined(at: Any, model: pm.Model, where: str, following: bool = False) -> bool:
    """Settle the steps of a model's filters, if it has any; whether one takes others now, and what was computed is outdated.

    Left alone is a filter with a number of steps and a diffusion of the user's: such a diffusion may stand for a disturbance,
    whose size is meant for that number. With ``following``, so are all whose steps do not follow the solution by themselves.
    """
    views = {name: filter_view(name, model) for name in filter_names(model)}
    if following:
        views = {name: view for name, view in views.items() if view.op.grid.choice.follows}
    views = {name: view for name, view in views.items() if view.op.grid.choice.asked == "auto" or view.finds_diffusion}
    before = {name: view.op.grid.choice for name, view in views.items()}
    if views:
        _settle(views, _points(at, model, 1)[0], where)
    return any(view.op.grid.choice.replaces(before[name]) for name, view in views.items())


def short_of_steps(draws: Any, model: pm.Model, take: bool = False) -> tuple[str, bool]:
    """What :func:`settle_substeps` has against the steps with which a posterior was drawn, in words; they stay as they are.

    With ``take`` filters that choose their steps take what is missing, and the second part says whether one has; nothing is
    said against those, since the draws have to be made again. As in :func:`refined`, a number of steps with a diffusion of the
    user's is left alone.
    """
    views = {name: filter_view(name, model) for name in filter_names(model)}
    views = {name: view for name, view in views.items() if view.op.grid.choice.asked == "auto" or view.finds_diffusion}
    before = {name: view.op.grid.choice for name, view in views.items()}
    said, taken = list[str](), False
    if not views:
        return "", taken
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _settle(views, _points(draws, model, JUDGED)[0], "on the posterior", _points(draws, model, LOCATING)[0])
        except KeyboardInterrupt:  # the draws are there
            said.append("Whether filters take enough steps was not judged to the end, since it was interrupted.")
    said += dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning))
    for name, view in views.items():
        now, then = view.op.grid.choice, before[name]
        if take and now.replaces(then) and then.asked == "auto":
            taken = True
            continue
        if now.replaces(then):
            more = f"{now.substeps} steps a sample" if now.grids is then.grids else "steps that follow another solution"
            said.append(
                f"The posterior was drawn with {then.substeps} steps a sample of {name!r} and needs {more}: call "
                "settle_substeps(idata) and sample again."
            )
            _put(view, then)
            view.op.grid.choice = then
    return " ".join(said), taken


def integration_error(draws: Any, model: pm.Model) -> float:
    """Error that the integration leaves in the log evidence, where the steps of a model's filters were found to do.

    The mean of what the log-likelihood of posterior draws still moves by with four times the steps, and the standard error of
    that mean; zero without such filters. Of steps that will not do, what was judged says so.
    """
    views = {name: filter_view(name, model) for name in filter_names(model)}
    # A diffusion that is a parameter, or a user's beside a number of steps, means another model with other steps.
    judged = {
        n: v for n, v in views.items() if v.finds_diffusion or (v.op.grid.choice.asked == "auto" and not v.free_diffusion)
    }
    views = {n: view for n, view in judged.items() if view.op.grid.choice.settled and len(view.measured()) > 1}
    if not views:
        return 0.0
    samples = sum(len(r) for view in views.values() for r in _records(view))
    rows = _points(draws, model, JUDGED)[0]
    few = rows[:: max(1, -(-len(rows) * samples // MOST_EVALUATED))]
    with np.errstate(invalid="ignore"):
        moved = np.sum([_values(view, few, 4) - _values(view, few, 1) for view in views.values()], axis=0)
    moved = moved[np.isfinite(moved)]
    return float(np.hypot(np.mean(moved), np.std(moved) / np.sqrt(moved.size))) if moved.size else 0.0


def twice(model: pm.Model) -> dict[str, StepChoice]:
    """Twice as many steps for the filters of a model whose likelihood settles with more equal steps; empty if there is none."""
    views = {name: filter_view(name, model) for name in filter_names(model)}
    choices = {name: view.op.grid.choice for name, view in views.items() if stands_for_error(view)}
    return {name: replace(c, substeps=2 * c.substeps, where="at the modes") for name, c in choices.items()}


def a_quarter(model: pm.Model) -> dict[str, StepChoice]:
    """A quarter of the steps for the filters of a model that have chosen at least four equal ones; empty if there is none."""
    views = {name: filter_view(name, model) for name in filter_names(model)}
    choices = {name: view.op.grid.choice for name, view in views.items() if stands_for_error(view)}
    many = {name: c for name, c in choices.items() if c.asked == "auto" and c.substeps >= QUARTER}
    return {name: replace(c, substeps=c.substeps // QUARTER, where="on the way to the modes") for name, c in many.items()}


class _Around(LogLikelihoodCriterion):
    """Log-likelihoods around modes, from which nothing of the tolerance is to be taken."""

    tolerance = LOGLIK_TOLERANCE / 4


def enough_around(points: Sequence[Mapping[str, Any]], model: pm.Model) -> dict[str, StepChoice]:
    """The steps that do at points around modes, for filters that took many more by the prior; empty if there is none.

    The tolerance is a quarter of that at other places, and every point counts: what lies farther out is judged afterwards.
    """
    found, free = {}, [_point(p, model) for p in points]
    for name in a_quarter(model):
        view = filter_view(name, model)
        now, y = view.op.grid.choice, view.measured()
        samples = sum(len(r) for r in _records(view))
        at = unknowns_at(view, free[:: max(1, -(-len(free) * samples // MOST_EVALUATED))])
        criterion = _Around(view.problem, _records(view), at, [y] * len(at), "around the modes", 1.0)
        # Steps are doubled twice to tell whether they do; more than there are would be no gain.
        substeps, error = searched_substeps(criterion, most=now.substeps // 2)
        if substeps is not None:
            found[name] = replace(now, substeps=substeps, where=criterion.where, error=error, settled=True)
    return found


def put_steps(choices: Mapping[str, StepChoice], model: pm.Model) -> dict[str, StepChoice]:
    """Give filters of a model these steps; those that they had."""
    views = {name: filter_view(name, model) for name in choices}
    before = {name: view.op.grid.choice for name, view in views.items()}
    for name, view in views.items():
        _put(view, choices[name])
    return before


def followed(point: Mapping[str, Any], model: pm.Model) -> bool | None:
    """Let the steps that follow a solution by themselves follow that at a point; None if no filter has such steps.

    False where no steps will do there: then they stay.
    """
    views = [filter_view(name, model) for name in filter_names(model)]
    views = [view for view in views if view.op.grid.choice.follows]
    if not views:
        return None
    free, where = [_point(point, model)], "where a search began"
    found = [following_steps(v.problem, measured_records(v), unknowns_at(v, free), where, v.name, say=False) for v in views]
    for view, choice in zip(views, found, strict=True):
        if choice is not None and None not in found:
            _put(view, choice)
    return None not in found


def substeps_attrs(model: pm.Model | None = None) -> dict[str, Any]:
    """How many steps the ODE filters of a model take, where that was judged and what error is left, for a result's attributes.

    Parameters
    ----------
    model : pm.Model, optional
        Default: the model on the context stack.

    Returns
    -------
    dict
        For each filter ``substeps_NAME`` (int), ``substeps_NAME_asked`` (text), ``substeps_NAME_judged`` (text) and
        ``substeps_NAME_error`` (nats; NaN where it was not judged): values that any file format can hold. Empty for a model
        without filters.

    Examples
    --------
    >>> import pymc as pm, pm_sysid as sid
    >>> with pm.Model() as model:
    ...     _ = pm.Normal("x")
    >>> sid.substeps_attrs(model)
    {}
    """
    model, found = model_of(model), dict[str, Any]()
    for name in filter_names(model):
        choice = filter_view(name, model).op.grid.choice
        found[f"substeps_{name}"] = choice.substeps
        found[f"substeps_{name}_asked"] = str(choice.asked)
        found[f"substeps_{name}_judged"] = choice.where
        found[f"substeps_{name}_error"] = float(choice.error)
    return found


def _filters(model: pm.Model | None) -> dict[str, FilterView]:
    """Views of the filters of a model, by name."""
    model = model_of(model)
    names = filter_names(model)
    if not names:
        raise ValueError("the model has no ODEFilter; give one that has, or simulate with substeps=...")
    return {name: filter_view(name, model) for name in names}


def _records(view: FilterView) -> list[TimeSeries]:
    """The records whose arrays a filter holds: those given, if the arrays are still theirs.

    They alone know whether they are periodic; and a band-limited input read off the arrays has gone through a spline once.
    """
    given, found = view.op.grid.records, view.records()
    same = len(given) == len(found) and all(
        len(a) == len(b) and np.array_equal(a.t, b.t) and np.allclose(a.input_matrix, b.input_matrix, rtol=1e-9, atol=0.0)
        for a, b in zip(given, found, strict=True)
    )
    return given if same else found


def measured_records(view: FilterView) -> list[TimeSeries]:
    """The records with the measurements that the model holds now."""
    return [r.replace(y=now.y) for r, now in zip(_records(view), view.records(), strict=True)]


def _put(view: FilterView, choice: StepChoice) -> None:
    """Exchange the arrays of a filter for those of another number of steps."""
    records = _records(view)
    view.put(view.problem.data(records, choice.steps()))
    view.op.grid.records, view.op.grid.choice = records, choice


def _points(at: Any, model: pm.Model, points: int) -> tuple[list[list[np.ndarray]], str]:
    """Values of the free variables at each point, and what the points are."""
    if isinstance(at, Mapping) and not isinstance(at, xr.Dataset | xr.DataTree):
        return [_point(at, model)], "at the point given"
    if isinstance(at, list | tuple):
        if not at or not all(isinstance(point, Mapping) for point in at):
            raise ValueError(f"at is {shown(at)}; give a dict of the free variables by name, several in a list, or draws.")
        return [_point(point, model) for point in at], f"at {len(at)} points given"
    posterior = posterior_of(at)
    picked = min(points, posterior.sizes["chain"] * posterior.sizes["draw"])
    return points_of(posterior, model.free_RVs, picked), f"at {picked} posterior draws"


def _point(point: Mapping[str, Any], model: pm.Model) -> list[np.ndarray]:
    """Values of the free variables, of the shapes they have."""
    if set(point) != {v.name for v in model.free_RVs}:
        names = [v.name for v in model.free_RVs]
        raise ValueError(f"at has values for {list(map(str, point))}; give a number for each free variable: {names}.")
    shapes, values = model.eval_rv_shapes(), []
    for rv in model.free_RVs:
        try:
            value = np.asarray(point[rv.name], dtype=rv.dtype)
        except (TypeError, ValueError):
            raise ValueError(f"at: {rv.name!r} is {shown(point[rv.name])}; give numbers.") from None
        if value.shape != tuple(shapes[rv.name]):
            raise ValueError(f"at: {rv.name!r} has the shape {value.shape}; in the model it is {tuple(shapes[rv.name])}.")
        values.append(value)
    return values


def unknowns_at(view: FilterView, points: Sequence[Sequence[np.ndarray]]) -> list[Unknowns]:
    """Numbers for what a filter depends on, at values of the free variables."""
    graphs = [pt.as_tensor_variable(v) for v in view.unknowns]
    mode = pytensor.compile.Mode(linker="py", optimizer=None)
    function = compiled(view.model.free_RVs, graphs, mode=mode)
    return [Unknowns(*function(*point)) for point in points]


def _judged(name: str, view: FilterView, at: Sequence[Unknowns], where: str) -> StepChoice:
    """The number of steps that will do at points, not fewer than there are; others where they followed another solution."""
    now, y, who = view.op.grid.choice, view.measured(), f"{name}: "
    options: dict[str, Any] = {"who": who, "grids": now.grids, "known": now.substeps}
    criterion = LogLikelihoodCriterion(view.problem, _records(view), at, [y] * len(at), where, SHARE, **options)
    if len(y) < 2:
        return now
    if now.follows:
        return _judged_following(view, at, now, criterion)
    auto = now.asked == "auto"
    chosen, error = settled_substeps(criterion, "auto" if auto else now.substeps, now.substeps)
    return replace(now, substeps=chosen, where=where, error=error, settled=error < LOGLIK_TOLERANCE)


def _judged_following(
    view: FilterView, at: Sequence[Unknowns], now: StepChoice, criterion: LogLikelihoodCriterion
) -> StepChoice:
    """Steps that follow a solution, judged at points; others, that follow the solutions there, where they will not do."""

    def error(choice: StepChoice) -> float:
        on = replace(criterion, grids=choice.grids)
        refined = on.change(on.value(choice.substeps), on.value(2 * choice.substeps))
        refined = max(refined, on.unseen(2 * choice.substeps)) if refined < LOGLIK_TOLERANCE else refined
        return refined if refined >= LOGLIK_TOLERANCE else max(refined, _by_own_steps(on, choice.substeps))

    found, left = now, error(now)
    if left >= LOGLIK_TOLERANCE:
        followed = following_steps(view.problem, measured_records(view), at, criterion.where, view.name)
        found, left = (now, left) if followed is None else (followed, error(followed))
    if not left < LOGLIK_TOLERANCE:
        warn(
            f"{view.name}: {criterion.where} the log-likelihood moves by {in_words(left)} if the steps are refined, or follow "
            "the solution of each point by itself: a front moves with the parameters, and the posterior may be wrong, and much "
            "too narrow. Give substeps as an array that is fine wherever the front may be, or narrower priors."
            f"{replace(criterion, grids=found.grids).event(found.substeps)}"
        )
    substeps = _for_gradients(view, at[0], found, criterion.where) if len(at) == 1 else found.substeps
    return replace(found, substeps=substeps, where=criterion.where, error=left, settled=left < LOGLIK_TOLERANCE)


def _for_gradients(view: FilterView, at: Unknowns, choice: StepChoice, where: str) -> int:
    """As many steps as gradients near one point need, which may be where a search is, or chains begin.

    At a mode the slope is zero; it is judged by measurements that are drawn with the parameters of the point. Where draws are
    given the gradients have done what they were for, and values say whether the draws can stay.
    """
    assert choice.grids is not None
    drawn = on_grids(view.problem, _records(view), [at], choice.grids, where, SHARE, view.name)
    return choice.substeps if drawn is None else enough_for_slopes(drawn, choice.substeps)


def _by_own_steps(on: LogLikelihoodCriterion, substeps: int) -> float:
    """By how much log-likelihoods at points move if the steps follow the solution of each point by itself.

    A likelihood that a front makes fail next to the point whose solution the steps follow has a sharp maximum there, and
    refining the steps does not show it. Nor do points that were drawn from it: beyond them, at ``FARTHER`` times their distance
    from their mean, a change by more than ``STEEP`` counts, if the point is a part of the posterior by either steps.
    """
    moved, values = [0.0], on.value(substeps)
    values = values[np.isfinite(values)]
    # Of a posterior of any number of unknowns, a point that is so many times as far loses so many squared times as much.
    possible = values.max() - FARTHER**2 * np.ptp(values) - BEYOND if values.size else -np.inf
    points = list(zip(on.at, on.y, strict=True))[:: max(1, len(on.at) // OWN)]
    mean = Unknowns(*(np.mean([np.asarray(v, float) for v in values], axis=0) for values in zip(*on.at, strict=True)))
    for at, y in points:
        beyond = at._replace(**{k: _away(getattr(mean, k), getattr(at, k)) for k in ("params", "x0")})
        for point, least in ((at, 0.0), (beyond, STEEP)):
            here = replace(on, at=[point], y=[y])
            grids = adaptive_steps(on.problem, on.records, [point])
            own = None if grids is None else replace(here, grids=grids).value(max(substeps, LEAST))
            if own is not None and np.isfinite(own).all():
                present = here.value(substeps)
                change, likely = here.change(present, own), np.nanmax([*present, *own])
                moved.append(change if change > least and (point is at or likely > possible) else 0.0)
    return max(moved)


def _away(mean: np.ndarray, value: Any) -> np.ndarray:
    """Numbers farther from a mean, where that leaves their signs."""
    value = np.asarray(value, dtype=float)
    far = mean + FARTHER * (value - mean)
    return np.asarray(np.where(np.sign(far) == np.sign(value), far, value))
