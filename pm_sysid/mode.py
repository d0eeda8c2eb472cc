"""The posterior mode and the curvature there: where to start NUTS, and with which mass matrix."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import is_not
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
import pytensor
from pymc.logprob.utils import ParameterValueError
from pymc.pytensorf import join_nonshared_inputs
from scipy.optimize import minimize

from pm_sysid.context import model_of
from pm_sysid.doors import flag
from pm_sysid.progress import progress_line

#: Value and gradient of what is minimised.
type Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]


@dataclass(frozen=True)
class Mode:
    """Posterior mode of a model, in unconstrained space.

    Attributes
    ----------
    initvals : dict
        Free variables at the mode, for ``pm.sample(initvals=...)``.
    point : numpy.ndarray, shape (n,)
        The mode in unconstrained space, in the order of ``model.value_vars``.
    covariance : numpy.ndarray, shape (n, n)
        Inverse of the negative Hessian at the mode: the Laplace approximation of the posterior's covariance.
    logp : float
        Log posterior density (unnormalised, with Jacobians) at the mode.
    converged : bool
        Whether the gradient vanished and the curvature is that of a maximum.
    """

    initvals: dict[str, np.ndarray]
    point: np.ndarray
    covariance: np.ndarray
    logp: float
    converged: bool

    def nuts(self, **options: Any) -> Any:
        """NUTS step method with this covariance as its (fixed) mass matrix; inside a model context."""
        return pm.NUTS(scaling=self.covariance, is_cov=True, **options)


def find_mode(model: pm.Model | None = None, *, start: dict[str, Any] | None = None, progressbar: bool = True) -> Mode:
    """Find the posterior mode by quasi-Newton steps on exact gradients, polished by Newton's method.

    Long records make posteriors a thousand times narrower than their priors and strongly correlated; NUTS then spends
    most of its time finding the scale. Starting at the mode with its curvature, it needs a short tuning phase only.

    Parameters
    ----------
    model : pm.Model, optional
        Default: the model on the context stack.
    start : dict, optional
        Free variables to start from, such as the ``initvals`` of another model's mode; the rest, and by default all, start
        at the model's initial point.
    progressbar : bool, default True
        Show evaluations and the best log posterior while it searches; nothing is left of the line.

    Returns
    -------
    Mode
        Where the search was interrupted (Ctrl-C), the best point so far, with ``converged=False``.

    Warns
    -----
    UserWarning
        If the search stopped where the posterior has no maximum, or was interrupted.

    Examples
    --------
    >>> import pymc as pm, pm_sysid as sid
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", 1.0, 2.0)
    ...     mode = sid.find_mode()
    >>> float(mode.covariance[0, 0]).__round__(6)
    4.0
    """
    model = model_of(model)
    if start is not None and not isinstance(start, Mapping):
        raise TypeError(f"start is {type(start).__name__}; give a dict of numbers by the name of the free variables.")
    flag(progressbar, "progressbar")
    point = {**model.initial_point(), **unconstrained(start or {}, model)}
    x = np.concatenate([np.ravel(point[v.name]) for v in model.value_vars]).astype(float)
    with progress_line("find_mode", progressbar) as say:
        say("compiling")
        search = Search(compiled(model, point).objective, x, say)
        try:
            x, covariance, converged = climb(search, x)
            complaint = (
                "" if converged else "stopped at a point that is no clear maximum of the posterior; look at the priors, "
            )
        except KeyboardInterrupt:
            x, covariance, converged = search.best, np.eye(x.size), False
            complaint = "was interrupted; this is the best point so far, without its curvature. Go on from it, "
    if complaint:
        warnings.warn(f"find_mode {complaint}give start=..., or sample without it.", stacklevel=2)
    return Mode(_initvals(model, point, x), x, covariance, -search(x)[0], converged)


class Search:
    """An objective that remembers its best point, and says what it has reached."""

    def __init__(self, objective: Objective, x: np.ndarray, say: Callable[[str], None]) -> None:
        self.objective, self.best, self.say = objective, x, say
        self.lowest, self.evaluations = np.inf, 0

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient."""
        value, gradient = self.objective(x)
        self.evaluations += 1
        if value < self.lowest:
            self.lowest, self.best = value, np.array(x)
        self.say(f"{self.evaluations} evaluations, log posterior {-self.lowest:.6g}")
        return value, gradient


class Compiled(NamedTuple):
    """Functions of a model, and the parts of it that they were compiled for."""

    parts: list[Any]
    objective: Objective
    free: Callable[..., list[np.ndarray]]


_COMPILED: WeakKeyDictionary[pm.Model, Compiled] = WeakKeyDictionary()


def compiled(model: pm.Model, point: Mapping[str, Any]) -> Compiled:
    """Objective, and free variables from value variables, compiled once a model.

    New data (``set_data``) are seen through the shared variables of the graph.
    """
    shapes = [np.shape(point[v.name]) for v in model.value_vars]
    parts = [*model.basic_RVs, *model.rvs_to_values.values(), *model.rvs_to_transforms.values()]
    parts += [*model.potentials, *model.deterministics]
    found = _COMPILED.get(model)
    if (
        found is None
        or len(found.parts) != len(parts) + 1
        or found.parts[0] != shapes
        or any(map(is_not, found.parts[1:], parts))
    ):
        free = pytensor.function(model.value_vars, model.unobserved_value_vars, on_unused_input="ignore")
        found = _COMPILED[model] = Compiled([shapes, *parts], objective_of(model, point), free)
    return found


def objective_of(model: pm.Model, point: Mapping[str, Any]) -> Objective:
    """Negative log posterior and its gradient; huge where it is not finite."""
    (logp,), joined = join_nonshared_inputs(point, [model.logp()], model.value_vars)
    function = pytensor.function([joined], [logp, pytensor.grad(logp, joined, disconnected_inputs="ignore")], trust_input=True)

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        try:
            value, gradient = function(x)
        except ParameterValueError:  # a step so long that a scale underflows to zero
            return 1e300, np.zeros_like(x)
        if not np.isfinite(value) or not np.all(np.isfinite(gradient)):
            return 1e300, np.zeros_like(x)
        return -float(value), -np.asarray(gradient)

    return objective


def climb(objective: Objective, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Minimum of an objective with exact gradients, its inverse Hessian, and whether that is a minimum's."""
    x = minimize(objective, x, jac=True, method="L-BFGS-B", options={"maxiter": 2000, "maxcor": 20}).x
    converged = False
    covariance = np.eye(x.size)
    for _ in range(100):  # from a start far off, L-BFGS may stop long before the maximum
        hessian = _hessian(objective, x)
        values, vectors = np.linalg.eigh(hessian)
        floor = max(1e-10 * float(values[-1]), 1e-14)
        covariance = (vectors / np.maximum(np.abs(values), floor)) @ vectors.T
        f, gradient = objective(x)
        step = -covariance @ gradient
        decrement = float(-gradient @ step)
        if decrement < 1e-6:
            converged = bool(values[0] > floor)
            break
        scale = 1.0
        while scale > 1e-8 and not objective(x + scale * step)[0] < f:
            scale /= 2
        if scale <= 1e-8:
            converged = bool(values[0] > floor and decrement < 1e-2)
            break
        x = x + scale * step
    return x, covariance, converged


def unconstrained(point: Mapping[str, Any], model: pm.Model) -> dict[str, np.ndarray]:
    """Value variables for free variables given by name; names the model does not have are an error."""
    unknown = set(point) - {v.name for v in model.free_RVs}
    if unknown:
        names = [v.name for v in model.free_RVs]
        raise ValueError(f"the start has {list(map(str, unknown))}, no free variables of the model; it has {names}.")
    values = {}
    for rv in model.free_RVs:
        if rv.name not in point:
            continue
        number: Any = np.asarray(point[rv.name], dtype=float)
        transform = model.rvs_to_transforms[rv]
        if transform is not None:
            number = transform.forward(number, *model.replace_rvs_by_values(list(rv.owner.inputs))).eval()
        values[model.rvs_to_values[rv].name] = np.asarray(number)
    return values


def _hessian(objective: Any, x: np.ndarray) -> np.ndarray:
    """Central differences of exact gradients, with steps at which the gradient changes measurably."""
    _, g0 = objective(x)
    rows = []
    for i in range(x.size):
        # A step of about a tenth of a standard deviation, found from the curvature of a first, tiny step.
        step = 1e-6 * max(1.0, abs(x[i]))
        e = np.zeros_like(x)
        e[i] = step
        curvature = abs(objective(x + e)[1][i] - g0[i]) / step
        e[i] = min(0.1 / np.sqrt(curvature), 1e-2) if curvature > 0 else 1e-4
        rows.append((objective(x + e)[1] - objective(x - e)[1]) / (2 * e[i]))
    hessian: np.ndarray = np.array(rows)
    symmetric: np.ndarray = (hessian + hessian.T) / 2
    return symmetric


def _initvals(model: pm.Model, point: dict[str, Any], x: np.ndarray) -> dict[str, np.ndarray]:
    """Free variables at a point of the unconstrained space."""
    values, at = {}, 0
    for v in model.value_vars:
        size = int(np.size(point[v.name]))
        values[v.name] = x[at : at + size].reshape(np.shape(point[v.name]))
        at += size
    names = [v.name for v in model.free_RVs]
    found = zip(model.unobserved_value_vars, compiled(model, point).free(**values), strict=True)
    return {v.name: value for v, value in found if v.name in names}
