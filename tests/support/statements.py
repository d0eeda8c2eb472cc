"""Statements of a Python file, without the expressions in them."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """What ``ast.walk`` yields, but for expressions: a tenth of it."""
    waiting = [tree]
    for node in waiting:
        yield node
        waiting += [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt | ast.excepthandler | ast.match_case)]
