"""Initial states of a fit: their values, which of them are unknown, and how uncertain they are to the filter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pm_sysid.arguments import shown
from pm_sysid.pem.predictors import read_noise
from pm_sysid.records.timeseries import TimeSeries
from pm_sysid.solve.initial_state import StartSpec, entries_by_state, initial_state
from pm_sysid.symbolic.names import named_entries
from pm_sysid.symbolic.system import System


class InitialValues(NamedTuple):
    """Initial states of records, each (R, n_x)."""

    mean: np.ndarray
    std: np.ndarray  # of those read off the record, zero for the others
    given: np.ndarray  # which a user gave a value to

    @property
    def hidden(self) -> np.ndarray:
        """Which are neither given nor shown by an output; they are taken as zero."""
        return np.asarray(~self.given & (self.std == 0.0))

    def followed_by(self, values: ArrayLike) -> InitialValues:
        """The same with further states, which begin at the same values (n,) in every record, or at those of each, (R, n)."""
        given = np.asarray(values, dtype=float)
        rows = np.broadcast_to(given, (len(self.mean), given.shape[-1]))
        parts = zip(self, (rows, np.zeros_like(rows), np.ones(rows.shape, dtype=bool)), strict=True)
        return InitialValues(*(np.concatenate(pair, axis=1) for pair in parts))


def initial_values(system: System, records: Sequence[TimeSeries], x0: Any, *, hidden: str = "zero") -> InitialValues:
    """Initial states as they are given, or as the first samples show them; ``hidden`` as for :func:`initial_state`."""
    if isinstance(x0, np.ndarray) and x0.ndim == 2:
        x0 = list(x0)  # a row for each record
    spec = StartSpec.of(x0, None, len(records), system.states)
    rows = [initial_state(system, r, x, None, hidden=hidden) for r, x in zip(records, spec.x0, strict=True)]
    named = [entries_by_state(system, "x0", x) for x in spec.x0]
    return InitialValues(
        np.array([mean for mean, _ in rows], dtype=float),
        np.array([std for _, std in rows], dtype=float),
        np.array([[s in names for s in system.states] for names in named]),
    )


def estimated(system: System, given: np.ndarray, estimate: Any) -> np.ndarray:
    """Which initial states are unknown, (R, n_x): those asked for, or by default those that are not ``given``.

    Raises
    ------
    TypeError, ValueError
        If the choice is none of: True or False, names of states, a dict by state; or one of these for each record.
    """

    def one(value: Any) -> np.ndarray:
        if isinstance(value, bool | np.bool_):
            return np.full(len(system.states), bool(value))
        if isinstance(value, Mapping):
            names, _ = named_entries(system.states, [k for k, v in value.items() if v])
            _, unknown = named_entries(system.states, value)
        elif isinstance(value, list | tuple | set | frozenset) and all(isinstance(v, str) for v in value):
            names, unknown = named_entries(system.states, value)
        else:
            raise TypeError(
                f"InitialState: estimate is {shown(value)}; give True or False, names of states, or a dict of these by state; "
                "for several records, a list with one for each."
            )
        if unknown:
            raise ValueError(
                f"InitialState: estimate names the states {unknown}, which the system does not have: {system.states}."
            )
        return np.array([s in names for s in system.states])

    if estimate is None:
        return ~given
    n_records = len(given)
    named = isinstance(estimate, list | tuple) and len(estimate) > 0 and all(isinstance(v, str) for v in estimate)
    if isinstance(estimate, list | tuple) and not named and len(estimate) > 0:
        if len(estimate) != n_records:
            raise ValueError(f"InitialState: estimate has {len(estimate)} entries for {n_records} records; give one for each.")
        return np.array([one(v) for v in estimate])
    return np.tile(one(estimate), (n_records, 1))


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
