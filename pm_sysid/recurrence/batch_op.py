"""Many parameter sets in one call: the batch form of a recurrence, and how a vectorised model reaches it.

Particles are independent runs of one recurrence over one record. The batch Op runs them side by side, and sums its outputs
over blocks of samples as it goes, so that a caller who wants one number a particle never stores a trajectory.
"""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.gradient import disconnected_type
from pytensor.graph.basic import Apply, Variable

from pm_sysid.recurrence.op import DerivedRunOp, as_rows, filled_cotangents


class BatchRecurrence(DerivedRunOp):
    """Run a recurrence for many parameter sets over a range of samples, summing its outputs over blocks of them.

    Parameters
    ----------
    recurrence : Recurrence
        What to run.

    Notes
    -----
    As an Op it takes

    - ``params (B, R, P)``, or ``(B, 1, P)`` where the runs of a particle share them (``(B, P)`` means that);
    - ``starts (B, R, n)``, or ``(1, R, n)`` where all particles share them;
    - ``state (B, R, n_carry)``: what an earlier call returned as ``final``, to go on from where it ended; ``(0, 0, 0)``
      when the first sample is 0;
    - ``edges (K + 1,)``: samples ``edges[0]`` up to ``edges[-1]`` are run, and block ``k`` sums those from ``edges[k]`` up
      to ``edges[k + 1]``; ``0, 1, ..., T`` gives every sample its own output and ``0, n`` a single sum over the first n;
    - ``counts (T,)``, ``substeps (N, n)`` and ``samples (T, n)`` of the record, as the recurrence has them;
    - ``threads ()``: how many to use.

    It returns ``sums (B, K, n_out)`` and ``final (B, R, n_carry)``, in which the row of a run that was not reached is NaN.
    It is differentiable in ``params`` and ``starts``.
    """

    def make_node(
        self, params: Any, starts: Any, state: Any, edges: Any, counts: Any, substeps: Any, samples: Any, threads: Any
    ) -> Apply:
        """Check and wrap the inputs."""
        inputs = [
            as_rows(params, 3),
            pt.as_tensor_variable(starts, ndim=3, dtype="float64"),
            pt.as_tensor_variable(state, ndim=3, dtype="float64"),
            pt.as_tensor_variable(edges, ndim=1, dtype="int64"),
            pt.as_tensor_variable(counts, ndim=1, dtype="int64"),
            pt.as_tensor_variable(substeps, ndim=2, dtype="float64"),
            pt.as_tensor_variable(samples, ndim=2, dtype="float64"),
            pt.as_tensor_variable(threads, ndim=0, dtype="int64"),
        ]
        outputs = [
            pt.tensor("sums", shape=(None, None, self.recurrence.n_outputs), dtype="float64"),
            pt.tensor("final", shape=(None, None, self.recurrence.n_carry), dtype="float64"),
        ]
        return Apply(self, inputs, outputs)

    def infer_shape(self, node: Apply, input_shapes: Any) -> Any:
        """One row a particle; blocks lie between edges."""
        params, starts, _, edges, *_ = input_shapes
        return [
            (params[0], edges[0] - 1, pt.constant(self.recurrence.n_outputs)),
            (params[0], starts[1], pt.constant(self.recurrence.n_carry)),
        ]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Only parameters and starts are differentiable."""
        return [[i < 2] * 2 for i in range(8)]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Variable]:
        """Pull cotangents back to parameters and starts."""
        filled = filled_cotangents(outputs, cotangents)
        g_params, g_starts = BatchRecurrenceGradient(self.recurrence)(*inputs, *filled)  # type: ignore[misc]
        if inputs[1].type.shape[0] == 1:
            g_starts = pt.sum(g_starts, axis=0, keepdims=True)
        elif inputs[1].type.shape[0] is None:  # one start for all may come in when the graph is called
            n = inputs[1].shape[0]
            g_starts = pt.switch(pt.eq(n, 1), pt.sum(g_starts, axis=0, keepdims=True), g_starts)[:n]
        return [g_params, g_starts, *(disconnected_type() for _ in range(6))]


class BatchRecurrenceGradient(DerivedRunOp):
    """Reverse sweep of a :class:`BatchRecurrence`: cotangents of its outputs to cotangents of parameters and starts."""

    def make_node(self, *inputs: Any) -> Apply:
        """Inputs of the batch, then the cotangents of its outputs, whose first dimension may be 1."""
        checked = [*BatchRecurrence(self.recurrence).make_node(*inputs[:8]).inputs]
        checked += [pt.as_tensor_variable(c, ndim=3, dtype="float64") for c in inputs[8:]]
        return Apply(self, checked, [checked[0].type("g_params"), pt.dtensor3("g_starts")])

    def infer_shape(self, node: Apply, input_shapes: Any) -> Any:
        """Every particle has its own gradient by the starts, even where it shares them."""
        params, starts = input_shapes[:2]
        return [params, (params[0], starts[1], starts[2])]
