"""SciPy's optimisers on an objective: scaled unknowns, impossible trial points, a history of accepted steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy

from pm_sysid.pem.objective import Evaluation, Objective, SquaredErrors
from pm_sysid.pem.settings import Optimiser
from pm_sysid.progress import doing

#: Residuals of an impossible trial point, in units of those at the start: far above them, and no overflow when squared.
IMPOSSIBLE = 1e3
#: Restarts of the quasi-Newton search from where it ended, with the scale found there.
RESTARTS = 20

#: A mean squared error of this share of that at the guess is as good as none.
EXACT = 1e-20
#: Standard deviations shrink by this factor at most, as a logarithm; far below that they mean nothing.
NO_NOISE = 30.0

#: What is said of a search that has ended at an optimum.
CONVERGED = "The search has converged."
#: Status, and words, of a search that its optimiser cannot go on with.
BROKEN_OFF = -3
BROKEN_OFF_WORDS = (
    "The search broke off where the information is singular to working precision: the likelihood may have no maximum there."
)

DEFAULTS: dict[str, dict[str, Any]] = {
    "least squares": {"ftol": 1e-12, "xtol": 1e-10, "gtol": 1e-12, "max_nfev": 500},
    "L-BFGS-B": {"ftol": 1e-13, "gtol": 1e-5, "maxiter": 500, "maxcor": 20},
    "trust-exact": {"gtol": 1e-5, "maxiter": 200},
    "trust-constr": {"gtol": 1e-6, "xtol": 1e-10, "maxiter": 500},
}


class Iteration(NamedTuple):
    """An accepted step: objective and unknowns after it, and its length relative to the unknowns."""

    objective: float
    parameters: np.ndarray
    step: float


class Solution(NamedTuple):
    """Where a search ended; ``rates`` (k, T, n) are those behind the derivatives, where these are by differences."""

    x: np.ndarray
    evaluation: Evaluation
    success: bool
    status: int
    message: str
    nfev: int
    njev: int
    history: list[Iteration]
    rates: np.ndarray | None = None


class Search:
    """One search: an objective in coordinates ``x = T(offset + M z)`` in which steps of all unknowns are comparable.

    ``T`` is the exponential of standard deviations and nothing else. Evaluations are kept until the next, since optimisers
    ask for the derivatives of a point after its value, and both come from one call.
    """

    def __init__(self, objective: Objective, x: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> None:
        self.objective = objective
        self.positive = objective.layout.positive
        self.lower, self.upper = self.coordinates(lower), self.coordinates(upper)
        self.bounded = bool(np.isfinite(self.lower).any() or np.isfinite(self.upper).any())
        with np.errstate(divide="ignore"):
            self.lower = np.where(self.positive, np.maximum(self.lower, self.coordinates(x) - NO_NOISE), self.lower)
        self.nfev = self.njev = 0
        self.history: list[Iteration] = []
        self.best: tuple[float, np.ndarray, Evaluation] | None = None
        self._last: tuple[bytes, Evaluation] | None = None
        self.first = self.at(x)
        u = self.coordinates(x)
        self.offset, self.M = np.zeros_like(u), np.diag(self._sizes(u))
        self.record(x)

    def _sizes(self, u: np.ndarray) -> np.ndarray:
        """Unknowns as large as they are; those at zero as large as would explain all of the residuals."""
        with np.errstate(divide="ignore", invalid="ignore"):
            explaining = np.sqrt(np.abs(self.first.value) / np.diag(self.first.information))
        explaining = np.where(np.isfinite(explaining) & (explaining > 0), explaining, 1.0)
        return np.where(self.positive, 1.0, np.where(u == 0.0, explaining, np.abs(u)))

    def coordinates(self, x: np.ndarray) -> np.ndarray:
        """Logarithms of standard deviations."""
        with np.errstate(divide="ignore"):
            return np.where(self.positive, np.log(np.where(self.positive, np.maximum(x, 0.0), 1.0)), x)

    def unknowns(self, z: np.ndarray) -> np.ndarray:
        """Unknowns at a point of the search, never beyond their bounds."""
        u = np.clip(self.offset + self.M @ z, self.lower, self.upper)
        with np.errstate(over="ignore"):
            return np.where(self.positive, np.exp(np.where(self.positive, u, 0.0)), u)

    def slopes(self, x: np.ndarray) -> np.ndarray:
        """Derivative dx/dz (k, k)."""
        return np.where(self.positive, x, 1.0)[:, None] * self.M

    def at(self, x: np.ndarray) -> Evaluation:
        """Evaluate, once a point."""
        key = x.tobytes()
        if self._last is None or self._last[0] != key:
            self.nfev += 1
            doing(f"evaluation {self.nfev}" + (f", objective {self.best[0]:.6g}" if self.best else ""))
            evaluation = self.objective.evaluate(x)
            self._last = key, evaluation
            if evaluation.finite and (self.best is None or evaluation.value < self.best[0]):
                self.best = evaluation.value, x.copy(), evaluation
        return self._last[1]

    def record(self, x: np.ndarray) -> None:
        """Add an accepted point to the history."""
        value = self.at(x).value
        if not self.history:
            self.history.append(Iteration(value, x.copy(), 0.0))
            return
        before = self.history[-1]
        if not np.array_equal(x, before.parameters):
            step = np.linalg.norm((x - before.parameters) / np.maximum(np.abs(x), np.abs(before.parameters) + 1e-300))
            self.history.append(Iteration(value, x.copy(), float(step)))

    def rescale(self, full: bool) -> None:
        """Go on from the best point, in units of the standard deviations expected there; uncorrelated if ``full``."""
        assert self.best is not None
        _, x, evaluation = self.best
        ones = np.where(self.positive, x, 1.0)
        information = ones[:, None] * evaluation.information * ones
        if isinstance(self.objective, SquaredErrors):
            information = information * self.unit
        # Where the record says nothing about a noise, its logarithm still moves by units and no more.
        information = information + np.diag(self.positive.astype(float))
        scale = np.sqrt(np.diag(information))
        scale = np.where(scale > 0, scale, 1.0 / np.maximum(np.abs(self.coordinates(x)), 1.0))
        self.offset, self.M = self.coordinates(x), np.diag(1.0 / scale)
        if full:
            values, vectors = np.linalg.eigh(information / np.outer(scale, scale))
            self.M = self.M @ vectors / np.sqrt(np.maximum(values, 1e-10 * max(values[-1], 1e-10)))
        self._unit = self.unit
        self._top = self._unit * evaluation.value

    @property
    def unit(self) -> float:
        """What turns the objective into a negative log-likelihood near the best point."""
        assert self.best is not None
        if not isinstance(self.objective, SquaredErrors):
            return 1.0
        return 0.5 * self.objective.count / max(self.best[0], EXACT * min(self.first.value, self.objective.of_zero), 1e-300)

    # -- least squares ------------------------------------------------------------------------------------------------

    def least_squares(self, method: Literal["lm", "trf"], options: Mapping[str, Any]) -> tuple[bool, int, str]:
        """Levenberg-Marquardt (MINPACK), or a trust region that keeps bounds."""
        size = max(np.sqrt(self.first.value), 1e-300)

        def residuals(z: np.ndarray) -> np.ndarray:
            evaluation = self.at(self.unknowns(z))
            if not evaluation.finite:
                return np.full(evaluation.residuals.shape, IMPOSSIBLE)
            return np.asarray(evaluation.residuals / size)

        def jacobian(z: np.ndarray) -> np.ndarray:
            x = self.unknowns(z)
            self.njev += 1
            self.record(x)
            return np.asarray(self.at(x).jacobian @ self.slopes(x) / size)

        z = np.linalg.solve(self.M, self.coordinates(self.history[0].parameters))
        scale = np.diag(self.M)
        bounds = (-np.inf, np.inf) if method == "lm" else (self.lower / scale, self.upper / scale)
        chosen = {**DEFAULTS["least squares"], "x_scale": "jac", **options}
        result = scipy.optimize.least_squares(residuals, z, jacobian, bounds, method=method, **chosen)
        self.record(self.unknowns(result.x))
        return bool(result.success), int(result.status), str(result.message)

    # -- functions ----------------------------------------------------------------------------------------------------

    def value(self, z: np.ndarray) -> float:
        """Objective as a negative log-likelihood; far above the start, and flat, where the point is impossible."""
        evaluation = self.at(self.unknowns(z))
        return self._unit * evaluation.value if evaluation.finite else self._top + 10.0 * max(abs(self._top), 1.0)

    def gradient(self, z: np.ndarray) -> np.ndarray:
        """Its gradient."""
        x = self.unknowns(z)
        if not self.at(x).finite:
            return np.zeros_like(z)
        return np.asarray(self._unit * self.at(x).gradient @ self.slopes(x))

    def both(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        """Value and gradient."""
        return self.value(z), self.gradient(z)

    def hessian(self, z: np.ndarray) -> np.ndarray:
        """Expected information."""
        x = self.unknowns(z)
        if not self.at(x).finite:
            return np.eye(z.size)
        slopes = self.slopes(x)
        return np.asarray(self._unit * slopes.T @ self.at(x).information @ slopes)

    def accept(self, z: Any, *_: Any) -> None:
        """What optimisers call after each step."""
        self.njev += 1
        self.record(self.unknowns(np.asarray(z)))

    def quasi_newton(self, options: Mapping[str, Any]) -> tuple[bool, int, str]:
        """L-BFGS-B, started again from where it ended until it stays there."""
        chosen = {**DEFAULTS["L-BFGS-B"], **options}
        left, result = int(chosen["maxiter"]), None
        for _ in range(RESTARTS):
            self.rescale(full=not self.bounded)
            assert self.best is not None
            scale = np.diag(self.M)
            lower, upper = (self.lower - self.offset) / scale, (self.upper - self.offset) / scale
            bounds = scipy.optimize.Bounds(lower, upper) if self.bounded else None
            before = self.best[0]
            result = scipy.optimize.minimize(
                self.both, np.zeros(scale.size), jac=True, method="L-BFGS-B", bounds=bounds, callback=self.accept,
                options={**chosen, "maxiter": left},
            )  # fmt: skip
            left -= int(result.nit)
            if left <= 0 or not self._unit * (before - self.best[0]) > 1e-8:
                break
        assert result is not None
        done = bool(result.success) or (left > 0 and self.flat(result.jac))
        return done, int(result.status), str(result.message)

    def scoring(self, options: Mapping[str, Any]) -> tuple[bool, int, str]:
        """Newton's method with the expected information in a trust region (Fisher scoring)."""
        method = "trust-constr" if self.bounded else "trust-exact"
        self.rescale(full=not self.bounded)
        scale = np.diag(self.M)
        extra: dict[str, Any] = {}
        if self.bounded:
            extra = {"bounds": scipy.optimize.Bounds((self.lower - self.offset) / scale, (self.upper - self.offset) / scale)}
        try:
            with np.errstate(over="ignore"):  # of what it does with the information at a trial point far away
                result = scipy.optimize.minimize(
                    self.value, np.zeros(scale.size), jac=self.gradient, hess=self.hessian, method=method,
                    callback=self.accept, options={**DEFAULTS[method], **options}, **extra,
                )  # fmt: skip
        except UnboundLocalError:  # what SciPy's trust-exact does where its subproblem has no solution to working precision
            return False, BROKEN_OFF, BROKEN_OFF_WORDS
        done = bool(result.success) or self.flat(result.jac if method == "trust-exact" else None)
        return done, int(result.status), str(result.message)

    @staticmethod
    def flat(gradient: np.ndarray | None) -> bool:
        """Whether there is no slope to speak of, in units of standard deviations, where an optimiser finds no lower point.

        It is the lowest that rounding lets be found.
        """
        return gradient is not None and bool(np.max(np.abs(gradient), initial=0.0) < 1e-2)

    def settle(self) -> None:
        """Put unknowns that were on their way to a bound onto it; interior methods stop just before."""
        assert self.best is not None
        value, x, evaluation = self.best
        low, high = np.where(self.positive, -np.inf, self.lower), np.where(self.positive, np.inf, self.upper)
        # Beside a bound at zero an unknown is no measure of what is near; its standard deviation is.
        information = np.diag(evaluation.information) * self.unit
        spread = 1 / np.sqrt(np.where(information > 0, information, np.inf))
        near = 1e-3 * np.maximum.reduce([np.abs(x), np.where(np.isfinite(high - low), high - low, 0.0), spread])
        down = (x - low < near) & (evaluation.gradient > 0)
        up = (high - x < near) & (evaluation.gradient < 0)
        moved = np.where(down, low, np.where(up, high, x))
        there = self.at(moved)
        if there.finite and there.value <= value + 1e-12 * abs(value):
            self.best = there.value, moved, there


def solve(objective: Objective, x: np.ndarray, lower: np.ndarray, upper: np.ndarray, optimiser: Optimiser) -> Solution:
    """Minimise an objective from a possible point within its bounds."""
    search = Search(objective, x, lower, upper)
    method, options = optimiser.method, dict(optimiser.options or {})
    if not search.first.finite:
        return Solution(x, search.first, False, -2, "", search.nfev, 0, search.history)
    if method == "bfgs":
        success, status, message = search.quasi_newton(options)
    elif isinstance(objective, SquaredErrors):
        success, status, message = search.least_squares("trf" if method == "trust" or search.bounded else "lm", options)
    else:
        success, status, message = search.scoring(options)
    # SciPy's words are about its tests of convergence, some of which sound like a failure where the optimum has been reached.
    message = CONVERGED if success else message if status == BROKEN_OFF else f"The search did not converge: {message}"
    search.settle()
    assert search.best is not None
    _, best, evaluation = search.best
    search.record(best)
    return Solution(best, evaluation, success, status, message, search.nfev, search.njev, search.history)
