"""Formulas as MathML, which browsers draw themselves: pages need no script from another host, behind a firewall or offline."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging

_log = logging.getLogger(__name__)


def mathml(latex: str, display: str) -> str:
    """MathML of a formula; numbers and labels of equations are not written."""
    text = re.sub(r"\\(label|tag)\{[^}]*\}", "", latex).strip()
    if r"\\" in text and r"\begin{" not in text:  # several lines without an environment
        text = rf"\begin{{aligned}}{text}\end{{aligned}}"
    return re.sub(
        r"<mi>log</mi>(?!<mo[^>]*>&#x00028;)", r'<mi>log</mi><mspace width="0.17em"/>', str(convert(text, display=display))
    )


def visit_inline(self: Any, node: nodes.math) -> None:
    """Write a formula in a line."""
    self.body.append(_written(node, "inline"))
    raise nodes.SkipNode


def visit_block(self: Any, node: nodes.math_block) -> None:
    """Write a formula by itself, with its number."""
    number = f'<span class="eqno">({node["number"]})</span>' if node.get("number") else ""
    anchor = f' id="{node["ids"][0]}"' if node["ids"] else ""
    self.body.append(f'<div class="math-block"{anchor}>{number}{_written(node, "block")}</div>\n')
    raise nodes.SkipNode


def _written(node: Any, display: str) -> str:
    try:
        return mathml(node.astext(), display)
    except Exception as error:  # whatever the converter cannot read is an error of the page, with its place
        _log.warning("formula %r: %s", node.astext(), error, location=node)
        return f"<code>{node.astext()}</code>"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
