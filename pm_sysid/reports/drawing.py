"""Figures and equations drawn for a page: matplotlib's pictures as text, so that the page needs no other file."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from pm_sysid.records.units import with_unit
from pm_sysid.reports.blocks import Block, Equation, Figure, Paragraph, Zoomable


def figure(caption: str, draw: Callable[[], Any], units: Mapping[str, str] | None = None) -> Block:
    """Draw a figure as PNG; one that cannot be drawn leaves its reason."""
    with _closing():
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                drawn = np.asarray(draw(), dtype=object).ravel()[0].figure
                _label(drawn, units or {})
                data = _encoded(drawn, "png", dpi=110)
        except ValueError as error:
            return Paragraph(f"{caption}: {error}", "warning")
    return Figure(caption, data, [str(w.message) for w in caught])


def zoomable(caption: str, draw: Callable[[], Any], still: Block | None = None) -> Block:
    """A figure of plotly; where the still one could not be drawn, that block, which says why."""
    from plotly.io import to_html

    if still is not None and not isinstance(still, Figure):
        return still
    options = {"displaylogo": False, "responsive": True}
    return Zoomable(caption, to_html(draw(), config=options, include_plotlyjs=False, full_html=False), still)


def equation(latex: str) -> Equation:
    """One line of LaTeX as a picture, drawn by matplotlib."""
    from matplotlib import pyplot, rc_context

    drawable = latex.replace(r"\begin{cases}", r"\left\{\substack{").replace(r"\end{cases}", r"}\right.")
    drawable = drawable.replace(" & ", r"\quad ").replace(r"\text", r"\mathrm").replace(r"\frac", r"\dfrac")
    drawable = drawable.replace(r"\mathrm{if }", r"\mathrm{if}\ ")
    with _closing(), rc_context({"mathtext.fontset": "stix", "svg.fonttype": "path"}):
        canvas = pyplot.figure(figsize=(0.1, 0.1))
        canvas.text(0, 0, f"${drawable}$", fontsize=13)
        data = _encoded(canvas, "svg", bbox_inches="tight", pad_inches=0.03, transparent=True)
    return Equation(latex, data)


def _encoded(drawn: Any, form: str, **options: Any) -> str:
    buffer = io.BytesIO()
    drawn.savefig(buffer, format=form, **options)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _label(drawn: Any, units: Mapping[str, str]) -> None:
    """Add units to the labels of axes that are the name of a channel or parameter alone."""
    for ax in drawn.axes:
        for label in (ax.xaxis.label, ax.yaxis.label):  # where the label stands is the figure's affair
            if (name := label.get_text()) in units:
                label.set_text(with_unit(name, units[name]))


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
