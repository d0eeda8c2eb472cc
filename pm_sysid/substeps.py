"""How many filter steps a sampling interval needs."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.graph.traversal import ancestors

from pm_sysid.doors import among, shown, whole
from pm_sysid.problem import Problem, RecordData, Unknowns
from pm_sysid.steps.rk4 import rk4_inputs, rk4_recurrence
from pm_sysid.timeseries import TimeSeries

_log = logging.getLogger("pm_sysid")

#: The log-likelihood may move by this much when the substeps are doubled.
TOLERANCE = 0.1
#: Substeps are not doubled beyond this.
MOST = 32
#: More than this many are a mistake.
LIMIT = 10**6
#: Order of the differences in which noise stands out from a signal, and how many of them tell its level.
DIFFERENCE, FEWEST = 4, 20
#: Samples of a record that are looked at; what its log-likelihood moves is extrapolated to all.
LOOK = 20_000


class SubstepWarning(UserWarning):
    """The filter's step is too coarse for the log-likelihood to be trusted."""


def checked_substeps(substeps: Any, whose: str = "") -> int | Literal["auto"]:
    """A positive whole number, or ``"auto"``."""
    if among(substeps, ("auto",)):
        return "auto"
    if not whole(substeps, 1, LIMIT):
        raise ValueError(f"{whose}substeps is {shown(substeps)}; give a positive integer or 'auto'.")
    return int(substeps)


def doubled_until(
    runs: Callable[[int], np.ndarray], moved: Callable[[np.ndarray, np.ndarray], float], tolerance: float
) -> tuple[int, bool]:
    """Fewest substeps, a power of two, whose doubling moves the runs by less than a tolerance; False if none does."""
    n, now = 1, runs(1)
    while n < 2 * MOST:
        then = runs(2 * n)
        if moved(now, then) < tolerance:
            return n, True
        n, now = 2 * n, then
    return n, False


def evaluate_at_initial_point(expressions: Sequence[Any], model: pm.Model | None) -> list[np.ndarray]:
    """Numbers for expressions of a model's variables at its initial point."""
    if model is None:
        return [np.asarray(e.eval()) for e in expressions]
    mode = pytensor.compile.mode.Mode(linker="py", optimizer=None)
    values = model.replace_rvs_by_values(list(expressions))
    function = pytensor.function(model.value_vars, values, on_unused_input="ignore", mode=mode)
    point = model.initial_point(random_seed=0)
    return list(function(**{v.name: point[v.name] for v in model.value_vars}))


def reference_point(unknowns: Unknowns, model: pm.Model | None) -> Unknowns:
    """Numbers for the unknowns at a model's initial point."""
    return Unknowns(*evaluate_at_initial_point([pt.as_tensor_variable(v) for v in unknowns], model))


def synthetic_outputs(problem: Problem, records: Sequence[TimeSeries], at: Unknowns, seed: int = 0) -> np.ndarray:
    """A record with known parameters: an accurate deterministic solution and drawn noise, shape (T, n_y)."""
    recurrence = rk4_recurrence(problem.system)
    args = [pt.dvector(), pt.dmatrix(), pt.lvector(), pt.dmatrix(), pt.dmatrix()]
    run = pytensor.function(args, recurrence(*args)[0], trust_input=True)
    n_y = len(problem.system.g)
    rng = np.random.default_rng(seed)
    parts = []
    for r, record in enumerate(records):
        inputs = rk4_inputs(record, 2 * MOST)
        outputs = run(
            np.asarray(at.params, float),
            np.asarray(at.x0[r : r + 1], float),
            inputs.counts,
            inputs.substeps,
            inputs.samples,
        )[:, :n_y]
        noisy = outputs + at.noise * rng.standard_normal(outputs.shape)
        parts.append(np.where(np.isnan(record.output_matrix), np.nan, noisy))
    return np.concatenate(parts)


def noise_level(records: Sequence[TimeSeries]) -> np.ndarray:
    """Standard deviation (n_y,) of the noise of each output, roughly, without a model: what fourth differences leave.

    The median of their size, so that outliers do not count; never less than a thousandth of the signal, and infinite where
    too little is measured. A fast signal adds to it: it is an upper limit.
    """
    y = [r.output_matrix for r in records]
    differences = np.concatenate([_differences(r.t, v) for r, v in zip(records, y, strict=True)])
    levels = np.full(y[0].shape[1], np.inf)
    for i, d in enumerate(differences.T):
        d, seen = d[np.isfinite(d)], np.concatenate([v[:, i] for v in y])
        if len(d) >= FEWEST:
            rough = float(np.median(np.abs(d))) / 0.6745
            levels[i] = max(rough, 1e-3 * float(np.nanstd(seen))) or np.inf
    return levels


def _differences(t: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Divided differences (m, n_y) of neighbours, over their standard deviation for unit noise: regular times or not."""
    if len(t) <= DIFFERENCE:
        return np.empty((0, y.shape[1]))
    near = np.lib.stride_tricks.sliding_window_view(t, DIFFERENCE + 1)
    apart = near[:, :, None] - near[:, None, :]
    apart = apart / np.abs(apart).max(axis=(1, 2), keepdims=True) + np.eye(DIFFERENCE + 1)
    weights = 1 / np.prod(apart, axis=2)
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    values = np.lib.stride_tricks.sliding_window_view(y, DIFFERENCE + 1, axis=0)
    differences: np.ndarray = np.einsum("mk,mjk->mj", weights, values)
    return differences


def log_likelihoods(
    problem: Problem, records: Sequence[TimeSeries], at: Unknowns, y: np.ndarray, substeps: Sequence[int]
) -> list[float]:
    """Log-likelihood of measurements ``y`` (T, n_y) for several numbers of substeps, with one compilation."""
    unknowns = Unknowns(*(pt.as_tensor_variable(np.asarray(v, float)).type() for v in at))
    example = problem.data(records, 1)
    data = RecordData(*(pt.as_tensor_variable(a).type() for a in example))
    data = RecordData(*(pt.tensor(dtype=v.dtype, shape=(None,) * v.ndim) for v in data))
    unknowns = Unknowns(*(pt.tensor(dtype="float64", shape=(None,) * v.ndim) for v in unknowns))
    measured = pt.dmatrix("y")
    loglik, _ = problem.run(measured, unknowns, data)
    function = pytensor.function([measured, *unknowns, *data], pt.sum(loglik), on_unused_input="ignore")
    values = [np.asarray(v, float) for v in at]
    return [float(function(y, *values, *problem.data(records, s))) for s in substeps]


def choose_substeps(
    problem: Problem,
    records: Sequence[TimeSeries],
    unknowns: Unknowns,
    substeps: int | Literal["auto"],
    model: pm.Model | None,
) -> int:
    """Substeps that a user asked for, or the fewest whose doubling hardly moves the log-likelihood.

    The test record is drawn at the model's initial point (with the record's own input, times and missing samples), so
    that the answer depends on the integration alone and not on how well the initial point fits the data. One thing of the
    data counts, their noise: a prior that allows for much more would hide an integration error that the data will see.
    """
    substeps = checked_substeps(substeps)
    if all(len(r) < 2 for r in records):
        return 1 if substeps == "auto" else int(substeps)
    at = reference_point(unknowns, model)
    if model is not None and set(model.free_RVs) & set(ancestors([unknowns.noise])):
        at = at._replace(noise=np.minimum(at.noise, noise_level(records)))
    total = sum(len(r) for r in records)
    records = [r[: max(2, LOOK * len(r) // total)] if total > LOOK else r for r in records]
    tolerance = TOLERANCE * sum(len(r) for r in records) / total
    y = synthetic_outputs(problem, records, at)
    if not np.all(np.isfinite(y[~np.isnan(np.concatenate([r.output_matrix for r in records]))])):
        if substeps == "auto":
            warnings.warn(
                "substeps='auto': the ODE diverges at the model's initial point, so that no step size can be judged there; "
                "using 4 substeps. Give initval=... to the priors or a number of substeps.",
                SubstepWarning,
                stacklevel=4,
            )
        return 4 if substeps == "auto" else int(substeps)
    if substeps != "auto":
        low, high = log_likelihoods(problem, records, at, y, [int(substeps), 2 * int(substeps)])
        if not abs(high - low) < tolerance:
            warnings.warn(
                f"substeps={substeps}: at the model's initial point the log-likelihood moves by "
                f"{abs(high - low) * TOLERANCE / tolerance:.3g} when "
                f"the substeps are doubled (more than {TOLERANCE}); the posterior may be biased by integration error. "
                "Use more substeps, a higher order, or substeps='auto'.",
                SubstepWarning,
                stacklevel=4,
            )
        return int(substeps)
    tried = [1]
    while tried[-1] <= MOST:
        tried.append(2 * tried[-1])
    values = log_likelihoods(problem, records, at, y, tried[:2])
    for k in range(len(tried) - 1):
        if len(values) <= k + 1:
            values += log_likelihoods(problem, records, at, y, [tried[k + 1]])
        if abs(values[k + 1] - values[k]) < tolerance:
            _log.info("substeps='auto' chose %d filter steps a sample.", tried[k])
            return tried[k]
    warnings.warn(
        f"substeps='auto': even with {MOST} substeps the log-likelihood moves by {abs(values[-1] - values[-2]):.3g} when they "
        f"are doubled; using {MOST}. The initial point may be far off (give initval=... to the priors), or the "
        "system is not smooth.",
        SubstepWarning,
        stacklevel=4,
    )
    return MOST
