"""Backends that are imported when a graph is first compiled for them: numba and JAX take seconds to import.

PyTensor, too, imports them only to compile for them, and every graph that it compiles for one of them goes through the rewrites
of that name first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from pm_sysid.compat import GraphRewriter, optdb
from pm_sysid.recurrence.op import UNPICKLED, RunOp, interpreted


class Registration(GraphRewriter):
    """Calls a function before PyTensor converts a graph for a backend; changes nothing in the graph."""

    def __init__(self, register: Callable[[], None]) -> None:
        self.register = cache(register)

    def apply(self, fgraph: Any) -> None:
        """Let the function register what the backend has to know."""
        self.register()


def before_compiling(backend: str, name: str, register: Callable[[], None]) -> None:
    """Have a function called once, before the first graph is converted for a backend (``"numba"``, ``"jax"``)."""
    optdb.register(name, Registration(register), backend, position=0)


def _import_llvm() -> None:
    import pm_sysid.recurrence.llvm.assembled
    import pm_sysid.recurrence.llvm.batch
    import pm_sysid.recurrence.llvm.single  # noqa: F401


def _import_jax() -> None:
    import pm_sysid.recurrence.jax.batch
    import pm_sysid.recurrence.jax.single  # noqa: F401


before_compiling("numba", "pm_sysid_numba", _import_llvm)
UNPICKLED.append(_import_llvm)
before_compiling("jax", "pm_sysid_jax", _import_jax)


@interpreted.register
def _interpreted(op: RunOp) -> Callable[..., Any]:
    """Import the interpreters of the Ops, and ask again."""
    _import_llvm()
    found: Any = interpreted.dispatch(type(op))
    if found is _interpreted:
        raise NotImplementedError(f"no backend interprets {op}")
    return found(op)  # type: ignore[no-any-return]
