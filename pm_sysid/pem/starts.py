"""Initial states of a fit: their values, which of them are unknown, and how uncertain they are to the filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pm_sysid.initial import StartSpec, initial_state
from pm_sysid.pem.predictors import read_noise
from pm_sysid.system import System
from pm_sysid.timeseries import TimeSeries


def initial_values(system: System, records: Sequence[TimeSeries], x0: Any) -> tuple[np.ndarray, np.ndarray]:
    """Initial states (R, n_x), and standard deviations of those read off the records (zero for those given)."""
    if isinstance(x0, np.ndarray) and x0.ndim == 2:
        x0 = list(x0)  # a row for each record
    spec = StartSpec.of(x0, None, len(records))
    rows = [initial_state(system, r, given, None) for r, given in zip(records, spec.x0, strict=True)]
    return np.array([mean for mean, _ in rows], dtype=float), np.array([std for _, std in rows], dtype=float)


def estimated(system: System, n_records: int, estimate_x0: Any) -> np.ndarray:
    """Which initial states are unknown, (R, n_x).

    Raises
    ------
    TypeError, ValueError
        If the choice is none of: True or False, names of states, a dict by state; or one of these for each record.
    """

    def one(value: Any) -> np.ndarray:
        if isinstance(value, bool | np.bool_):
            return np.full(len(system.states), bool(value))
        if isinstance(value, Mapping):
            names = [k for k, v in value.items() if v]
            unknown = [k for k in value if k not in system.states]
        elif isinstance(value, list | tuple | set | frozenset) and all(isinstance(v, str) for v in value):
            names, unknown = list(value), [k for k in value if k not in system.states]
        else:
            raise TypeError(
                f"estimate_x0 is {value!r}; give True or False, names of states, or a dict of these by state; for several "
                "records, a list with one for each."
            )
        if unknown:
            raise ValueError(f"estimate_x0 names the states {unknown}, which the system does not have: {system.states}.")
        return np.array([s in names for s in system.states])

    named = isinstance(estimate_x0, list | tuple) and len(estimate_x0) > 0 and all(isinstance(v, str) for v in estimate_x0)
    if isinstance(estimate_x0, list | tuple) and not named and len(estimate_x0) > 0:
        if len(estimate_x0) != n_records:
            raise ValueError(f"estimate_x0 has {len(estimate_x0)} entries for {n_records} records; give one for each.")
        return np.array([one(v) for v in estimate_x0])
    return np.tile(one(estimate_x0), (n_records, 1))


def covariance_roots(system: System, P0: Any, default: np.ndarray) -> np.ndarray:
    """Lower triangular roots (R, n_x, n_x) of the covariance of each initial state.

    Parameters
    ----------
    system
    P0
        A matrix (n_x, n_x), a number (of which the identity is taken), None for the default; or a list or tuple with one of
        these for each record.
    default : ndarray, shape (R, n_x)
        Standard deviations where none is given.

    Raises
    ------
    ValueError
        If there are not as many as records, or one is no covariance.
    """
    n_records, n = default.shape
    if isinstance(P0, np.ndarray) and P0.ndim == 3:
        P0 = list(P0)
    given = list(P0) if isinstance(P0, list | tuple) and np.ndim(P0[0] if len(P0) else 0) != 1 else [P0] * n_records
    if len(given) != n_records:
        raise ValueError(f"P0 has {len(given)} entries for {n_records} records; give one covariance for each.")
    roots = np.zeros((n_records, n, n))
    for r, value in enumerate(given):
        if value is None:
            roots[r] = np.diag(default[r])
            continue
        if isinstance(value, str | Mapping):
            raise ValueError(f"P0 is {value!r}; give a covariance matrix of the shape {(n, n)}, or a number.")
        noise = read_noise("P0", value, system.states, positive=False)
        entries = [float(e) for e in noise.entries]
        roots[r][np.tril_indices(n) if noise.full else np.diag_indices(n)] = entries
    return roots
