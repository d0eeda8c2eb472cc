"""A batch of recurrences as JAX functions: the single one, mapped over particles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pm_sysid.compat import jax_dispatch
from pm_sysid.recurrence.batch_op import BatchRecurrence, BatchRecurrenceGradient
from pm_sysid.recurrence.jax.single import jax_recurrence
from pm_sysid.recurrence.op import Recurrence

jax_funcify = jax_dispatch()


def jax_batch(op: Recurrence) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Return a batch as a pure JAX function ``run(params, starts, edges, counts, substeps, samples)``.

    Shapes are static in JAX: every call runs the whole record, and samples outside the edges are left out of the sums. A
    run cannot be continued from a state.
    """
    single = jax_recurrence(op)

    def run(params: Any, starts: Any, edges: Any, counts: Any, substeps: Any, samples: Any) -> tuple[jax.Array, jax.Array]:
        starts = jnp.broadcast_to(starts, (params.shape[0], *starts.shape[1:]))
        outputs, final = jax.vmap(single, in_axes=(0, 0, None, None, None))(params, starts, counts, substeps, samples)
        n_blocks = edges.shape[0] - 1
        block = jnp.searchsorted(edges, jnp.arange(samples.shape[0]), side="right") - 1
        block = jnp.where((block < 0) | (block >= n_blocks), n_blocks, block)
        total = partial(jax.ops.segment_sum, segment_ids=block, num_segments=n_blocks + 1)
        return jax.vmap(total)(outputs)[:, :-1], final

    return run


def _without_state(state: Any) -> None:
    if state.shape[0]:
        raise NotImplementedError(
            "JAX cannot continue a batch from a state, since its shapes are static; run it from sample 0."
        )


@jax_funcify.register(BatchRecurrence)
def _(op: BatchRecurrence, **kwargs: Any) -> Callable[..., tuple[jax.Array, jax.Array]]:
    batch = jax_batch(op.recurrence)

    def run(params: Any, starts: Any, state: Any, *record: Any) -> tuple[jax.Array, jax.Array]:
        _without_state(state)
        return batch(params, starts, *record[:-1])

    return run


@jax_funcify.register(BatchRecurrenceGradient)
def _(op: BatchRecurrenceGradient, **kwargs: Any) -> Callable[..., tuple[jax.Array, jax.Array]]:
    batch = jax_batch(op.recurrence)

    def run(params: Any, starts: Any, state: Any, *rest: Any) -> tuple[jax.Array, jax.Array]:
        _without_state(state)
        *record, _, g_sums, g_final = rest
        own = jnp.broadcast_to(starts, (params.shape[0], *starts.shape[1:]))
        outputs, pull = jax.vjp(lambda p, s: batch(p, s, *record), params, own)
        cotangents = tuple(jnp.broadcast_to(c, o.shape) for c, o in zip((g_sums, g_final), outputs, strict=True))
        result: tuple[jax.Array, jax.Array] = pull(cotangents)
        return result

    return run
