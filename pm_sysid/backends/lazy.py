"""Backends that are imported when a graph is first compiled for them."""

from __future__ import annotations

from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import GraphRewriter


class ImportJAX(GraphRewriter):
    """Register how JAX runs a recurrence, before PyTensor converts a graph to JAX; changes nothing in the graph.

    Importing JAX takes a second, and it is an optional dependency. PyTensor itself imports it only to compile for it,
    and every graph it compiles for JAX goes through the rewrites of this name first.
    """

    def apply(self, fgraph: Any) -> None:
        """Import the implementation."""
        import pm_sysid.backends.jax_batch  # noqa: F401


optdb.register("pm_sysid_jax", ImportJAX(), "jax", position=0)
