"""How PyTensor's numba functions call a kernel: by its symbol, without a copy of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache, partial
from hashlib import sha256
from inspect import getsource
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from pytensor import config

from pm_sysid.compat.numba import cgutils, compile_numba_function_src, numba_njit
from pm_sysid.recurrence.llvm.loops import FAULTS, functions_of

_LONG = ir.IntType(64)
#: Part of the keys under which PyTensor keeps the functions below.
_VERSION = sha256(getsource(sys.modules[__name__]).encode()).hexdigest()


@intrinsic
def invoke(typingctx: Any, address: Any, arguments: Any) -> Any:
    """Call a kernel with arrays, which it gets as address and shape, and whole numbers; returns the number of its fault."""
    return _invoked(address, arguments)


@intrinsic
def invoke_strided(typingctx: Any, address: Any, inputs: Any, results: Any) -> Any:
    """Call a kernel with inputs whose strides in bytes follow their shapes, numbers, and results without strides."""
    return _invoked(address, inputs, results, strided=True)


def _invoked(address: Any, *groups: Any, strided: bool = False) -> tuple[Any, Any]:
    """Signature of a call of a kernel with the parts of tuples, and what writes it; arrays of the first may have strides."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        values: list[Any] = []
        for k, (group, given) in enumerate(zip(signature.args[1:], args[1:], strict=True)):
            for kind, value in zip(group.types, cgutils.unpack_tuple(builder, given), strict=True):
                if isinstance(kind, types.Array):
                    array = context.make_array(kind)(context, builder, value)
                    values += [array.data, *cgutils.unpack_tuple(builder, array.shape, kind.ndim)]
                    values += cgutils.unpack_tuple(builder, array.strides, kind.ndim) if strided and k == 0 else []
                elif isinstance(kind, types.Float):
                    values.append(context.cast(builder, value, kind, types.float64))
                else:
                    values.append(context.cast(builder, value, kind, types.int64))
        function = ir.FunctionType(_LONG, [v.type for v in values])
        return builder.call(builder.inttoptr(args[0], function.as_pointer()), values)

    return types.int64(address, *groups), codegen


REFUSE = "def refuse(fault):\n" + "\n".join(
    f"    if fault == {k}:\n        raise {'MemoryError' if k == len(FAULTS) else 'ValueError'}({text!r})"
    for k, text in enumerate(FAULTS, 1)
)


def numba_function(source: str, symbol: str, sizes: Sequence[int] = ()) -> Any:
    """Numba function of a kernel, for the functions that PyTensor makes of operations.

    It is written into those: numba need not compile one more.

    Parameters
    ----------
    source : str
        Text of a function of the kernel's address, of what has to be known of it and of the arrays; the same for all kernels
        of a kind, so that it is compiled once.
    symbol : str
        The kernel.
    sizes : sequence of int
        What has to be known of it.
    """
    run, arguments = _shared(source)
    given = ", ".join(arguments[1 + len(sizes) :])
    text = f"def kernel(typing, {given}):\n    return typed(typing, ({given},))"
    return intrinsic(_function(text, "kernel", {"typed": partial(_typed, run, symbol, tuple(sizes))}))


def _typed(run: Any, symbol: str, sizes: Sequence[int], typing: Any, given: Sequence[Any]) -> tuple[Any, Any]:
    """Signature of a call of ``run`` with a kernel and arguments, and what writes it."""
    run = types.Dispatcher(run)
    called = run.get_call_type(typing, (*(types.int64,) * (1 + len(sizes)), *given), {})

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [])
        address = builder.ptrtoint(cgutils.get_or_insert_function(builder.module, kind, symbol), _LONG)
        call = context.get_function(run, called)
        context.add_linking_libs(call.libs)
        return call(builder, [address, *(ir.Constant(_LONG, n) for n in sizes), *args])

    return called.return_type(*given), codegen


@lru_cache(maxsize=64)
def _shared(source: str) -> tuple[Any, list[str]]:
    """Numba function of a text, and the names of its arguments."""
    kept = {"cache": config.numba__cache}
    refuse = numba_njit(_function(REFUSE, "refuse", {}, f"pm_sysid refuse {_VERSION}"), **kept)
    tools = {"np": np, "invoke": invoke, "invoke_strided": invoke_strided, "refuse": refuse}
    tools |= {"contiguous": np.ascontiguousarray}
    (name,) = functions_of(source)
    function = _function(source, name, tools, f"pm_sysid {source} {_VERSION}")
    return numba_njit(function, **kept), [a.arg for a in functions_of(source)[name].args.args]


def _function(source: str, name: str, namespace: dict[str, Any], key: str | None = None) -> Any:
    """Python function of a text; with a key, what numba makes of it is kept on disk."""
    key = key and sha256(key.encode()).hexdigest()
    namespace = {"__name__": __name__, **namespace}  # numba loads a function that was kept into the module it was made in
    return compile_numba_function_src(source, name, namespace, namespace, cache_key=key)
