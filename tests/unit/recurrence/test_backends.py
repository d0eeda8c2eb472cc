"""Backends are there before the first graph is compiled, vectorised or interpreted, whoever imported what before."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import cloudpickle
import pytensor
import pytest

from pm_sysid.recurrence import backends
from pm_sysid.recurrence.op import RunOp, interpreted
from support.recurrences import ARGUMENTS, LINEAR, linear


@pytest.fixture(scope="module")
def pickled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph with a recurrence, numbers for it, and what it gives."""
    outputs, final = linear()(*ARGUMENTS)
    file = tmp_path_factory.mktemp("graph") / "graph.pkl"
    found = pytensor.function(ARGUMENTS, [outputs, final])(*LINEAR.arrays)
    file.write_bytes(cloudpickle.dumps((ARGUMENTS, [outputs, final], LINEAR.arrays, found)))
    return file


def run(file: Path, code: str, before: str = "") -> None:
    """Run code in a new process that has unpickled the graph and imported nothing else, with warnings as errors.

    Unpickling brings the backends; here it does not, so that what compiles has to.
    """
    start = f"""
        import pickle, sys, warnings
        import numpy as np
        import pytensor
        import pytensor.tensor as pt
        from pytensor.compile.mode import Mode
        {before}
        assert not any(name.startswith("pm_sysid") for name in sys.modules)
        from pm_sysid.recurrence.op import UNPICKLED
        UNPICKLED.clear()
        with open({str(file)!r}, "rb") as graph:
            arguments, outputs, arrays, expected = pickle.load(graph)
        assert "pm_sysid.recurrence.llvm.single" not in sys.modules
        warnings.simplefilter("error")
    """
    program = textwrap.dedent(start) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_a_compiled_function_is_compiled_again_where_it_is_unpickled(tmp_path: Path) -> None:
    """Spawned processes get functions that have been rewritten: nothing asks for the backend there but unpickling."""
    file = tmp_path / "function.pkl"
    function = pytensor.function(ARGUMENTS, linear()(*ARGUMENTS))
    file.write_bytes(cloudpickle.dumps((function, LINEAR.arrays, function(*LINEAR.arrays))))
    code = f"""
    import pickle, warnings
    import numpy as np
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    with open({str(file)!r}, "rb") as pickled:
        function, arrays, expected = pickle.load(pickled)
    from pm_sysid.recurrence.op import RunOp
    del RunOp.perform  # numba would run it as Python
    for value, wanted in zip(function(*arrays), expected):
        np.testing.assert_allclose(value, wanted, rtol=1e-12)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_an_unpickled_graph_is_vectorised_and_compiled_though_another_was_compiled_before(pickled: Path) -> None:
    code = """
    from pytensor.graph import vectorize_graph
    from pm_sysid.recurrence.op import RunOp
    del RunOp.perform
    params = pt.dmatrix()
    many = vectorize_graph(outputs, {arguments[0]: params})
    assert type(many[0].owner.op).__name__ == "BatchRecurrence"
    found = pytensor.function([params, *arguments], [*outputs, *many])(np.stack([arrays[0]] * 3), *arrays)
    for one, three, value in zip(found[:2], found[2:], expected):
        np.testing.assert_allclose(one, value, rtol=1e-12)
        np.testing.assert_allclose(three, np.stack([value] * 3), rtol=1e-12)
    """
    run(pickled, code, before="pytensor.function([], pt.ones(3) + 1)()")


def test_a_graph_is_compiled_by_numba_without_any_other_rewrite(pickled: Path) -> None:
    code = """
    from pm_sysid.recurrence.op import RunOp
    del RunOp.perform
    found = pytensor.function(arguments, outputs, mode=Mode(linker="numba", optimizer=None))(*arrays)
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    """
    run(pickled, code)


def test_a_graph_without_a_compiler_is_interpreted(pickled: Path) -> None:
    code = """
    found = pytensor.function(arguments, outputs, mode=Mode(linker="py", optimizer=None))(*arrays)
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    """
    run(pickled, code)


def test_an_op_that_nobody_interprets_is_refused() -> None:
    class Unknown(RunOp):
        __props__ = ()

    with pytest.raises(NotImplementedError, match="no backend interprets"):
        interpreted(Unknown())


def test_what_a_backend_has_to_know_is_told_to_it_once() -> None:
    calls: list[int] = []
    rewrite = backends.Registration(lambda: calls.append(1))
    graph: Any = None
    rewrite.apply(graph)
    rewrite.apply(graph)
    assert calls == [1]
