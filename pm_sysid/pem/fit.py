"""Prediction-error minimisation: parameters that make a predictor's innovations small, or likely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Never

import numpy as np

from pm_sysid.arguments import among, count, flag, seed, shown
from pm_sysid.pem.conclusion import IMPOSSIBLE, INFEASIBLE, Conclusion
from pm_sysid.pem.filters import KalmanFilter
from pm_sysid.pem.objective import LogLikelihood, Objective, ObjectiveName, SquaredErrors
from pm_sysid.pem.optima import Found, SeveralStarts
from pm_sysid.pem.optimise import Solution
from pm_sysid.pem.parameter_tree import leaves, rebuild
from pm_sysid.pem.predictors import ExtendedKalman, Predictor
from pm_sysid.pem.result import PEMResult
from pm_sysid.pem.settings import InitialState, Optimiser
from pm_sysid.pem.setup import Setup, Unknowns, refined, set_up, with_steps
from pm_sysid.pem.starts import Starts
from pm_sysid.pem.step_error import MOST, step_error
from pm_sysid.pem.unseen import changes, unseen_unknowns
from pm_sysid.progress import doing, progress_bar
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.options import Solver
from pm_sysid.symbolic.system import System

#: Arguments of an ODEFilter, and what a fit has in their place.
ELSEWHERE = {
    "latent": "make the force a state of the system, such as d with the rate -d * rate, and give it process noise: "
    "predictor=ExtendedKalman(Q={'d': 'q'}), objective='likelihood' and q in p_guess",
    "coloured": "make the noise a state of the system, such as w with the rate -w * rate, which observe adds to the output, "
    "and give it process noise: predictor=ExtendedKalman(Q={'w': 'q'}), objective='likelihood' and q in p_guess",
    "limits": "mark samples at a limit as missing (NaN), though the parameters are then biased towards smaller outputs",
    "noise": "the noise is that of the predictor: predictor=ExtendedKalman(R={'y': 'estimate'})",
    "x0_std": "give x0=InitialState(values, P0=covariance)",
    "solver": "give it as predictor=",
    "substeps": "give the predictor substeps, such as predictor=ExtendedKalman(substeps=2)",
}


def fit_pem(
    system: System,
    data: TimeSeries | Sequence[TimeSeries],
    p_guess: Any,
    *,
    predictor: Predictor | Solver | None = None,
    x0: Any = None,
    bounds: tuple[Any, Any] | None = None,
    fixed: Mapping[str, float] | None = None,
    varying: Mapping[str, Any] | None = None,
    objective: ObjectiveName = "mse",
    optimiser: Optimiser | None = None,
    starts: int | Sequence[Any] = 8,
    random_seed: Any = 0,
    progressbar: bool = True,
    **unexpected: Never,
) -> PEMResult:
    r"""Find parameters by minimising the one-step-ahead prediction errors of a filter.

    Parameters
    ----------
    system : System
        Equations of motion and outputs.
    data : TimeSeries or sequence of TimeSeries
        One record, or several that share their parameters, or some of them; NaN marks missing outputs.
    p_guess : tree of numbers
        Where to start, in dicts, lists, tuples and arrays nested in any way, such as
        ``{"mass": 1.0, "damping": {"c1": 0.1, "c3": 0.2}}``. A number is the parameter its key names, whatever group the key
        is in; the entries of a list or array under the key ``k`` are the parameters ``k_0, k_1, ...``. Without any key,
        numbers stand for the parameters in order. All parameters of the system that are not in ``fixed`` must be there, and
        standard deviations that the predictor names. A scalar parameter with a list of as many numbers as there are records
        has one for each of them, such as the stiffness of each of three specimens, ``{"k": [9.0, 9.0, 9.0], "c": 0.1}``;
        :meth:`PEMResult.like` says whose it has on a record that is not the fit's.
    predictor : ExtendedKalman, UnscentedKalman, ProbabilisticKalman, or a solver, optional
        What predicts. Default: ``ExtendedKalman()``, without process noise.
    x0 : number, mapping by state, sequence, vector, or InitialState, optional
        State at the first sample. By default it is estimated with the parameters, for each record by itself. Values that are
        given are exact, in the units of the states (``x0=0.0``: the record starts at rest); a list or tuple with one for
        each of several records. States without a value are estimated; beside process noise and a measurement noise that is to
        be found, by the filter, which starts with the spread that they have over the record. An :class:`InitialState` also
        says which of its entries are estimated, and with which covariance the filter starts.
    bounds : (lower, upper), optional
        Trees like ``p_guess``, or dicts of some of the unknowns, ``({"k": 0.0}, None)``; None, for a side or an unknown, and
        what is left out is open. One number bounds all entries of a vector. Standard deviations are never negative.
    fixed : mapping, optional
        Parameters that are known, by name.
    varying : mapping, optional
        Scalar parameters that drift by a random walk: ``RandomWalk(scale=number)``; or what each moves by in a sampling
        interval (of median length), throughout which the walk goes on: a number, the name of a leaf of ``p_guess``, or
        ``"estimate"``. The value in ``p_guess``, or ``fixed``, is that at the first sample of every record;
        ``innovations()["state_k"]`` has the filtered path of ``k``. For an :class:`ExtendedKalman` or
        :class:`UnscentedKalman`.
    objective : {"mse", "likelihood"}
        The mean squared innovation, or the Gaussian negative log-likelihood of the innovations, by which standard deviations
        of the noise can be found.
    optimiser : Optimiser, optional
        Method and tolerances of the search. Default: ``Optimiser("lm")``, Levenberg-Marquardt.
    starts : int or sequence of trees, default 8
        Number of starts, the guess among them; or other guesses, trees like ``p_guess``, to start from as well. The others
        are drawn around the guess and between bounds that are finite. They are searched from side by side, four at first;
        where one of these ends where the guess does, and none lower, no more are. As many again are drawn up to a factor of
        ten from the best optimum, where another may be as good; and where this has drawn one start alone. Where the
        innovations are not white and few starts agree, searches by predictions that follow the measurements give further
        ones. With 1 the only search is that from the guess.
    random_seed : int or numpy.random.Generator, default 0
        Of the starts that are drawn. The same seed gives the same result.
    progressbar : bool, default True
        Show what the search is doing.
    **unexpected
        None: an argument of :class:`ODEFilter` that has no place here is refused with what to do instead.

    Returns
    -------
    PEMResult

    Raises
    ------
    TypeError, ValueError
        For arguments that do not fit together. A guess that is impossible (outside its bounds, a diverging solution) or that
        the record says nothing about is no error: the result then has ``success`` False and says why.

    Notes
    -----
    The objective is ``J = 1/N sum_k e[k]' e[k]`` with ``e[k] = y[k] - yhat[k|k-1]`` and N the number of samples measured
    (Ljung 1999, Eq. 7.30). Derivatives are those of the recursion of the filter itself, and all of one iteration come from
    one compiled call.

    ``success`` is False where an optimum is in doubt: another is nearly as good (as where the order of two rates hangs on an
    unknown scale), the best drew one start of many while others ended at optima that are not much higher or got nowhere, no
    more than half of the starts ended there, others elsewhere, and the innovations are not white, it explains no more than a
    constant, or standard errors do not hold: four of them away, the other unknowns fitted again, the log-likelihood has lost
    less than 0.4 of what the parabola says, or two of them away, along the principal axes, more than three times of it.
    ``message`` then says so, and ``optima`` lists all that were found. Where the innovations are not white, ``message`` says
    so: standard errors of a free run allow for noise that is correlated in time, as far as the record can tell the correlation
    (``message`` says where it cannot, and where an input is correlated with the innovations, as by feedback), and those of
    predictions that follow the measurements are too small. Where the record shows what no unknown stands for, and an unknown
    would move by more than a standard error with it, the fit is no success either, and ``message`` names it: another
    ``intersample``, inputs that act some samples later or earlier, an offset, a drift or a delay of a sensor, or a term that
    the equations of up to four states lack (a power or a sign of a state, a product or difference of two; of an input a power,
    a dead zone, another gain to one side); or samples at the limit of a sensor,
    without which one would move. Where innovations with such a cause are not white either, it may be a part of what is wrong:
    ``message`` names it, and standard errors (not ``cov``) contain what it would do. Innovations that follow an input are no
    success.

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level,
    ...     states=("level",),
    ...     params=("rate",),
    ...     observe=lambda t, x, dx, u, p: x.level,
    ... )
    >>> t = np.linspace(0.0, 2.0, 41)
    >>> record = sid.TimeSeries(t, None, np.exp(-1.5 * t))
    >>> fit = sid.fit_pem(
    ...     decay, record, {"rate": 1.0}, predictor=sid.ExtendedKalman(substeps=2), x0=1.0
    ... )
    >>> fit.success, round(fit.p["rate"], 5)
    (True, 1.5)
    """
    for name in unexpected:
        raise TypeError(_elsewhere(name))
    if not among(objective, ("mse", "likelihood")):
        raise ValueError(f"objective is {shown(objective)}; give 'mse' or 'likelihood'.")
    optimiser = Optimiser() if optimiser is None else optimiser
    if not isinstance(optimiser, Optimiser):
        raise TypeError(f"optimiser is {shown(optimiser)}; give Optimiser(method, options), such as Optimiser('bfgs').")
    predictor = ExtendedKalman() if predictor is None else predictor
    seed(random_seed)
    others, number = _other_starts(starts, p_guess)
    flag(progressbar, "progressbar")
    with progress_bar("fit_pem", progressbar):
        doing("choosing the step")
        setup = set_up(system, data, p_guess, predictor, InitialState.of(x0), bounds, fixed, objective, varying)
        return _fit(setup, objective, p_guess, optimiser, others, number, random_seed)


def _elsewhere(name: str) -> str:
    """What to do about an argument that a fit does not have."""
    if name not in ELSEWHERE:
        return f"fit_pem() got an unexpected keyword argument {name!r}."
    return f"{name} is an argument of ODEFilter, not of fit_pem; {ELSEWHERE[name]}, or build the model and call find_mode."


def _fit(
    setup: Setup, objective: ObjectiveName, p_guess: Any, optimiser: Optimiser, others: list[Any], number: int, random_seed: Any
) -> PEMResult:
    """Search until the step is fine enough at the optimum, and without initial states that the record cannot tell."""
    whole, searched = setup.unknowns, np.arange(setup.unknowns.x.size)
    known = np.empty((0, whole.x.size))
    spent, multiplied, released = (0, 0), 1, False
    while True:
        target = _objective(setup, objective)
        found = _search(setup, target, optimiser, others, number, np.random.default_rng(random_seed), known)
        # The step was judged at the guess. An optimum, or one that is nearly as good, may be there by its coarseness alone: it
        # is one of the starts of the next search, and the guess stays one.
        ends = [found.solution.x, *found.rivals] if found.optima else []
        finer = next((s for x in ends if (s := refined(setup, x)) is not None), None)
        if finer is not None:
            setup, known, spent = finer, np.array(ends), (spent[0] + found.nfev, spent[1] + found.njev)
            continue
        found = found._replace(nfev=found.nfev + spent[0], njev=found.njev + spent[1])
        said = Conclusion(setup, target, found)
        result, untold = _result(setup, target, found, said, p_guess, optimiser.method), said.untold
        spent = found.nfev, found.njev
        if untold:
            # An initial state that nobody asked for, and that the record says nothing about, is not searched for.
            known, searched = np.delete(known, untold, axis=1), np.delete(searched, untold)
            setup = setup._replace(unknowns=whole.holding(_rest(whole, searched)))
            continue
        if not released and (told := _told(setup, objective, whole, searched, found.solution.x)):
            # It may have been nothing where the first search ended, from a guess that explodes or stands still.
            known, released = whole.x.copy()[None], True
            known[0, searched] = found.solution.x
            searched = np.union1d(searched, told)
            known = known[:, searched]
            setup = setup._replace(unknowns=whole.holding(_rest(whole, searched)))
            continue
        closer, words = _closer(setup, target, result) if found.solution.rates is None else (None, "")
        if closer is not None and multiplied < MOST:
            multiplied *= closer.filter.substeps // setup.filter.substeps
            setup, known = closer, found.solution.x[None]
            continue
        said.look_beyond()
        result.success, result.message = bool(said.success), said.message
        result.x_stderr = said.errors  # they may be wider now
        result.stderr = rebuild(p_guess, said.errors[: setup.unknowns.n_leaves].tolist())
        named = ", ".join(f"{whole.layout.names[i]} (taken as {whole.x[i]:.4g})" for i in _rest(whole, searched))
        nothing = f"The record says nothing about the initial state {named}." if named else ""
        result.message = " ".join(filter(None, [result.message, nothing, words]))
        return result


def _rest(unknowns: Unknowns, searched: np.ndarray) -> list[int]:
    """Places of unknowns that are not searched for."""
    return np.setdiff1d(np.arange(unknowns.x.size), searched).tolist()


def _told(setup: Setup, objective: ObjectiveName, whole: Unknowns, searched: np.ndarray, found: np.ndarray) -> list[int]:
    """Initial states that were left out, and that the record tells where the search without them has ended, by their places."""
    rest = _rest(whole, searched)
    if not rest:
        return []
    x, target = whole.x.copy(), _objective(setup._replace(unknowns=whole), objective)
    x[searched] = found
    evaluation = target.evaluate(x)
    if not evaluation.finite:
        return []
    size = changes(target, x, whole.x)
    weight = evaluation.information * np.outer(size, size)
    unseen = unseen_unknowns(target, evaluation, weight, (x > whole.lower) & (x < whole.upper) & ~whole.layout.positive)
    return [i for i in rest if not unseen.unknowns[i]]


def _objective(setup: Setup, objective: ObjectiveName) -> Objective:
    kind = SquaredErrors if objective == "mse" else LogLikelihood
    return kind(setup.filter, setup.unknowns.layout)


def _closer(setup: Setup, target: Objective, result: PEMResult) -> tuple[Setup | None, str]:
    """The same problem with as many substeps as the standard errors ask for, if these are more; and why, in words."""
    twice = with_steps(setup, 2) if result.success else None
    if twice is None or not isinstance(setup.filter, KalmanFilter):
        return None, ""
    off = step_error(target, _objective(twice, result.objective), result.x, result.x_stderr)
    if off is None:
        return None, ""
    words = (
        f"Errors of the integration count beside noise as small as this: with twice the {setup.filter.substeps} substeps "
        f"{result.names[off.unknown]} would move by {off.moved:.2g} standard errors. Give more (substeps=...)."
    )
    return with_steps(setup, off.times(setup.filter.form.method)), words


def _search(
    setup: Setup,
    target: Objective,
    optimiser: Optimiser,
    others: Sequence[Any],
    number: int,
    rng: np.random.Generator,
    known: np.ndarray,
) -> Found:
    """Search from the guess, from where earlier searches have ended, (n, k), and from other starts."""
    unknowns = setup.unknowns
    x, lower, upper = unknowns.x, unknowns.lower, unknowns.upper
    if outside := _outside(unknowns):
        return Found(Solution(x, target.evaluate(x), False, INFEASIBLE, outside, 1, 0, []), [], [], "", "", 1, 0)
    spread, layout = np.zeros(x.size), unknowns.layout
    own = layout.x0_sources >= unknowns.n_leaves
    spread[layout.x0_sources[own]] = setup.initially.std[layout.x0_slots][own]
    begin = Starts(target, x, lower, upper, spread, rng)
    given = np.array([[*leaves("starts", tree).values(), *x[unknowns.n_leaves :]] for tree in others])
    searches = SeveralStarts(target, begin, optimiser)
    found = searches.run(number, np.clip(given, lower, upper) if len(given) else np.empty((0, x.size)), known)
    if found is not None:
        return found
    message = _impossible(x, "mse" if isinstance(target, SquaredErrors) else "likelihood")
    return Found(Solution(x, target.evaluate(x), False, IMPOSSIBLE, message, 1, 0, []), [], [], "", "", searches.nfev, 0)


def _other_starts(starts: Any, p_guess: Any) -> tuple[list[Any], int]:
    """Guesses that were given beside the first, and the number of starts."""
    if not isinstance(starts, list | tuple):
        return [], count(starts, "starts")
    names = list(leaves("p_guess", p_guess))
    for tree in starts:
        found = leaves("starts", tree)
        if list(found) != names or not np.all(np.isfinite(list(found.values()))):
            raise ValueError(f"starts holds {shown(tree)}; give a number of starts, or trees of finite numbers like p_guess.")
    return list(starts), 1 + len(starts)


def _outside(unknowns: Unknowns) -> str:
    """Which guesses are outside their bounds."""
    x, low, high = unknowns.x, unknowns.lower, unknowns.upper
    bad = np.flatnonzero((x < low) | (x > high))
    said = [f"{unknowns.layout.names[i]} = {x[i]:g} is outside {low[i]:g}..{high[i]:g}" for i in bad]
    return f"The guess is infeasible: {'; '.join(said)}. Start inside the bounds." if said else ""


def _impossible(x: np.ndarray, objective: str) -> str:
    what = "the prediction errors are" if objective == "mse" else "the log-likelihood is"
    return (
        f"The guess is impossible: {what} not finite at {x.tolist()}. The solution diverges there, or its equations "
        "have no value; start nearer to the record, or use more substeps."
    )


def _result(setup: Setup, target: Objective, found: Found, said: Conclusion, p_guess: Any, method: str) -> PEMResult:
    """Result of a search, and what is said of it."""
    unknowns, solution = setup.unknowns, found.solution
    x, evaluation, k = solution.x, solution.evaluation, setup.unknowns.n_leaves
    x0 = unknowns.layout.place(x)[1][:, : len(setup.base.states)]
    return PEMResult(
        x=x,
        p=rebuild(p_guess, x[:k].tolist()),
        x0=tuple(x0) if len(setup.filter.records) > 1 else x0[0],
        success=bool(said.success),
        status=solution.status,
        message=said.message,
        fun=evaluation.value if evaluation.finite else np.inf,
        nit=max(len(solution.history) - 1, 0),
        nfev=found.nfev,
        njev=found.njev,
        history=solution.history,
        jac=_jacobian(target, evaluation) if evaluation.finite else np.empty((0, x.size)),
        grad=evaluation.gradient if evaluation.finite else np.zeros(x.size),
        cov=said.covariance,
        stderr=rebuild(p_guess, said.errors[:k].tolist()),
        x_stderr=said.errors,
        names=list(unknowns.layout.names),
        noise={name: value if i < 0 else float(x[i]) for name, (i, value) in unknowns.noise.items()},
        objective="mse" if isinstance(target, SquaredErrors) else "likelihood",
        method=method,
        substeps=setup.filter.substeps,
        active=said.held,
        optima=found.optima,
        setup=setup,
        target=target,
    )


def _jacobian(target: Objective, evaluation: Any) -> np.ndarray:
    """Derivatives of the innovations that were measured; of the log-likelihood, its gradient."""
    return np.asarray(evaluation.jacobian if isinstance(target, SquaredErrors) else evaluation.gradient)
