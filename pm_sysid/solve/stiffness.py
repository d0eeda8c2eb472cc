"""How fast the fastest decay of a system is along its solution: what an explicit step has to follow."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import scipy

from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.steps.derived import completed_sets
from pm_sysid.symbolic.derivatives import jacobian
from pm_sysid.symbolic.scalars import Scalar, evaluate, untraced
from pm_sysid.symbolic.system import System

#: Sampling intervals that are looked at, and evaluations of the equations in all of them.
INTERVALS, EVALUATIONS = 20, 1_000


class _TooMany(Exception):
    """More evaluations than the question is worth."""


@untraced()
def fastest_decay(system: System, record: TimeSeries, theta: np.ndarray, start: np.ndarray) -> float | None:
    """Largest rate at which a disturbance of the solution dies out, in the first intervals of a record.

    The solution is found by an implicit method (Radau), which no fast decay disturbs.

    Parameters
    ----------
    theta : ndarray, shape (P,)
        Parameters.
    start : ndarray, shape (n_x,)
        Initial state.

    Returns
    -------
    float or None
        Largest negative real part of an eigenvalue of the Jacobian, its sign turned; None where the implicit method finds
        no solution either, or takes too long.
    """
    rates = [entry for row in jacobian(system.f, system.x) for entry in row]
    (whole,) = completed_sets(system, np.asarray(theta, dtype=float)[None])
    n, fixed, left = len(system.x), dict(zip(system.p, map(float, whole), strict=True)), EVALUATIONS
    fastest = 0.0

    def values(outputs: Sequence[Scalar], t: float, x: np.ndarray, i: int) -> np.ndarray:
        nonlocal left
        left -= 1
        if left < 0:
            raise _TooMany
        part = np.clip((t - record.t[i]) / record.dt[i], 0.0, 1.0)
        u = record.input_at(np.array([i]), np.array([part]))[0]
        at = {system.t: t, **dict(zip(system.x, x, strict=True)), **dict(zip(system.u, u, strict=True)), **fixed}
        return np.array(evaluate(outputs, at))

    x = np.asarray(start, dtype=float)
    for i in range(min(len(record) - 1, INTERVALS)):

        def slope(t: float, x: np.ndarray, i: int = i) -> np.ndarray:
            return values(system.f, t, x, i)

        def change(t: float, x: np.ndarray, i: int = i) -> np.ndarray:
            nonlocal fastest
            partial = values(rates, t, x, i).reshape(n, n)
            fastest = max(fastest, float(-np.linalg.eigvals(partial).real.min()))
            return partial

        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                run = scipy.integrate.solve_ivp(slope, record.t[i : i + 2], x, method="Radau", jac=change, rtol=1e-4, atol=1e-8)
                if not run.success or not np.all(np.isfinite(run.y)):
                    return None
                for t, state in zip(run.t, run.y.T, strict=True):
                    change(t, state)
        except _TooMany:
            return fastest or None
        except (ValueError, np.linalg.LinAlgError):  # not a number
            return None
        x = run.y[:, -1]
    return fastest
