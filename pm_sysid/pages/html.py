"""Pieces of a page of HTML that needs no other file."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

import numpy as np

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 72em; margin: 2em auto; padding: 0 1em; }
h1, h2, h3 { font-weight: 600; line-height: 1.2; } h2 { margin-top: 2em; border-bottom: 1px solid #ccc; }
table { border-collapse: collapse; font-size: 0.9em; } td, th { padding: 0.3em 0.8em; text-align: right; }
thead th { border-bottom: 1px solid #888; } tbody th { text-align: left; } .scroll { overflow-x: auto; }
td.text, th.text { text-align: left; }
figure { display: inline-block; margin: 0.5em 1em 1em 0; vertical-align: top; } img { max-width: 100%; }
figcaption { font-size: 0.85em; color: #555; } .warning { color: #a33; } dt { font-weight: 600; }
p.equation { margin: 0.4em 0 0.4em 1.5em; overflow-x: auto; } p.equation img { max-width: none; vertical-align: middle; }
ul.verdicts { list-style: none; padding: 0; }
ul.verdicts li { margin: 0.35em 0; padding: 0.25em 0.8em; border-left: 5px solid; }
ul.verdicts li.good { border-color: #2a9d5c; } ul.verdicts li.look { border-color: #e0a100; }
ul.verdicts li.bad { border-color: #c0392b; }
ul.verdicts b { display: inline-block; min-width: 4.5em; } pre { white-space: pre-wrap; background: #f5f5f5; padding: 0.6em; }
nav a { margin-right: 1.2em; } @media print { h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""


def document(title: str, parts: Sequence[str]) -> str:
    """Whole page."""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n'


def notes_html(notes: Mapping[str, Sequence[str]]) -> str:
    """Warnings of each model as a list."""
    items = [f"<li><b>{escape(k)}</b>: {escape(n)}</li>" for k, some in notes.items() for n in some]
    return f'<ul class="warning">{"".join(items)}</ul>' if items else ""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[int] = ()) -> str:
    """Rows of text; the first column names the row, and the columns of ``texts`` are flush left."""

    def cell(tag: str, column: int, text: str) -> str:
        return f"<{tag}{' class="text"' if column in (0, *texts) else ''}>{escape(text)}</{tag}>"

    head = "".join(cell("th", i, h) for i, h in enumerate(header))
    body = "".join("<tr>" + "".join(cell("td" if i else "th", i, c) for i, c in enumerate(row)) + "</tr>\n" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def figure(caption: str, draw: Callable[[], Any], units: Mapping[str, str] | None = None) -> str:
    """Draw a figure and embed it as PNG; one that cannot be drawn leaves its reason."""
    with _closing():
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                drawn = np.asarray(draw(), dtype=object).ravel()[0].figure
                _label(drawn, units or {})
                data = _encoded(drawn, "png", dpi=110)
        except ValueError as error:
            return f'<p class="warning">{escape(caption)}: {escape(str(error))}</p>'
    said = "".join(f'<br><span class="warning">{escape(str(w.message))}</span>' for w in caught)
    image = f'<img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{escape(caption)}{said}</figcaption></figure>"


def equation(latex: str) -> str:
    """One line of LaTeX as a picture, drawn by matplotlib, with its source as the alternative text."""
    from matplotlib import pyplot, rc_context

    drawable = latex.replace(r"\begin{cases}", r"\left\{\substack{").replace(r"\end{cases}", r"}\right.")
    drawable = drawable.replace(" & ", r"\quad ").replace(r"\text", r"\mathrm").replace(r"\frac", r"\dfrac")
    drawable = drawable.replace(r"\mathrm{if }", r"\mathrm{if}\ ")
    with _closing(), rc_context({"mathtext.fontset": "stix", "svg.fonttype": "path"}):
        canvas = pyplot.figure(figsize=(0.1, 0.1))
        canvas.text(0, 0, f"${drawable}$", fontsize=13)
        data = _encoded(canvas, "svg", bbox_inches="tight", pad_inches=0.03, transparent=True)
    return f'<p class="equation"><img alt="{escape(latex)}" src="data:image/svg+xml;base64,{data}"></p>'


def _encoded(drawn: Any, form: str, **options: Any) -> str:
    buffer = io.BytesIO()
    drawn.savefig(buffer, format=form, **options)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _label(drawn: Any, units: Mapping[str, str]) -> None:
    """Add units to the labels of axes that are the name of a channel or parameter alone."""
    for ax in drawn.axes:
        for get, put in ((ax.get_xlabel, ax.set_xlabel), (ax.get_ylabel, ax.set_ylabel)):
            if get() in units:
                put(f"{get()} ({units[get()]})")


@contextmanager
def _closing() -> Iterator[None]:
    """Close the figures that were opened within."""
    from matplotlib import pyplot

    before = set(pyplot.get_fignums())
    try:
        yield
    finally:
        for number in set(pyplot.get_fignums()) - before:
            pyplot.close(number)
