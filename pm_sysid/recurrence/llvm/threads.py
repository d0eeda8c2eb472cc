"""Blocks of work on several threads, from inside a kernel.

The threads live for one call: they are created, share out the blocks through an atomic counter, and are joined before the
call returns. They hold no lock and no Python object, so that they go along with forked and spawned processes and with
samplers that have threads of their own; a pool that outlived the call would not.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

#: More threads than this are not started.
MOST = 256
_INT, _LONG, _POINTER = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()


def share_out(caller: Any, block: ast.FunctionDef, n_blocks: Any, threads: Any, *arguments: Any) -> None:
    """Run ``block(i, *arguments)`` for every block ``i`` below ``n_blocks``.

    Parameters
    ----------
    caller : Body
        Body of the function that shares out the work.
    block : ast.FunctionDef
        Function of a block's number and the arguments.
    n_blocks, threads
        Whole numbers.
    arguments
        Whole numbers and arrays.
    """
    b = caller.builder
    # What the threads share: the next block, their number, a fault, and the arguments.
    values = [ir.Constant(_LONG, 0), n_blocks, ir.Constant(_LONG, 0), *_flat(arguments)]
    kind = ir.LiteralStructType([v.type for v in values])
    shared = caller.variable(ir.Constant(kind, ir.Undefined), kind)
    for k, value in enumerate(values):
        b.store(value, _field(b, shared, k))
    worker = _worker(caller, block, kind, arguments)
    pointer = b.bitcast(shared, _POINTER)
    with _started(caller, worker, pointer, n_blocks, threads):
        b.call(worker, [pointer])
    fault = b.load(_field(b, shared, 2))
    with b.if_then(b.icmp_signed("!=", fault, ir.Constant(_LONG, 0)), likely=False):
        for frame in caller.frames:
            caller.free(frame)
        b.ret(fault)
        b.position_at_end(caller.function.append_basic_block("unreachable"))


def _field(builder: ir.IRBuilder, struct: Any, k: int) -> Any:
    return builder.gep(struct, [ir.Constant(_INT, 0), ir.Constant(_INT, k)])


def _flat(arguments: Sequence[Any]) -> list[Any]:
    """Numbers and addresses that arguments are made of; an array is a tuple ``base, shape, strides``."""
    return [v for a in arguments for v in ((a[0], *a[1], *a[2]) if isinstance(a, tuple) else (a,))]


def _like(arguments: Sequence[Any], values: Any) -> list[Any]:
    """Arguments made of other numbers and addresses."""
    made = []
    for a in arguments:
        if isinstance(a, tuple):
            kind: Any = type(a)
            n = len(a[1])
            made.append(kind(next(values), tuple(next(values) for _ in range(n)), tuple(next(values) for _ in range(n))))
        else:
            made.append(next(values))
    return made


def _worker(caller: Any, block: ast.FunctionDef, kind: Any, arguments: Sequence[Any]) -> ir.Function:
    """What a thread does: take the next block until there is none."""
    module = caller.loops.module
    worker = ir.Function(module, ir.FunctionType(_POINTER, [_POINTER]), "worker")
    worker.linkage = "internal"
    fields: list[Any] = []

    def leave(builder: ir.IRBuilder, fault: int) -> None:
        builder.store(ir.Constant(_LONG, fault), fields[2])
        builder.ret(ir.Constant(_POINTER, None))

    body = type(caller)(caller.loops, worker, leave)
    b = body.builder
    shared = b.bitcast(worker.args[0], kind.as_pointer())
    fields += [_field(b, shared, k) for k in range(len(kind.elements))]
    count = b.load(fields[1])
    own = _like(arguments, iter([b.load(f) for f in fields[3:]]))
    loop, work, done = (worker.append_basic_block(n) for n in ("next", "work", "done"))
    b.branch(loop)
    b.position_at_end(loop)
    number = b.atomic_rmw("add", fields[0], ir.Constant(_LONG, 1), "monotonic")
    b.cbranch(b.icmp_signed("<", number, count), work, done)
    b.position_at_end(work)
    body.call(block, [number, *own])
    b.branch(loop)
    b.position_at_end(done)
    b.ret(ir.Constant(_POINTER, None))
    return worker


class _started:
    """Threads that run ``worker`` beside the code in the ``with`` block, and are joined after it."""

    def __init__(self, caller: Any, worker: ir.Function, pointer: Any, n_blocks: Any, threads: Any) -> None:
        self.caller, self.worker, self.pointer = caller, worker, pointer
        self.n_blocks, self.threads = n_blocks, threads
        self.available = sys.platform != "win32"  # there the calling thread does all the work

    def _each(self, count: Any) -> Any:
        """Loop over whole numbers below ``count``: yields once, inside the loop."""
        b, caller = self.caller.builder, self.caller
        counter = caller.variable(ir.Constant(_LONG, 0))
        with caller.loop() as (head, body, end):
            b.position_at_end(head)
            current = b.load(counter)
            b.cbranch(b.icmp_signed("<", current, count), body, end)
            b.position_at_end(body)
            yield current
            b.store(b.add(current, ir.Constant(_LONG, 1)), counter)
            b.branch(head)

    def __enter__(self) -> None:
        if not self.available:
            return
        b, caller = self.caller.builder, self.caller
        with b.goto_block(caller.entry):
            self.handles = b.alloca(_LONG, ir.Constant(_INT, MOST))
        self.running = caller.variable(ir.Constant(_LONG, 0))
        kinds = [_LONG.as_pointer(), _POINTER, self.worker.type, _POINTER]
        create = caller.external("pthread_create", _INT, kinds)
        wanted = self.threads
        for limit in (self.n_blocks, ir.Constant(_LONG, MOST)):
            wanted = b.select(b.icmp_signed("<", wanted, limit), wanted, limit)
        null = ir.Constant(_POINTER, None)
        for _ in self._each(b.sub(wanted, ir.Constant(_LONG, 1))):
            place = b.gep(self.handles, [b.load(self.running)])
            failed = b.call(create, [place, null, self.worker, self.pointer])
            # A thread the system refuses is done without: the others take its blocks.
            b.store(b.add(b.load(self.running), b.zext(b.icmp_signed("==", failed, ir.Constant(_INT, 0)), _LONG)), self.running)

    def __exit__(self, *_: Any) -> None:
        if not self.available:
            return
        b, caller = self.caller.builder, self.caller
        join = caller.external("pthread_join", _INT, [_LONG, _POINTER])
        for k in self._each(b.load(self.running)):
            b.call(join, [b.load(b.gep(self.handles, [k])), ir.Constant(_POINTER, None)])
