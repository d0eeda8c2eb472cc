"""Loops compiled by LLVM do what the same text does in Python."""

from __future__ import annotations

import ctypes
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from llvmlite import ir

from pm_sysid.recurrence.llvm.loops import FAULTS, Loops
from pm_sysid.recurrence.llvm.machine_code import optimised, target_machine

ENGINES: list[Any] = []


def compiled(source: str, dimensions: tuple[int, ...], integers: tuple[int, ...] = (), width: int = 1) -> Any:
    """The function ``f`` of a text, called with arrays and numbers; returns the number of its fault."""
    module = ir.Module("test")
    Loops(module, source, {}, width).export("f", "f", dimensions, integers)
    engine = llvm.create_mcjit_compiler(optimised(module), target_machine())
    engine.finalize_object()
    ENGINES.append(engine)
    address = engine.get_function_address("f")

    def call(*arguments: Any) -> int:
        flat: list[Any] = []
        for a in arguments:
            if isinstance(a, np.ndarray):
                flat += [ctypes.c_void_p(a.ctypes.data), *map(ctypes.c_int64, a.shape)]
            else:
                flat.append(ctypes.c_int64(a))
        return int(ctypes.CFUNCTYPE(ctypes.c_int64, *map(type, flat))(address)(*flat))

    return call


def executed(source: str, width: int = 1) -> Any:
    """The same function in Python."""

    def parallel(block: Any, n: int, threads: int, *arguments: Any) -> None:
        for i in range(n):
            block(i, *arguments)

    namespace: dict[str, Any] = {
        "parallel": parallel,
        "zeros": lambda *shape: np.zeros(shape),
        "integers": lambda n: np.zeros(n, dtype=np.int64),
        "lanes": lambda n: np.zeros(n * width),
        "faults": FAULTS,
        "nan": np.nan,
    }
    exec(source, namespace)
    return namespace["f"]


NUMBERS = """
def f(a, b, out):
    n = 0
    for i in range(a, b):
        n += i
    out[0] = n
    n = 0
    for i in range(b, a, -2):
        n = 10 * n + i
    out[1] = n
    k = b
    while k > 3:
        k = k // 2
    out[2], out[3] = k, max(a, b) - min(a, b)
    for i in range(100):
        if i * i > b:
            break
        out[4] = i
    out[5] = 5 * (a < b) + (a == b)
    if a < 0 or b // max(a, 1) > 2 and a != 2:
        out[6] = 1
    else:
        out[6] = -1
    total = 0
    for i in range(-3):
        total += 1
    out[7] = total
"""


@pytest.mark.parametrize("a, b", [(0, 0), (1, 10), (2, 9), (3, 4), (-4, 7), (9, 2)])
def test_whole_numbers_and_control_flow(a: int, b: int) -> None:
    got, want = np.zeros(8, dtype=np.int64), np.zeros(8, dtype=np.int64)
    assert compiled(NUMBERS, (0, 0, 1), (2,))(a, b, got) == 0
    executed(NUMBERS)(a, b, want)
    np.testing.assert_array_equal(got, want)


ARRAYS = """
def double(row, by):
    by = by + 1
    for i in range(row.shape[0]):
        row[i] += row[i]
    row[0] = by

def f(cube, out):
    by = 3
    for r in range(cube.shape[1]):
        double(cube[1, r], by)
    work = zeros(cube.shape[0], cube.shape[2])
    for i in range(cube.shape[0]):
        for j in range(cube.shape[2]):
            work[i, j] = cube[i, 1, j]
    column = cube[:, 0]
    tail = out[2:]
    for i in range(column.shape[0]):
        tail[i] = column[i, 2]
    part = work[0]
    out[0], out[1] = part[1], by
    out[8] = nan
"""


def test_rows_slices_and_calls() -> None:
    cube = np.random.default_rng(0).normal(size=(3, 2, 4))
    got, want = np.zeros(9), np.zeros(9)
    mine = cube.copy()
    assert compiled(ARRAYS, (3, 1))(mine, got) == 0
    executed(ARRAYS)(cube, want)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(mine, cube)
    assert want[1] == 3 and cube[1, 0, 0] == 4  # an argument that is changed is the function's own


BLOCKS = """
def block(i, x, out, scale):
    W = lanes(3)
    for j in range(W.shape[0]):
        W[j] += x[i]
    for j in range(W.shape[0]):
        out[i, j] = W[j]
    counts = integers(2)
    counts[1] = scale * i
    for _ in range(counts[1]):
        out[i, 0] += x[i]

def f(x, threads, out):
    if out.shape[0] != x.shape[0]:
        raise ValueError(faults[7])
    parallel(block, x.shape[0], threads, x, out, 2)
"""


@pytest.mark.parametrize("threads", [-1, 0, 1, 3, 1000])
def test_blocks_on_threads(threads: int) -> None:
    x = np.random.default_rng(1).normal(size=57)
    got, want = np.zeros((57, 12)), np.zeros((57, 12))
    run = compiled(BLOCKS, (1, 0, 2), width=4)
    assert run(x, threads, got) == 0
    executed(BLOCKS, 4)(x, threads, want)
    np.testing.assert_allclose(got, want, rtol=1e-14)


def test_a_fault_has_a_number() -> None:
    assert compiled(BLOCKS, (1, 0, 2))(np.zeros(3), 1, np.zeros((2, 3))) == 8
    with pytest.raises(ValueError, match=FAULTS[7]):
        executed(BLOCKS)(np.zeros(3), 1, np.zeros((2, 3)))


@pytest.mark.parametrize("inside", ["f", "block"])
def test_memory_that_is_not_there_is_a_fault(inside: str) -> None:
    n = 2**58  # times eight bytes: more than any machine has
    if inside == "f":
        source = "def f(n):\n    small = zeros(4)\n    W = zeros(n)\n    W[0] = small[0]"
    else:
        source = "def block(i, n):\n    W = zeros(n)\n    W[0] = i * 1.0\n\ndef f(n):\n    parallel(block, 3, 2, n)"
        source = source.replace("i * 1.0", "2.0")
    assert FAULTS[compiled(source, (0,))(n) - 1] == "the system gave no memory for the run"


def test_arrays_of_lanes_are_aligned_for_vectors() -> None:
    """LLVM loads whole vectors from them, which a processor refuses elsewhere."""
    module = ir.Module("test")
    vector = ir.VectorType(ir.DoubleType(), 8)
    phase = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.DoubleType().as_pointer()]), "phase")
    builder = ir.IRBuilder(phase.append_basic_block())
    place = builder.bitcast(phase.args[0], vector.as_pointer())
    builder.store(builder.fadd(builder.load(place), ir.Constant(vector, 1.0)), place)
    builder.ret_void()
    source = "def f(out):\n    for i in range(50):\n        W = lanes(i + 1)\n        phase(W, 0)\n        out[i] = W[7]"
    source = source.replace("for i in range(50):\n        W = lanes(i + 1)", "W = lanes(3)\n    for i in range(50):")
    Loops(module, source, {"phase": phase}, 8).export("f", "f", (1,))
    engine = llvm.create_mcjit_compiler(optimised(module), target_machine())
    engine.finalize_object()
    out = np.zeros(50)
    run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(engine.get_function_address("f"))
    assert run(out.ctypes.data, 50) == 0
    np.testing.assert_array_equal(out, np.arange(1, 51))
