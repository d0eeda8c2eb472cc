"""What notebooks show of an object in place of its text: tables, lines and a sparkline, as HTML that needs no style sheet."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import numpy as np

_CELL = "padding:1px 8px;text-align:{};white-space:nowrap"
#: Points of a sparkline, and its size in pixels.
_POINTS, _WIDTH, _HEIGHT = 240, 220, 26


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]], *, texts: int = 1) -> str:
    """Table whose first ``texts`` columns are to the left; cells that begin with ``<svg`` are taken as they are.

    Examples
    --------
    >>> "<td" in html_table(["name", "value"], [["k", "4.2"]])
    True
    """

    def cell(kind: str, i: int, value: object) -> str:
        text = str(value)
        shown = text if text.startswith("<svg") else html.escape(text)
        return f'<{kind} style="{_CELL.format("left" if i < texts else "right")}">{shown}</{kind}>'

    head = "".join(cell("th", i, name) for i, name in enumerate(header))
    body = "".join(f"<tr>{''.join(cell('td', i, v) for i, v in enumerate(row))}</tr>" for row in rows)
    return f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def html_line(text: str, *, strong: bool = False) -> str:
    """Return a line of text."""
    shown = html.escape(text)
    return f'<div style="margin:2px 0">{f"<b>{shown}</b>" if strong else shown}</div>'


def html_formulas(lines: Iterable[str]) -> str:
    """Equations in LaTeX, which a notebook typesets."""
    return "".join(f"<div>$\\displaystyle {html.escape(text)}$</div>" for text in lines)


def sparkline(values: np.ndarray) -> str:
    """Small picture of a series: lowest and highest value of each stretch; missing values leave a gap.

    Examples
    --------
    >>> sparkline(np.sin(np.arange(50.0))).startswith("<svg")
    True
    """
    x = np.asarray(values, dtype=float)
    known = np.isfinite(x)
    if known.sum() < 2:
        return ""
    low, high = float(x[known].min()), float(x[known].max())
    room = (high - low) or 1.0
    stretches = np.array_split(np.arange(len(x)), min(_POINTS, len(x)))
    path, pen = [], "M"
    for i, stretch in enumerate(stretches):
        seen = x[stretch][known[stretch]]
        if not seen.size:
            pen = "M"
            continue
        across = _WIDTH * (i + 0.5) / len(stretches)
        for value in dict.fromkeys((float(seen.min()), float(seen.max()))):
            path.append(f"{pen}{across:.1f} {1 + (_HEIGHT - 2) * (high - value) / room:.1f}")
            pen = "L"
    stroke = 'fill="none" stroke="currentColor" stroke-width="0.8"'
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="over time"><path d="{"".join(path)}" {stroke}/></svg>'
    )
