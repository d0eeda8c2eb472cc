"""Backends that are imported when a graph is first compiled for them."""

from __future__ import annotations

from typing import Any

from pm_sysid.compat import GraphRewriter, optdb


class ImportJAX(GraphRewriter):
    """Register how JAX runs a recurrence, before PyTensor converts a graph to JAX; changes nothing in the graph.

    Importing JAX takes a second, and it is an optional dependency. PyTensor itself imports it only to compile for it,
    and every graph it compiles for JAX goes through the rewrites of this name first.
    """

    def apply(self, fgraph: Any) -> None:
        """Import the implementation."""
        import pm_sysid.recurrence.jax.batch  # noqa: F401


optdb.register("pm_sysid_jax", ImportJAX(), "jax", position=0)
