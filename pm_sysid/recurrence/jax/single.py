"""A recurrence as JAX functions: a loop over the samples, and a second one that pulls its derivative back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial, reduce
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytensor.scalar.basic as psb
from jax import lax
from jax.custom_derivatives import SymbolicZero
from pytensor.graph.basic import Apply, Constant, Variable

from pm_sysid.compat import FrozenFunctionGraph, jax_dispatch
from pm_sysid.recurrence.op import Phase, Recurrence, RecurrenceGradient
from pm_sysid.symbolic.routines import Routine
from pm_sysid.symbolic.scalars import untraced

jax_funcify = jax_dispatch()

# ---------------------------------------------------------------------------------------------------------------------
# scalar graphs
# ---------------------------------------------------------------------------------------------------------------------


def _truth(x: Any) -> Any:
    """Whether a number is not zero."""
    return x if jnp.result_type(x) == np.bool_ else x != 0.0


def _real(x: Any) -> Any:
    """Return a truth value as 0 or 1, and anything else as it is."""
    return x.astype(float) if jnp.result_type(x) == np.bool_ else x


#: Operations on truth values; those to which PyTensor's conversion gives another meaning than the other backends do; and
#: the two most frequent ones, to which it adds a neutral element.
_OWN: Mapping[type, Callable[..., Any]] = {
    psb.Add: lambda *args: reduce(lax.add, map(_real, args)),
    psb.Mul: lambda *args: reduce(lax.mul, map(_real, args)),
    psb.AND: lambda a, b: _truth(a) & _truth(b),
    psb.OR: lambda a, b: _truth(a) | _truth(b),
    psb.XOR: lambda a, b: _truth(a) ^ _truth(b),
    psb.Invert: lambda a: ~_truth(a),
    psb.Switch: lambda c, a, b: jnp.where(_truth(c), _real(a), _real(b)),
    psb.Cast: _real,
    psb.Mod: lambda a, b: _real(a) - jnp.floor(_real(a) / _real(b)) * _real(b),
    psb.IntDiv: lambda a, b: jnp.floor(_real(a) / _real(b)),
}


def _scalar_function(node: Apply) -> Callable[..., Any]:
    """JAX function of one scalar operation."""
    op: Any = node.op
    if type(op) in _OWN:
        return _OWN[type(op)]
    try:
        function = jax_funcify(op, node=node)
    except NotImplementedError as error:
        message = f"the operation {op} is not available in a recurrence; use elementary functions."
        raise NotImplementedError(message) from error
    return lambda *args: function(*(_real(a) for a in args))


def _routine(node: Apply, entries: Sequence[Any]) -> list[Any]:
    """Outputs of a routine, computed on whole arrays."""
    routine: Any = node.op
    rest = iter(entries)
    arrays = []
    for shape in routine.reads:
        part = list(islice(rest, math.prod(shape)))
        arrays.append(jnp.stack(part).reshape(shape) if part else jnp.zeros(shape))
    made = lax.optimization_barrier(tuple(routine.compute(jnp, *arrays)))  # type: ignore[no-untyped-call]
    return [x for a in made if a.size for x in jnp.unstack(a.ravel())]


def _vector_function(graph: FrozenFunctionGraph, sizes: Sequence[int]) -> Callable[..., list[jax.Array]]:
    """Scalar graph as a function of vectors, its inputs in order, to vectors of the given sizes."""
    nodes = [(node, None if isinstance(node.op, Routine) else _scalar_function(node)) for node in graph.toposort()]
    uses = Counter(v for node, _ in nodes for v in set(node.inputs)) + Counter(graph.outputs)

    def run(*vectors: Any) -> list[jax.Array]:
        entries = (x for v in vectors for x in jnp.unstack(v))
        values: dict[Variable, Any] = dict(zip(graph.inputs, entries, strict=True))

        def look_up(v: Variable) -> Any:
            return float(v.data) if isinstance(v, Constant) else values[v]

        for node, function in nodes:
            if function is None:
                made = _routine(node, [jnp.asarray(_real(look_up(v)), float) for v in node.inputs])
                values.update(zip(node.outputs, made, strict=True))
                continue
            value, out = function(*(look_up(v) for v in node.inputs)), node.outputs[0]
            # Fusion would compute a shared value again for each of its uses: ten times the work, and as slow to compile.
            values[out] = lax.optimization_barrier(value) if uses[out] > 1 else value  # type: ignore[no-untyped-call]
        results = (jnp.asarray(_real(look_up(o)), float) for o in graph.outputs)
        return [jnp.stack(part) if (part := list(islice(results, n))) else jnp.zeros(0) for n in sizes]

    return run


# ---------------------------------------------------------------------------------------------------------------------
# loops
# ---------------------------------------------------------------------------------------------------------------------

_put = partial(lax.dynamic_update_index_in_dim, axis=0)


def _own(params: Any, run: Any) -> Any:
    """Parameters of a run; all runs may share one row."""
    return params[0] if len(params) == 1 else params[run]


def _give(g_params: Any, g: Any, run: Any) -> Any:
    """Add cotangents of a run's parameters to those of all."""
    return g_params + g if len(g_params) == 1 else g_params.at[run].add(g)


def _fits(counts: Any, starts: Any, substeps: Any) -> Any:
    """Whether counts ask for all runs and substeps there are, and for no more."""
    return ((counts < 0).sum() + 1 == len(starts)) & (counts.clip(0).sum() == len(substeps))


def _nan_unless_fitting(*args: Any) -> Any:
    """Zero, or NaN where a compiled loop cannot raise."""
    return jnp.where(_fits(*args), 0.0, jnp.nan)


def _checked(op: Recurrence, arrays: Sequence[Any]) -> list[jax.Array]:
    """Inputs of a recurrence as arrays of double precision that fit each other."""
    if jnp.result_type(float) != np.float64:
        raise RuntimeError(
            "a recurrence needs double precision, which is switched off in JAX; "
            'call jax.config.update("jax_enable_x64", True) before it computes anything.'
        )
    counts = arrays[2] if isinstance(arrays[2], jax.core.Tracer) else np.asarray(arrays[2])
    params, starts, substeps, samples = (jnp.asarray(a, float) for a in (*arrays[:2], *arrays[3:5]))
    params = params if params.ndim == 2 else params[None]
    widths = (op.n_params, *(phase.n_inputs for phase in (op.start, op.substep, op.sample)))
    if (params.shape[1], starts.shape[1], substeps.shape[1], samples.shape[1]) != widths:
        raise ValueError("params, starts, substeps or samples have the wrong number of columns")
    if len(params) not in (1, len(starts)):
        raise ValueError("params must have one row, or one for each run")
    if len(counts) != len(samples) or (isinstance(counts, np.ndarray) and not _fits(counts, starts, substeps)):
        raise ValueError("counts do not match the rows of starts, substeps and samples")
    return [params, starts, jnp.asarray(counts, int), substeps, samples]


@lru_cache(maxsize=32)
def _forward(op: Recurrence) -> Any:
    """Function for outputs and final carries; and, if they are to be kept, carries before each substep and each sample."""
    start = _vector_function(op.start.graph, [op.n_carry])
    substep = _vector_function(op.substep.graph, [op.n_carry])
    sample = _vector_function(op.sample.graph, [op.n_carry, op.n_outputs])

    @partial(jax.jit, static_argnames="keep")
    def forward(params: Any, starts: Any, counts: Any, substeps: Any, samples: Any, *, keep: bool) -> Any:
        def restart(carry: Any, run: Any, final: Any) -> Any:
            return *start(_own(params, run + 1), starts[run + 1]), run + 1, _put(final, carry, run)

        def advance(_: Any, state: Any) -> Any:
            carry, own, s, tape = state
            return *substep(carry, own, substeps[s]), own, s + 1, _put(tape, carry, s) if keep else tape

        def interval(state: Any, inputs: Any) -> Any:
            (carry, run, final, s, tape), (count, row) = state, inputs
            if len(starts) > 1:
                carry, run, final = lax.cond(count < 0, restart, lambda *same: same, carry, run, final)
            if len(substeps):  # an empty array cannot be indexed, not even in a loop that never runs
                carry, _, s, tape = lax.fori_loop(0, count, advance, (carry, _own(params, run), s, tape))
            after, outputs = sample(carry, _own(params, run), row)
            return (after, run, final, s, tape), (outputs, carry if keep else None)

        (carry,) = start(params[0], starts[0])
        final, tape = jnp.zeros((len(starts), op.n_carry)), jnp.zeros((len(substeps) if keep else 0, op.n_carry))
        state, (outputs, measured) = lax.scan(interval, (carry, 0, final, 0, tape), (counts, samples))
        carry, _, final, _, tape = state
        wrong = _nan_unless_fitting(counts, starts, substeps)
        return (outputs + wrong, _put(final, carry, len(starts) - 1) + wrong), (tape, measured)

    return forward


@lru_cache(maxsize=32)
@untraced()
def _backward(op: Recurrence) -> Any:
    """Function for cotangents of parameters and starts, from the carries kept and the cotangents of what was put out."""
    nc, n_params = op.n_carry, op.n_params

    def pulled(phase: Phase, carried: int, to_inputs: bool) -> Callable[..., list[jax.Array]]:
        graph = phase.pull_back([True] * carried + op.varied + [to_inputs] * phase.n_inputs)
        sizes = [carried, n_params, phase.n_inputs]
        return _vector_function(graph, sizes)

    start, substep, sample = pulled(op.start, 0, True), pulled(op.substep, nc, False), pulled(op.sample, nc, False)

    @jax.jit
    def backward(kept: Any, arrays: Any, cotangents: Any) -> Any:
        (tape, measured), (params, starts, counts, substeps, samples), (g_outputs, g_final) = kept, arrays, cotangents

        def restart(g_carry: Any, g_params: Any, g_starts: Any, run: Any) -> Any:
            _, g, g_start = start(_own(params, run), starts[run], g_carry)
            return g_final[run - 1], _give(g_params, g, run), _put(g_starts, g_start, run), run - 1

        def retreat(_: Any, state: Any) -> Any:
            g_carry, g_params, run, s = state
            g_carry, g, _ = substep(tape[s], _own(params, run), substeps[s], g_carry)
            return g_carry, _give(g_params, g, run), run, s - 1

        def interval(state: Any, inputs: Any) -> Any:
            (g_carry, g_params, g_starts, run, s), (count, row, carry, g_output) = state, inputs
            g_carry, g, _ = sample(carry, _own(params, run), row, g_carry, g_output)
            g_params = _give(g_params, g, run)
            if len(substeps):
                g_carry, g_params, _, s = lax.fori_loop(0, count, retreat, (g_carry, g_params, run, s))
            if len(starts) > 1:
                state = g_carry, g_params, g_starts, run
                g_carry, g_params, g_starts, run = lax.cond(count < 0, restart, lambda *same: same, *state)
            return (g_carry, g_params, g_starts, run, s), None

        state = (g_final[-1], jnp.zeros_like(params), jnp.zeros_like(starts), len(starts) - 1, len(substeps) - 1)
        (g_carry, g_params, g_starts, *_), _ = lax.scan(interval, state, (counts, samples, measured, g_outputs), reverse=True)
        _, g, g_start = start(params[0], starts[0], g_carry)
        wrong = _nan_unless_fitting(counts, starts, substeps)
        return _give(g_params, g, 0) + wrong, _put(g_starts, g_start, 0) + wrong

    return backward


# ---------------------------------------------------------------------------------------------------------------------
# what others call
# ---------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def jax_recurrence(op: Recurrence, *, forward_mode: bool = False) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Return a recurrence as a pure JAX function.

    Parameters
    ----------
    op : Recurrence
        The step and its sizes.
    forward_mode : bool, default False
        JAX gives a function that brings its own reverse mode no forward mode. Leave out the derivative that is
        pulled back step by step, so that ``jax.jvp`` and ``jax.jacfwd`` work, and ``jax.grad`` does not.

    Returns
    -------
    callable
        ``run(params, starts, counts, substeps, samples)``, which returns ``outputs`` (T, n_out) and ``final``
        (R, n_carry) as :class:`~pm_sysid.recurrence.Recurrence` describes them. It can be compiled (``jax.jit``),
        batched (``jax.vmap``), and differentiated by parameters and starts. Counts may be traced; if they then do not
        match the rows of the arrays, results are NaN.

    Notes
    -----
    The reverse mode keeps the carry before every substep and every sample in memory.

    Raises
    ------
    ValueError
        When called with arrays that do not fit each other.
    RuntimeError
        When called while JAX computes in single precision.
    TypeError
        When differentiated by substeps or samples.
    """
    forward = _forward(op)

    def run(*arrays: Any) -> Any:
        return forward(*arrays, keep=False)[0]

    def keep(*arrays: Any) -> Any:
        if any(a.perturbed for a in arrays[3:]):
            raise TypeError("a recurrence is differentiable in params and starts, not in substeps and samples")
        values = tuple(a.value for a in arrays)
        results, kept = forward(*values, keep=True)
        return results, (kept, values)

    def pull(residuals: Any, cotangents: Any) -> Any:
        filled = tuple(jnp.zeros(c.shape) if isinstance(c, SymbolicZero) else c for c in cotangents)
        return *_backward(op)(*residuals, filled), None, None, None

    function: Any = run
    if not forward_mode:
        function = jax.custom_vjp(run)
        function.defvjp(keep, pull, symbolic_zeros=True)
    return lambda *arrays: function(*_checked(op, arrays))


@jax_funcify.register(Recurrence)
def _(op: Recurrence, **kwargs: Any) -> Callable[..., tuple[jax.Array, jax.Array]]:
    return jax_recurrence(op)


@jax_funcify.register(RecurrenceGradient)
def _(op: RecurrenceGradient, **kwargs: Any) -> Callable[..., tuple[jax.Array, jax.Array]]:
    def run(*inputs: Any) -> tuple[jax.Array, jax.Array]:
        arrays = _checked(op.recurrence, inputs[:5])
        _, kept = _forward(op.recurrence)(*arrays, keep=True)
        result: tuple[jax.Array, jax.Array] = _backward(op.recurrence)(kept, arrays, inputs[5:])
        return result

    return run
