"""Batches in JAX against the interpreted reference."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

pytest.importorskip("jax", reason="JAX is not installed")

import pm_sysid as sid
from pm_sysid.recurrence.batch_op import BatchRecurrence, BatchRecurrenceGradient
from pm_sysid.recurrence.op import interpreted
from pm_sysid.solve.filter_graph import Problem
from pm_sysid.steps.ek import filter_recurrence

NO_STATE = np.empty((0, 0, 0))


def case(*, shared: bool) -> tuple[BatchRecurrence, list[np.ndarray]]:
    """Five particles of a Duffing filter over two records with a missing sample."""
    system = sid.models.duffing()
    rng = np.random.default_rng(1)
    y = rng.normal(size=12)
    y[4] = np.nan
    records = [sid.TimeSeries(0.1 * np.arange(n), rng.normal(size=n), y[:n]) for n in (12, 9)]
    problem = Problem.build(system, sid.EK1(order=2, diffusion=1.0), records)
    data = problem.data(records, 2)
    params = np.concatenate([[1.0, 0.5, 4.0, 2.0], [3.0], [0.2], data.scale])
    many = np.tile(params, (5, 1))
    many[:, :6] *= np.exp(0.1 * rng.normal(size=(5, 6)))
    starts = np.concatenate([0.1 * rng.normal(size=(2, 2)), np.zeros((2, 2)), data.starts], axis=1)
    starts = (
        starts[None]
        if shared
        else starts + np.pad(0.1 * rng.normal(size=(5, 2, 2)), ((0, 0), (0, 0), (0, data.starts.shape[1] + 2)))
    )
    samples = np.concatenate([data.samples, np.concatenate([r.output_matrix for r in records])], axis=1)
    op = BatchRecurrence(filter_recurrence(system, problem.form))
    return op, [many[:, None], starts, NO_STATE, np.arange(22), data.counts, data.substeps, samples, np.array(1)]


@pytest.mark.parametrize("edges", [np.arange(22), [0, 21], [0, 7, 7, 15]], ids=["pointwise", "sum", "blocks of a prefix"])
@pytest.mark.parametrize("shared", [True, False])
def test_sums_and_gradients_equal_the_interpreted_ones(edges: np.ndarray, shared: bool) -> None:
    op, arrays = case(shared=shared)
    arrays[3] = np.asarray(edges)
    rng = np.random.default_rng(2)
    expected = interpreted(op)(*arrays)
    cotangents = [rng.normal(size=expected[0].shape), np.zeros(expected[1].shape)]
    inputs = [pt.as_tensor_variable(a).type() for a in arrays]
    (sums, _) = op(*inputs)
    reverse = BatchRecurrenceGradient(op.recurrence)
    outputs = [sums, *reverse(*inputs, *cotangents)]
    function = pytensor.function(inputs, outputs, mode="JAX", on_unused_input="ignore")
    found = [np.asarray(a) for a in function(*arrays)]
    for a, b in zip(found, [expected[0], *interpreted(reverse)(*arrays, *cotangents)], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())


def test_a_batch_goes_on_from_a_state_in_numba_only() -> None:
    op, arrays = case(shared=True)
    arrays[2] = np.zeros((5, 2, op.recurrence.n_carry))
    inputs = [pt.as_tensor_variable(a).type() for a in arrays]
    function = pytensor.function(inputs, op(*inputs), mode="JAX")
    with pytest.raises(NotImplementedError, match="cannot continue a batch from a state"):
        function(*arrays)
