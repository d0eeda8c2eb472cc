"""Blocks of work on several threads, from inside a compiled function.

The threads live for one call: they are created, share out the blocks through an atomic counter, and are joined before the
call returns. They hold no lock and no Python object, so that they go along with forked and spawned processes and with
samplers that have threads of their own; a pool that outlived the call would not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types, typing
from numba.core.extending import intrinsic

#: More threads than this are not started.
MOST = 256
_INT, _LONG, _POINTER = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()


def parallel(block: Any, n_arguments: int) -> Any:
    """Numba intrinsic ``run(n_blocks, threads, *arguments)``, which calls ``block(i, *arguments)`` for every block ``i``.

    Parameters
    ----------
    block : numba dispatcher
        Function of a block's number and the arguments; must return nothing and must not raise.
    n_arguments : int
        Number of arguments.
    """
    compiled: dict[Any, Any] = {}

    def prepare(kinds: tuple[Any, ...]) -> Any:
        kinds = tuple(types.unliteral(k) for k in kinds)  # type: ignore[attr-defined]
        signature = types.void(types.int64, *kinds[2:])
        if signature not in compiled:
            compiled[signature] = block.get_compile_result(signature)
        return types.void(*kinds), codegen

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        call = types.void(types.int64, *signature.args[2:])
        result = compiled[call]
        context.add_linking_libs([result.library])
        n_blocks, threads, *arguments = args
        # What the threads share: the next block, their number, and the arguments.
        shared_type = ir.LiteralStructType([_LONG, _LONG, *(a.type for a in arguments)])
        shared = cgutils.alloca_once(builder, shared_type)
        for k, value in enumerate([ir.Constant(_LONG, 0), n_blocks, *arguments]):
            builder.store(value, cgutils.gep_inbounds(builder, shared, 0, k))
        worker = _worker(context, builder.module, shared_type, result.fndesc, typing.signature(call.return_type, *call.args))
        pointer = builder.bitcast(shared, _POINTER)
        with _started(builder, worker, pointer, n_blocks, threads):
            builder.call(worker, [pointer])
        return context.get_dummy_value()

    names = ", ".join(f"a{i}" for i in range(n_arguments))
    source = f"def typer(typingctx, n_blocks, threads, {names}):\n    return prepare((n_blocks, threads, {names}))"
    namespace: dict[str, Callable[..., Any]] = {"prepare": lambda kinds: prepare(kinds)}
    exec(source, namespace)
    return intrinsic(namespace["typer"])


def _worker(context: Any, module: ir.Module, shared_type: Any, fndesc: Any, signature: Any) -> ir.Function:
    """What a thread does: take the next block until there is none."""
    kind = ir.FunctionType(_POINTER, [_POINTER])
    worker = ir.Function(module, kind, module.get_unique_name("pm_sysid_worker"))
    worker.linkage = "internal"
    builder = ir.IRBuilder(worker.append_basic_block("entry"))
    shared = builder.bitcast(worker.args[0], shared_type.as_pointer())
    fields = [cgutils.gep_inbounds(builder, shared, 0, k) for k in range(len(shared_type.elements))]
    count, *arguments = (builder.load(f) for f in fields[1:])
    loop, body, done = (worker.append_basic_block(n) for n in ("loop", "body", "done"))
    builder.branch(loop)
    builder.position_at_end(loop)
    number = builder.atomic_rmw("add", fields[0], ir.Constant(_LONG, 1), "monotonic")
    builder.cbranch(builder.icmp_signed("<", number, count), body, done)
    builder.position_at_end(body)
    context.call_internal_no_propagate(builder, fndesc, signature, [number, *arguments])
    builder.branch(loop)
    builder.position_at_end(done)
    builder.ret(ir.Constant(_POINTER, None))
    return worker


class _started:
    """Threads that run ``worker`` beside the code in the ``with`` block, and are joined after it."""

    def __init__(self, builder: ir.IRBuilder, worker: ir.Function, pointer: Any, n_blocks: Any, threads: Any) -> None:
        self.builder, self.worker, self.pointer = builder, worker, pointer
        self.n_blocks, self.threads = n_blocks, threads
        self.available = sys.platform != "win32"  # there the calling thread does all the work

    def _declare(self, name: str, kind: ir.FunctionType) -> Any:
        return cgutils.get_or_insert_function(self.builder.module, kind, name)

    def __enter__(self) -> None:
        if not self.available:
            return
        b = self.builder
        self.handles = cgutils.alloca_once(b, _LONG, size=ir.Constant(_INT, MOST))
        self.running = cgutils.alloca_once_value(b, ir.Constant(_LONG, 0))
        entry = ir.FunctionType(_INT, [_LONG.as_pointer(), _POINTER, self.worker.type, _POINTER])
        create = self._declare("pthread_create", entry)
        wanted = self.threads
        for limit in (self.n_blocks, ir.Constant(_LONG, MOST)):
            wanted = b.select(b.icmp_signed("<", wanted, limit), wanted, limit)
        null = ir.Constant(_POINTER, None)
        with cgutils.for_range(b, b.sub(wanted, ir.Constant(_LONG, 1)), intp=_LONG):
            place = b.gep(self.handles, [b.load(self.running)])
            failed = b.call(create, [place, null, self.worker, self.pointer])
            # A thread the system refuses is done without: the others take its blocks.
            b.store(b.add(b.load(self.running), b.zext(b.icmp_signed("==", failed, ir.Constant(_INT, 0)), _LONG)), self.running)

    def __exit__(self, *_: Any) -> None:
        if not self.available:
            return
        b = self.builder
        join = self._declare("pthread_join", ir.FunctionType(_INT, [_LONG, _POINTER]))
        with cgutils.for_range(b, b.load(self.running), intp=_LONG) as loop:
            b.call(join, [b.load(b.gep(self.handles, [loop.index])), ir.Constant(_POINTER, None)])
