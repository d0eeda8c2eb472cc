"""What a batch is made of: vector operations and instructions, threads and processes, shapes, rewrites."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import cloudpickle
import mpmath
import numpy as np
import pytensor
import pytensor.scalar.basic as psb
import pytensor.scalar.math as psm
import pytest

import pm_sysid as sid
from pm_sysid.recurrence.batch_op import BatchRecurrence, BatchRecurrenceGradient
from pm_sysid.recurrence.llvm import batch as backend
from pm_sysid.recurrence.llvm.machine_code import optimised, target_machine
from pm_sysid.recurrence.op import Phase, Recurrence
from pm_sysid.recurrence.threads import default_threads
from pm_sysid.symbolic.scalars import symbols
from support.batches import (
    BATCH,
    CASES,
    NONE,
    PYTHON,
    Particles,
    assert_same,
    compiled,
    cotangents,
    filter_case,
    long_linear,
    spread,
)
from support.recurrences import LINEAR

# -- operations -------------------------------------------------------------------------------------------------------

GRID = (-np.inf, -700.5, -2.5, -1.0, -0.3, -5e-324, -0.0, 0.0, 1e-310, 0.3, 1.0, 2.0, 7.0, 1e200, np.inf, np.nan)
UNARY = [
    psb.exp, psb.expm1, psb.log, psb.log1p, psb.log2, psb.log10, psb.sqrt, psb.sqr, psb.reciprocal, psb.neg, psb.abs,
    psb.sign, psb.floor, psb.ceil, psb.trunc, psb.sin, psb.cos, psb.tan, psb.arcsin, psb.arccos, psb.arctan, psb.sinh,
    psb.cosh, psb.tanh, psb.arcsinh, psb.arccosh, psb.arctanh, psm.erf, psm.erfc, psm.gammaln, psm.sigmoid, psm.softplus,
    psb.identity, psb.isnan, psb.isinf, lambda a: psb.invert(a > 0.5), lambda a: psb.clip(a, -1.0, 2.0),
]  # fmt: skip
BINARY = [
    psb.add, psb.mul, psb.sub, psb.true_div, psb.maximum, psb.minimum, psb.mod, psb.int_div, psb.second, psb.arctan2,
    psb.pow, psb.lt, psb.gt, psb.le, psb.ge, psb.eq, psb.neq, lambda a, b: psb.switch(a, b, -1.0),
    lambda a, b: psb.and_(a > 0.0, b > 0.0), lambda a, b: psb.or_(a > 0.0, b > 0.0), lambda a, b: psb.xor(a > 0.0, b > 0.0),
    lambda a, b: psb.switch(psb.isnan(a), psb.lt(b, 1.0), psb.add(b, psb.gt(a, 0.0), psb.gt(b, 0.0))),
]  # fmt: skip


def functions_of(x: Any, *functions: Callable[..., Any]) -> Particles:
    """Functions of the two entries (B, 2) of the start as outputs."""
    v = symbols("x", 2)
    phases = Phase.build([], [], v, v), Phase.build(v, [], [], v), Phase.build(v, [], [], [*v, *(f(*v) for f in functions)])
    record = np.zeros(1, int), np.empty((0, 0)), np.empty((1, 0))
    return Particles(Recurrence(*phases, n_carry=2, n_params=0), np.empty((len(x), 0)), np.array(x)[:, None], record)


def test_every_operation_on_vectors_is_the_one_on_numbers() -> None:
    particles = functions_of([*product(GRID, GRID)], *(lambda a, b, f=f: f(a) for f in UNARY), *BINARY)
    got, want = particles.run([0, 1])[0][:, 0], particles.singles()[0][:, 0]
    for a, b, f in zip(got.T, want.T, UNARY + BINARY, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14, atol=0, err_msg=str(f))


def elementary(x: Any) -> np.ndarray:
    functions = (lambda a, b, f=f: f(a) for f in (psb.exp, psb.log, psb.tanh))
    return functions_of(np.stack([x, x], axis=1), *functions).run([0, 1])[0][:, 0].T


RNG, SIGN = np.random.default_rng(1), np.tile([-1.0, 1.0], 300)
POINTS = {
    ("exp", "wide"): RNG.uniform(-708, 709, 600), ("exp", "near 0"): SIGN * 10 ** RNG.uniform(-323, 0, 600),
    ("exp", "subnormal"): RNG.uniform(-745, -708, 600), ("exp", "largest"): np.linspace(709.4, 709.782712893384, 600),
    ("exp", "smallest"): np.linspace(-745.133, -744, 600), ("exp", "n ln 2"): np.log(2) * (np.arange(600) - 300.5),
    ("log", "wide"): 10 ** RNG.uniform(-307, 308, 600), ("log", "near 1"): 1 + SIGN * 10 ** RNG.uniform(-16, -0.5, 600),
    ("log", "subnormal"): 10 ** RNG.uniform(-323, -308, 600), ("log", "sqrt 2"): 2**0.5 + SIGN / 2 ** RNG.uniform(6, 52, 600),
    ("tanh", "wide"): RNG.uniform(-20, 20, 600), ("tanh", "near 0"): SIGN * 10 ** RNG.uniform(-323, 0, 600),
    ("tanh", "large"): SIGN * 10 ** RNG.uniform(1, 308, 600),
}  # fmt: skip


@pytest.mark.parametrize("name, where", POINTS)
def test_elementary_functions_are_accurate_to_four_units(name: str, where: str) -> None:
    got = elementary(at := POINTS[name, where])[("exp", "log", "tanh").index(name)]
    with mpmath.workprec(200):
        exact = [getattr(mpmath, name)(mpmath.mpf(float(v))) for v in at]
        errors = [abs(float(e - mpmath.mpf(float(g)))) / np.spacing(abs(float(e))) for g, e in zip(got, exact, strict=True)]
    assert max(errors) <= 4.0, f"at {at[np.argmax(errors)]!r}: {got[np.argmax(errors)]!r}"


def test_elementary_functions_of_special_values() -> None:
    x = [0.0, -0.0, np.inf, -np.inf, np.nan, 709.79, 1e308, -745.14, -1e308, -1.0, -5e-324, 5e-324, 1.0]
    inf, nan, e, tanh, log = np.inf, np.nan, math.e, math.tanh(1), math.log
    exps = [1, 1, inf, 0, nan, inf, inf, 0, 0, 1 / e, 1, 1, e]
    logs = [-inf, -inf, inf, nan, nan, log(709.79), log(1e308), nan, nan, nan, nan, log(5e-324), 0]
    tanhs = [0, 0, 1, -1, nan, 1, 1, -1, -1, -tanh, -5e-324, 5e-324, tanh]
    np.testing.assert_allclose(elementary(x), [exps, logs, tanhs], rtol=1e-15, atol=0)


# -- instructions -----------------------------------------------------------------------------------------------------


def test_a_step_is_instructions_on_vectors() -> None:
    module = optimised(backend.value_module(filter_case("duffing").op, "kernel"))
    llvm, assembly = str(module), target_machine().emit_assembly(module)
    vector, scalar = (
        len(re.findall(rf" = (?:tail )?(?:f(?:add|sub|mul|div|neg)|call) [a-z ]*{kind}", llvm))
        for kind in ("<8 x double>", "double")
    )
    assert vector > 300 and scalar < 0.02 * vector
    if platform.machine() in ("x86_64", "AMD64"):
        arithmetic = r"\b(?:v?(?:add|sub|mul|div|sqrt)|vfn?m(?:add|sub)\d*)"
        packed, alone = (len(re.findall(rf"{arithmetic}{kind}\b", assembly)) for kind in ("pd", "sd"))
        assert packed > 200 and alone < 0.02 * packed
        assert re.search(r"\bv?mulpd\b", assembly) and re.search(r"\bv?sqrtpd\b", assembly)


# -- threads and processes --------------------------------------------------------------------------------------------


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process that finds what tests share."""
    given = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")} | environment
    options = dict(capture_output=True, text=True, env=given, cwd=Path(__file__).parents[3], timeout=300)
    return subprocess.run([sys.executable, "-c", code], **options)


@pytest.mark.parametrize(
    "own, common, expected",
    [("3", "5", 3), ("", " 5,2 ", 5), ("0", "1", "PM_SYSID_NUM_THREADS is '0'; give a positive number"),
     ("two", "1", "PM_SYSID_NUM_THREADS is 'two'"), ("\u00b2", "1", "PM_SYSID_NUM_THREADS is '\u00b2'"),
     ("", "-1", "OMP_NUM_THREADS is '-1'"), ("", "1.5", "OMP_NUM_THREADS is '1.5'")],
)  # fmt: skip
def test_environment_sets_the_threads(own: str, common: str, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PM_SYSID_NUM_THREADS", own)
    monkeypatch.setenv("OMP_NUM_THREADS", common)
    if isinstance(expected, int):
        assert default_threads() == expected
    else:
        with pytest.raises(ValueError, match=expected):
            default_threads()


@pytest.mark.parametrize("kind", ["duffing", "linear"])
def test_blocks_of_any_size_give_the_same_digits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block computes the vectors that hold particles, and threads share a long record's."""
    particles = spread(CASES[kind](), 40)
    ends = [0, len(particles.record[0])]
    g = cotangents(particles, ends)
    whole = [*particles.run(ends, threads=1), *particles.pull(ends, g, threads=1)]
    monkeypatch.setattr(backend, "LONG_RECORD", 0)
    monkeypatch.setattr(backend, "_TEXT", f"{kind} without a shortest record")
    for cached in (backend._value, backend._gradient, compiled):
        cached.cache_clear()
    try:
        for n, threads in product((1, 7, 8, 9, 16, 17, 33, 40), (1, 2, 3, 16)):
            few = particles.pick(slice(0, n))
            found = [*few.run(ends, threads=threads), *few.pull(ends, [c[:n] for c in g], threads=threads)]
            for a, b in zip(found, whole, strict=True):
                np.testing.assert_array_equal(a, b[:n])
    finally:
        for cached in (backend._value, backend._gradient, compiled):
            cached.cache_clear()


def test_set_threads_returns_what_was_in_force() -> None:
    before = sid.set_threads(3)
    try:
        assert sid.set_threads(np.int64(5)) == 3 and sid.set_threads() == 5 and sid.set_threads(2) == default_threads()
        for wrong in (0, -1, 1.5, True, "2"):
            with pytest.raises(ValueError, match="give a positive integer, or None for the default"):
                sid.set_threads(wrong)
    finally:
        assert sid.set_threads(before) == 2


def test_work_is_shared_out_over_the_threads() -> None:
    particles, shares = long_linear(4096, 50_000), []
    for threads in (1, 4):
        particles.run([0, 10], threads=threads)
        begin = np.array([time.thread_time(), time.process_time()])
        particles.run([0, 50_000], threads=threads)
        own, everything = np.array([time.thread_time(), time.process_time()]) - begin
        shares.append(own / everything)
    assert shares[0] > 0.9 and shares[1] < 0.8


def test_calls_from_several_threads_at_once() -> None:
    particles = long_linear(50, 500)
    arguments = particles.params, particles.starts, NONE, [0, 100, 500], *particles.record, 3
    function = compiled(BatchRecurrence(LINEAR.op))
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda f: [f(*arguments) for _ in range(30)], [function.copy() for _ in range(4)])
        for got in (r for each in results for r in each):
            assert_same(got, function(*arguments))


def run_pickled(payload: bytes, arguments: Any) -> Any:
    return pickle.loads(payload)(*arguments)


def test_a_spawned_process_runs_a_pickled_function() -> None:
    particles = long_linear(20, 50)
    arguments = particles.params, particles.starts, NONE, [0, 10, 50], *particles.record, 3
    function = compiled(BatchRecurrence(LINEAR.op))
    assert_same(run_pickled(pickle.dumps(function), arguments), function(*arguments))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert_same(pool.apply(run_pickled, (cloudpickle.dumps(function), arguments)), function(*arguments))


FRESH = """
import os, resource, numpy as np, pm_sysid
from support.batches import long_linear
print(pm_sysid.set_threads(1))
particles = long_linear(64, 100_000)
short, g = particles._replace(record=particles.until(1000)), [np.ones((64, 1, 1)), np.ones((64, 1, 2))]
short.run([0, 1000], threads=1), short.pull([0, 1000], g, threads=1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 40 * 2**20, -1))
print(*(np.isfinite(r[0]).all() for r in (particles.run([0, 100_000], threads=1), particles.pull([0, 100_000], g, threads=1))))
try:
    particles.run(particles.every, threads=1)
except MemoryError:
    print("stored")
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
want = short.run([0, 1000], threads=4)[0], short.pull([0, 1000], g, threads=4)[0]
child = os.fork()
if child == 0:
    again = [(short.run([0, 1000], threads=t)[0], short.pull([0, 1000], g, threads=t)[0]) for t in (4, 1, 3)]
    os._exit(0 if all(np.array_equal(a, b) for pair in again for a, b in zip(pair, want)) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_a_fresh_process_obeys_its_environment_stores_no_trajectory_and_forks() -> None:
    """A trajectory of all particles would take 51 MB; 40 MB are to be had beyond what a run of 1000 samples takes."""
    result = python(FRESH, PM_SYSID_NUM_THREADS="3", OMP_NUM_THREADS="5")
    assert result.stdout.split() == ["3", "True", "True", "stored", "0"], result.stderr


WRONG_ENVIRONMENT = """
import pm_sysid as sid, numpy as np, pymc as pm
decay = sid.System(lambda t, x, u, p: -p.rate * x.level, states=("level",), params=("rate",), observe=lambda t, x, *_: x.level)
t = np.linspace(0.0, 1.0, 5)
record = sid.TimeSeries(t, None, np.exp(-t))
with pm.Model() as model:
    pm.Normal("y", pm.Normal("level"), observed=[0.5, 1.0])

def build():
    with pm.Model():
        sid.ODEFilter("y", decay, record, {"rate": pm.HalfNormal("rate")}, noise=0.1, x0=1.0)

uses = {
    "ODEFilter": build,
    "set_threads": lambda: sid.set_threads(),
    "simulate": lambda: sid.simulate(decay, record, {"rate": np.ones(3)}, x0=1.0),
    "Target": lambda: sid.Target(model),
}
for name, use in uses.items():
    try:
        use()
    except ValueError as error:
        print(name, error)
print(sid.set_threads(7) > 0, sid.set_threads(2))
"""


@pytest.mark.parametrize(
    "name, text", [("PM_SYSID_NUM_THREADS", "none"), ("OMP_NUM_THREADS", "-1"), ("OMP_NUM_THREADS", "many")]
)
def test_a_wrong_environment_is_named_where_threads_are_first_used(name: str, text: str) -> None:
    result = python(WRONG_ENVIRONMENT, **{name: text})
    lines = result.stdout.splitlines()
    said = f"the environment variable {name} is {text!r}; give a positive number of threads, or unset it."
    assert lines == [f"ODEFilter {said}", f"set_threads {said}", f"simulate {said}", f"Target {said}", "True 7"], (
        result.stdout + result.stderr
    )


def test_a_list_of_threads_as_openmp_has_it_is_no_error() -> None:
    result = python(
        "import os, pm_sysid as sid; print(os.environ['OMP_NUM_THREADS'], sid.set_threads(1))", OMP_NUM_THREADS="4,2"
    )
    assert result.stdout.split() == ["4,2", "4"], result.stderr


# -- shapes -----------------------------------------------------------------------------------------------------------

#: Which argument, what in its place, and the message; five particles of LINEAR with the edges [0, 8].
WRONG: dict[str, list[tuple[int, Any]]] = {
    "wrong number of columns": [(0, (5, 1)), (0, (5, 3)), (1, (5, 3, 3)), (5, (7, 2)), (6, (8, 1))],
    "starts are for another number": [(1, (0, 3, 2)), (1, (4, 3, 2)), (1, (6, 3, 2))],
    "counts do not match": [(1, (5, 2, 2)), (4, [*LINEAR.arrays[2], 0]), (5, (6, 1)), (6, (7, 0))],
    "edges must lie within": [(3, []), (3, [-1, 8]), (3, [0, 9])],
    "edges must not decrease": [(3, [0, 5, 4, 8]), (3, [0, 90, 8])],
    "needs the final state": [(3, [1, 8]), (2, (4, 3, 2)), (2, (5, 2, 2)), (2, (5, 3, 3)), (2, (1, 3, 2))],
    "cotangents do not fit": [(8, (5, 2, 1)), (8, (5, 1, 2)), (8, (5, 1, 0)), (8, (3, 1, 1)), (8, (0, 1, 1)),
                              (9, (5, 2, 2)), (9, (5, 3, 3)), (9, (5, 3, 1)), (9, (3, 3, 2))],
}  # fmt: skip


@pytest.mark.parametrize("message, place, value", [(m, *w) for m, wrong in WRONG.items() for w in wrong])
def test_shapes_that_do_not_fit_are_refused(message: str, place: int, value: Any) -> None:
    particles = spread(LINEAR, 5)
    arguments = [particles.params, particles.starts, NONE, [0, 8], *particles.record, 2, np.ones((5, 1, 1)), np.ones((5, 3, 2))]
    if place == 2:
        arguments[3] = [2, 8]
    arguments[place] = np.ones(value) if isinstance(value, tuple) else np.array(value, dtype=int)
    for op, given in ((BatchRecurrence, arguments[:8]), (BatchRecurrenceGradient, arguments)):
        if place < len(given):
            with pytest.raises(ValueError, match=message):
                compiled(op(LINEAR.op))(*given)


def test_no_particles_have_no_results_and_shapes_are_known_without_running() -> None:
    shapes = pytensor.function(BATCH, [s for o in BatchRecurrence(LINEAR.op)(*BATCH) for s in o.shape], mode=PYTHON)
    assert not any(isinstance(n.op, BatchRecurrence) for n in shapes.maker.fgraph.apply_nodes)
    for n in (0, 5):
        some = spread(LINEAR, 5).pick(slice(0, n))
        assert [int(s) for s in shapes(some.params, some.starts, NONE, [0, 3, 8], *some.record, 2)] == [n, 2, 1, n, 3, 2]
        for each in (some, some._replace(starts=np.ones((1, 3, 2)))):
            assert [a.shape for a in each.run([0, 3, 8])] == [(n, 2, 1), (n, 3, 2)]
            assert [a.shape for a in each.pull([0, 3, 8], cotangents(some, [0, 3, 8]))] == [(n, 2), (n, 3, 2)]


# -- rewrites ---------------------------------------------------------------------------------------------------------


def test_a_sum_over_time_moves_inside_the_batch() -> None:
    sums, final = BatchRecurrence(LINEAR.op)(*BATCH)
    for total in (sums.sum(axis=1), sums[:, :, 0].sum(axis=1), sums[:, :, :1].sum(axis=(1, 2))):
        function = pytensor.function(BATCH, [total, final], mode=PYTHON.including("specialize"))
        (node,) = [n for n in function.maker.fgraph.apply_nodes if isinstance(n.op, BatchRecurrence)]
        assert node.inputs[3].type.shape == (2,)
    function = pytensor.function(BATCH, [sums.sum(axis=1), sums], mode=PYTHON.including("specialize"))
    assert [n.inputs[3].type.shape for n in function.maker.fgraph.apply_nodes if isinstance(n.op, BatchRecurrence)] == [(None,)]
