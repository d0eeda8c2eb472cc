"""Calls that are spoiled one argument at a time build the same graphs again and again: each is compiled once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytensor
import pytest
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.fg import FrozenFunctionGraph
from pytensor.graph.traversal import graph_inputs

#: Functions by what they compute; the variables that each shares with others are kept, so that their ids stay theirs.
_FUNCTIONS: dict[Any, tuple[Any, list[SharedVariable]]] = {}


def _meaning(inputs: Sequence[Variable], outputs: Any, options: dict[str, Any]) -> tuple[Any, list[SharedVariable]] | None:
    """What a function computes, and the variables it shares; None where it changes something, or inputs are not plain."""
    wanted = list(outputs) if isinstance(outputs, list | tuple) else [outputs]
    if not all(isinstance(v, Variable) for v in (*inputs, *wanted)) or options.get("updates") or options.get("givens"):
        return None
    shared = [v for v in graph_inputs(wanted) if isinstance(v, SharedVariable)]
    if any(v.default_update is not None for v in shared):
        return None
    graph = FrozenFunctionGraph.from_io([*inputs, *shared], wanted)
    mode = options.get("mode") or pytensor.config.mode
    others = sorted((k, repr(v)) for k, v in options.items() if k != "mode")
    named = tuple((v.type, v.name) for v in inputs)  # values may be given by name
    return (graph, named, *map(id, shared), str(mode), isinstance(outputs, list | tuple), repr(others)), shared


@pytest.fixture(autouse=True, scope="module")
def compiled_once() -> Iterator[None]:
    """PyTensor gives the function that it has made of an equal graph: a quarter of the time of these tests."""
    real = pytensor.function

    def function(inputs: Any, outputs: Any = None, mode: Any = None, **options: Any) -> Any:
        found = _meaning(list(inputs), outputs, options | {"mode": mode})
        if found is None:
            return real(inputs, outputs, mode=mode, **options)
        key, shared = found
        if key not in _FUNCTIONS:
            _FUNCTIONS[key] = real(inputs, outputs, mode=mode, **options), shared
        return _FUNCTIONS[key][0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytensor, "function", function)
        yield
    _FUNCTIONS.clear()
