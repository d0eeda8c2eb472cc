"""Prediction-error minimisation: parameters that make a predictor's innovations small, or likely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from pm_sysid.doors import among
from pm_sysid.pem.objective import LogLikelihood, Objective, SquaredErrors
from pm_sysid.pem.predictors import ExtendedKalman, Predictor
from pm_sysid.pem.problem import Setup, Unknowns, set_up
from pm_sysid.pem.result import PEMResult
from pm_sysid.pem.solve import Method, Solution, solve
from pm_sysid.pem.trees import rebuild
from pm_sysid.solver import Solver
from pm_sysid.system import System
from pm_sysid.timeseries import TimeSeries

#: Combinations of unknowns with this share of the largest sensitivity, or less, are not seen in the record.
UNSEEN = 1e-7
#: A standard deviation of noise with less information than this about its logarithm is as good as zero.
NEGLIGIBLE = 1e-3
#: Status of a guess outside its bounds, and of an impossible one.
INFEASIBLE, IMPOSSIBLE = -1, -2


def fit_pem(
    system: System,
    data: TimeSeries | Sequence[TimeSeries],
    p_guess: Any,
    *,
    predictor: Predictor | Solver | None = None,
    x0: Any = None,
    estimate_x0: Any = False,
    bounds: tuple[Any, Any] | None = None,
    P0: Any = None,
    fixed: Mapping[str, float] | None = None,
    objective: Literal["mse", "likelihood"] = "mse",
    method: Method = "lm",
    options: Mapping[str, Any] | None = None,
) -> PEMResult:
    r"""Find parameters by minimising the one-step-ahead prediction errors of a filter.

    Parameters
    ----------
    system : System
        Equations of motion and outputs.
    data : TimeSeries or sequence of TimeSeries
        One record, or several that share the parameters; NaN marks missing outputs.
    p_guess : tree of numbers
        Where to start, in dicts, lists, tuples and arrays nested in any way, such as
        ``{"mass": 1.0, "damping": {"c1": 0.1, "c3": 0.2}}``. A number is the parameter its key names, whatever group the key
        is in; the entries of a list or array under the key ``k`` are the parameters ``k_0, k_1, ...``. Without any key,
        numbers stand for the parameters in order. All parameters of the system that are not in ``fixed`` must be there, and
        standard deviations that the predictor names.
    predictor : ExtendedKalman, UnscentedKalman, ProbabilisticKalman, or a solver, optional
        What predicts. Default: ``ExtendedKalman()``, without process noise.
    x0 : number, mapping by state, sequence or vector, optional
        State at the first sample, or where to start from; a list or tuple with one for each of several records. By default
        read off the first samples where an output shows the state.
    estimate_x0 : bool, names of states, or mapping, default False
        Initial states to be found too; for several records, one for all or a list with one for each.
    bounds : (lower, upper), optional
        Trees like ``p_guess``; None for an open side. Standard deviations are never negative.
    P0 : matrix (n_x, n_x) or number, optional
        Covariance of the initial state; a list or tuple with one for each of several records. By default the identity, or
        what was read off the record with ``x0``; zero where no measurement noise is given to weigh it against, and of a
        likelihood for the states that ``estimate_x0`` finds.
    fixed : mapping, optional
        Parameters that are known, by name.
    objective : {"mse", "likelihood"}
        The mean squared innovation, or the Gaussian negative log-likelihood of the innovations, by which standard deviations
        of the noise can be found.
    method : {"lm", "bfgs", "trust"}
        ``"lm"``: Levenberg-Marquardt (MINPACK), or, with bounds, which that cannot keep, ``"trust"``. ``"bfgs"``: L-BFGS-B.
        ``"trust"``: reflective trust region of :func:`scipy.optimize.least_squares`. For a likelihood the first and last
        are Newton's method with the expected information in a trust region (``trust-exact``; with bounds ``trust-constr``).
    options : mapping, optional
        Passed to SciPy, such as ``{"max_nfev": 20, "ftol": 1e-4}``.

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

    Examples
    --------
    >>> import numpy as np, pm_sysid as sid
    >>> decay = sid.System(
    ...     lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, dx, u, p: x.level
    ... )
    >>> t = np.linspace(0.0, 2.0, 41)
    >>> record = sid.TimeSeries(t, None, np.exp(-1.5 * t))
    >>> fit = sid.fit_pem(decay, record, {"rate": 1.0}, predictor=sid.ExtendedKalman(substeps=2), x0=1.0)
    >>> fit.success, round(fit.p["rate"], 5)
    (True, 1.5)
    """
    if not among(objective, ("mse", "likelihood")):
        raise ValueError(f"objective is {objective!r}; give 'mse' or 'likelihood'.")
    if not among(method, ("lm", "bfgs", "trust")):
        raise ValueError(f"method is {method!r}; give 'lm', 'bfgs' or 'trust'.")
    if not isinstance(options, Mapping | None) or not all(isinstance(k, str) for k in options or ()):
        raise TypeError(f"options is {type(options).__name__}; give a dict of what SciPy takes, by name.")
    predictor = ExtendedKalman() if predictor is None else predictor
    setup = set_up(system, data, p_guess, predictor, x0, estimate_x0, bounds, P0, fixed, objective)
    unknowns = setup.unknowns
    kind: type[SquaredErrors] | type[LogLikelihood] = SquaredErrors if objective == "mse" else LogLikelihood
    target: Objective = kind(setup.filter, unknowns.layout)
    outside = _outside(unknowns)
    if outside:
        solution = Solution(unknowns.x, target.evaluate(unknowns.x), False, INFEASIBLE, outside, 1, 0, [])
    else:
        solution = solve(target, unknowns.x, unknowns.lower, unknowns.upper, method, dict(options or {}))
        if solution.status == IMPOSSIBLE:
            solution = solution._replace(message=_impossible(solution, objective))
    return _result(setup, target, solution, p_guess, method)


def _outside(unknowns: Unknowns) -> str:
    """Which guesses are outside their bounds."""
    x, low, high = unknowns.x, unknowns.lower, unknowns.upper
    bad = np.flatnonzero((x < low) | (x > high))
    said = [f"{unknowns.layout.names[i]} = {x[i]:g} is outside {low[i]:g}..{high[i]:g}" for i in bad]
    return f"The guess is infeasible: {'; '.join(said)}. Start inside the bounds." if said else ""


def _impossible(solution: Solution, objective: str) -> str:
    what = "the prediction errors are" if objective == "mse" else "the log-likelihood is"
    return (
        f"The guess is impossible: {what} not finite at {solution.x.tolist()}. The solution diverges there, or its equations "
        "have no value; start nearer to the record, or use more substeps."
    )


def _result(setup: Setup, target: Objective, solution: Solution, p_guess: Any, method: str) -> PEMResult:
    """Result of a search, with the covariance of what it found."""
    unknowns, names = setup.unknowns, setup.unknowns.layout.names
    x, evaluation = solution.x, solution.evaluation
    searched = evaluation.finite and solution.status != INFEASIBLE
    pinned = _pinned(unknowns, x) if searched else np.zeros(x.size, dtype=bool)
    cov = np.full((x.size, x.size), np.inf)
    success, message, unseen = solution.success, solution.message, np.zeros(x.size, dtype=bool)
    if searched:
        weight = evaluation.information * np.outer(_sizes(unknowns, x), _sizes(unknowns, x))
        scale = 1.0 if not isinstance(target, SquaredErrors) else 0.5 * target.count / max(evaluation.value, 1e-300)
        gone = unknowns.layout.positive & (np.diag(weight) * scale < NEGLIGIBLE)
        unseen = _unseen(target, evaluation, weight, ~(pinned | gone))
        if gone.any():
            message = f"{message} No noise is seen in {[n for n, g in zip(names, gone, strict=True) if g]}: as good as zero."
        pinned = pinned | gone
        free = ~(pinned | unseen)
        cov = np.zeros((x.size, x.size))
        if free.any():
            cov[np.ix_(free, free)] = target.covariance(evaluation, free)
        cov[unseen, unseen] = np.inf
        at_bound = [n for n, b in zip(names, pinned & ~gone, strict=True) if b]
        if at_bound:
            message = f"{message} At their bounds: {at_bound}."
        if unseen.any():
            success = False
            message = (
                f"The record cannot tell {[n for n, u in zip(names, unseen, strict=True) if u]} (from each other, or at all): "
                f"the prediction errors do not change with them. Fix some (fixed=...), or excite them. {message}"
            )
    with np.errstate(invalid="ignore"):
        stderr = np.sqrt(np.diag(cov))
    k = unknowns.n_leaves
    x0 = unknowns.layout.place(x)[1]
    many = len(setup.filter.records) > 1
    finite = evaluation.finite
    return PEMResult(
        x=x,
        p=rebuild(p_guess, x[:k].tolist()),
        x0=tuple(x0) if many else x0[0],
        success=bool(success),
        status=solution.status,
        message=message.strip(),
        fun=evaluation.value if finite else np.inf,
        nit=max(len(solution.history) - 1, 0),
        nfev=solution.nfev,
        njev=solution.njev,
        history=solution.history,
        jac=_jacobian(target, evaluation) if finite else np.empty((0, x.size)),
        grad=evaluation.gradient if finite else np.zeros(x.size),
        cov=cov,
        stderr=rebuild(p_guess, stderr[:k].tolist()),
        x_stderr=stderr,
        names=list(names),
        noise={name: value if i < 0 else float(x[i]) for name, (i, value) in unknowns.noise.items()},
        objective="mse" if isinstance(target, SquaredErrors) else "likelihood",
        method=method,
        substeps=setup.filter.substeps,
        active=pinned,
        setup=setup,
        target=target,
    )


def _jacobian(target: Objective, evaluation: Any) -> np.ndarray:
    """Derivatives of the innovations that were measured; of the log-likelihood, its gradient."""
    return np.asarray(evaluation.jacobian if isinstance(target, SquaredErrors) else evaluation.gradient)


def _sizes(unknowns: Unknowns, x: np.ndarray) -> np.ndarray:
    """What counts as a change of each unknown: its own size."""
    return np.where(x == 0.0, 1.0, np.abs(x))


def _pinned(unknowns: Unknowns, x: np.ndarray) -> np.ndarray:
    """Unknowns that lie on a bound."""
    tolerance = 1e-7 * _sizes(unknowns, x)
    on = (x - unknowns.lower <= tolerance) | (unknowns.upper - x <= tolerance)
    return np.asarray(on & ~unknowns.layout.positive)


def _unseen(target: Objective, evaluation: Any, information: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Unknowns that enter a combination of which the record says nothing."""
    result = np.zeros(free.size, dtype=bool)
    where = np.flatnonzero(free)
    sensitivity = np.sqrt(np.diag(information))[where]
    top = np.sqrt(abs(evaluation.value)) if isinstance(target, SquaredErrors) else 1.0
    blind = ~(sensitivity > 1e-12 * max(top, sensitivity.max(initial=0.0)))
    result[where[blind]] = True
    where, sensitivity = where[~blind], sensitivity[~blind]
    if not where.size:
        return result
    if isinstance(target, SquaredErrors):
        # Singular values of the Jacobian itself: those of its square would be lost at half the digits.
        columns = evaluation.jacobian[:, where]
        _, values, vectors = np.linalg.svd(columns / np.linalg.norm(columns, axis=0), full_matrices=False)
    else:
        correlation = information[np.ix_(where, where)] / np.outer(sensitivity, sensitivity)
        _, squares, vectors = np.linalg.svd(correlation, hermitian=True)
        values = np.sqrt(np.maximum(squares, 0.0))
    for value, vector in zip(values, vectors, strict=True):
        if value <= UNSEEN * values[0]:
            result[where[np.abs(vector) > 0.05]] = True
    return result
