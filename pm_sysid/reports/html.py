"""Pages of HTML that need no other file, made from blocks by the templates beside this module."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import escape

from pm_sysid.reports.blocks import Block, Zoomable


class Page(Path):
    """Where a page was written; a notebook shows a link to it."""

    @classmethod
    def of(cls, path: str | PathLike[str], text: str) -> Page:
        """Write a page."""
        target = cls(path)
        target.write_text(text, encoding="utf-8")
        return target

    def _repr_html_(self) -> str:
        here, there = Path.cwd(), Path(self).resolve()
        link = quote(there.relative_to(here).as_posix()) if there.is_relative_to(here) else there.as_uri()
        return f'<a href="{link}" target="_blank">{escape(str(self))}</a>'


def document(title: str, blocks: Sequence[Block]) -> str:
    """Whole page; figures that zoom bring the script that draws them along."""
    script = ""
    if any(isinstance(block, Zoomable) for block in blocks):
        from plotly.offline import get_plotlyjs

        script = get_plotlyjs()
    return _environment().get_template("page.html").render(title=title, blocks=blocks, script=script)


def fragment(blocks: Sequence[Block]) -> str:
    """Blocks without a page around them, for notebooks."""
    return _environment().get_template("blocks.html").render(blocks=blocks).strip()


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("pm_sysid.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
