"""What the linearisation of an extended Kalman filter costs a fit: by a step towards the optimum of an unscented one."""

from __future__ import annotations

import numpy as np

from pm_sysid.pem.filters import KalmanFilter
from pm_sysid.pem.objective import Objective
from pm_sysid.pem.step_error import newton_step

#: Sigma points of an UnscentedKalman: alpha, beta, kappa.
SIGMA = (1.0, 0.0, 0.0)
#: States of a system whose unscented filter compiles in seconds, with derivatives.
MOST_STATES = 5


def linearisation_shift(target: Objective, x: np.ndarray, stderr: np.ndarray) -> np.ndarray:
    """By how much unknowns (k,) would move from an optimum if the filter did not linearise; zero where nothing is linearised.

    The covariance that an extended Kalman filter hands on from sample to sample is that of equations which are linear about
    the mean. Where the state is spread wide (process noise, long sampling intervals), the mean of the next prediction is not
    the prediction of the mean, and estimates are biased by more than their standard errors. The unscented filter is right to
    the second order there. Systems of more than five states are not looked at: its derivatives take long to compile.

    Parameters
    ----------
    target : Objective
    x, stderr : ndarray, shape (k,)
        The optimum and its standard errors.

    Notes
    -----
    One step of Gauss and Newton by the unscented filter on the same steps.
    """
    nothing, filter = np.zeros(x.size), target.filter
    free = np.flatnonzero(np.isfinite(stderr) & (stderr > 0))
    if (
        not isinstance(filter, KalmanFilter)
        or filter.form.certain
        or filter.form.sigma
        or not free.size
        or len(filter.system.states) > MOST_STATES
        or filter.system.linear
    ):
        return nothing
    other = type(target)(filter.with_sigma_points(SIGMA), target.layout)
    at = other.evaluate(x)
    if not at.finite:
        return nothing
    nothing[free] = newton_step(at, x, free)[0]
    return nothing
