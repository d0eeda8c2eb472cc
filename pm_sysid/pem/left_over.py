"""What a fit has left in the innovations: structure, and how much of the outputs."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

from pm_sysid.pem.objective import LogLikelihood, Objective
from pm_sysid.records.residual_tests import ljung_box

#: Largest lag of the test, and the fewest innovations for each of them.
LAGS, EACH = 25, 4
#: Innovations are coloured where white ones would look so once in this many times.
COLOURED = 1e-4
#: A fit that has left this share of the outputs' variance, or more, explains no more than a constant.
NOTHING = 0.8
#: One that has left at most this share explains the outputs, coloured innovations or not.
LITTLE = 0.05
#: What to do about errors with many optima, as those of a long free run are where neighbouring solutions part.
SHORTER = (
    "Over a long free run, errors of chaotic, unstable or oscillating systems have very many optima: fit a shorter part of the "
    "record first, or predict with the measured output, by process noise (predictor=ExtendedKalman(Q=..., R=...)); or give "
    "bounds, a better guess or more starts (starts=50)."
)


class LeftOver(NamedTuple):
    """``p``: least p-value for white innovations, over records and outputs; ``share`` of the outputs' variance left over."""

    p: float
    share: float

    @property
    def coloured(self) -> bool:
        """Whether the innovations have a structure in time."""
        return self.p < COLOURED

    @property
    def explains_nothing(self) -> bool:
        """Whether a constant output would be as good."""
        return self.coloured and self.share > NOTHING

    @property
    def poor(self) -> bool:
        """Whether there may well be a better optimum."""
        return self.coloured and self.share > LITTLE

    @property
    def words(self) -> str:
        """What a reader must know; empty where there is nothing to say."""
        if self.explains_nothing:
            return (
                f"The fit explains nothing: its errors have {100 * self.share:.0f} % of the outputs' variance, and are not "
                f"white. {SHORTER} Or use another model."
            )
        if self.coloured:
            return f"The innovations are not white (p = {self.p:.1g}; see resid()): the standard errors are too small."
        return ""


def left_over(objective: Objective, x: np.ndarray) -> LeftOver:
    """Test the innovations at unknowns ``x``."""
    filter, m, at = objective.filter, objective.measured.shape[1], 0
    with np.errstate(all="ignore"):
        values, _ = filter.run(*objective.layout.place(x), objective.layout.motion, objective.want)
        errors = values[:, :m]
        z = errors / np.sqrt(values[:, m : 2 * m]) if isinstance(objective, LogLikelihood) else errors
    y = np.concatenate([r.output_matrix for r in filter.records])
    tests = [1.0]
    for record in filter.records:
        rows = slice(at, at + len(record))
        at += len(record)
        for i in range(m):
            series = np.where(objective.measured[rows, i], z[rows, i], np.nan)
            lags = min(LAGS, int(objective.measured[rows, i].sum()) // EACH)
            if lags > 0 and np.nanstd(series) > 1e-9 * max(float(np.nanstd(y[rows, i])), 1e-300):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tests.append(ljung_box(series, lags).p)
    shares = [
        np.mean(errors[seen, i] ** 2) / max(float(np.var(y[seen, i])), 1e-300)
        for i, seen in enumerate(objective.measured.T)
        if seen.any()
    ]
    return LeftOver(min(1.0, float(np.nanmin(tests)) * max(len(tests) - 1, 1)), float(np.mean(shares)))
