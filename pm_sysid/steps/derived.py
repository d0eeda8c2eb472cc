"""What a system computes from its parameters alone, once a parameter set: solutions of linear systems, eigenvalues, bases.

The recurrences of a system take its parameters and, after them, what is derived from these (``System.derived``). Here the
parameters of a user are completed: as an expression, as arrays of many sets, and with their rates of change.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph import graph_replace, vectorize_graph

from pm_sysid.compat import MatrixInverse, toposort
from pm_sysid.recurrence.functions import compiled
from pm_sysid.symbolic.system import System


def completed(system: System, params: Any) -> Any:
    """Parameters (P,) or (R, P) and what is derived from them, as an expression; the same one where there is nothing."""
    if not system.derived:
        return params
    if params.ndim == 1:
        return pt.concatenate([params, _derived(system, params)])
    row = pt.vector(shape=(len(system.params),))
    return pt.concatenate([params, vectorize_graph(_derived(system, row), {row: params})], axis=1)


def completed_sets(system: System, params: np.ndarray) -> np.ndarray:
    """Arrays (N, P + D) of parameter sets (N, P)."""
    if not system.derived:
        return params
    return np.concatenate([params, _values(system)(np.ascontiguousarray(params, dtype=float))], axis=1)


def completed_rates(system: System, params: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Rates of change (N, B, P + D) of the completed sets where the parameters (N, P) change by ``rates`` (N, B, P)."""
    if not system.derived or not rates.shape[1]:
        return rates if not system.derived else np.zeros((*rates.shape[:2], len(system.p)))
    slopes = _slopes(system)(np.ascontiguousarray(params, dtype=float))
    return np.concatenate([rates, np.einsum("nbp,ndp->nbd", rates, slopes)], axis=2)


def _derived(system: System, params: Any) -> Any:
    """Entries (D,) that the equations read."""
    places = system.params.vectors()
    replace = {
        tensor: params[places[name]].reshape(shape) if shape else params[places[name].start]
        for tensor, (name, shape) in zip(system.tensors, system.params.shapes.items(), strict=True)
    }
    found = graph_replace([_without_errors(d.expression) for d in system.derived], replace, strict=False)
    parts = []
    for v, d in zip(found, system.derived, strict=True):
        flat = pt.cast(v, "float64").reshape((-1,))
        parts.append(flat if len(d.places) == np.prod(v.type.shape, dtype=object) else flat[d.places])
    return pt.concatenate(parts)


def _without_errors(expression: Any) -> Any:
    """The same expression with inverses that are no numbers where a matrix has none, and no error."""
    inverses = [n for n in toposort([expression]) if isinstance(getattr(n.op, "core_op", n.op), MatrixInverse)]
    for node in inverses:
        matrix = node.inputs[0]
        solution = pt.linalg.solve(matrix, pt.eye(matrix.shape[-1]))
        (expression,) = graph_replace([expression], {node.outputs[0]: solution}, strict=False)
    return expression


@lru_cache(maxsize=64)
def _values(system: System) -> Callable[[np.ndarray], np.ndarray]:
    params, many = pt.vector(shape=(len(system.params),)), pt.matrix(shape=(None, len(system.params)))
    result: Callable[[np.ndarray], np.ndarray] = compiled([many], vectorize_graph(_derived(system, params), {params: many}))
    return result


@lru_cache(maxsize=64)
def _slopes(system: System) -> Callable[[np.ndarray], np.ndarray]:
    """Function of sets (N, P) that gives the Jacobians (N, D, P): one reverse sweep for each entry, all at once."""
    n, n_derived = len(system.params), len(system.p) - len(system.params)
    params, many, weight = pt.vector(shape=(n,)), pt.matrix(shape=(None, n)), pt.vector(shape=(n_derived,))
    slope = pt.grad(pt.dot(weight, _derived(system, params)), params, disconnected_inputs="ignore")
    rows = vectorize_graph(slope, {weight: pt.constant(np.eye(n_derived))})
    result: Callable[[np.ndarray], np.ndarray] = compiled([many], vectorize_graph(rows, {params: many}))
    return result
