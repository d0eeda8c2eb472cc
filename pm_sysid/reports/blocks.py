"""What a page consists of: headings, paragraphs, tables, figures. The templates turn each kind into HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pm_sysid.reports.verdicts import Verdict


@dataclass(frozen=True)
class Block:
    """A part of a page; text in it is escaped, unless it is ``markupsafe.Markup``."""

    @property
    def kind(self) -> str:
        """What the templates call it."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Heading(Block):
    """A heading; links can lead to its anchor."""

    text: str
    level: int = 2
    anchor: str = ""


@dataclass(frozen=True)
class Links(Block):
    """Links to headings: text by anchor."""

    targets: Mapping[str, str]


@dataclass(frozen=True)
class Summary(Block):
    """What matters, in one sentence, and how many findings there are of each kind."""

    text: str
    verdicts: Sequence[Verdict]

    @property
    def counts(self) -> dict[str, int]:
        """Number of findings by level, problems first."""
        return {level: sum(v.level == level for v in self.verdicts) for level in ("bad", "look", "good")}


@dataclass(frozen=True)
class Facts(Block):
    """What the page was made of, in small print: meaning by name."""

    facts: Mapping[str, str]


@dataclass(frozen=True)
class Listed(Block):
    """Sentences below each other, after a name."""

    name: str
    sentences: Sequence[str]


@dataclass(frozen=True)
class Paragraph(Block):
    """A paragraph; ``style`` is "", "warning" or "small"."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Printed(Block):
    """Text as a terminal shows it; with a summary it is folded away under that."""

    text: str
    summary: str = ""


@dataclass(frozen=True)
class Table(Block):
    """Rows of text; the first column names the row, and the columns of ``texts`` are flush left."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: Sequence[int] = ()

    def without_empty(self) -> Table:
        """The table without those columns of ``texts`` in which no row has anything."""
        kept = [i for i in range(len(self.header)) if i not in self.texts or any(row[i] for row in self.rows)]
        rows = [[row[i] for i in kept] for row in self.rows]
        return Table([self.header[i] for i in kept], rows, [kept.index(i) for i in self.texts if i in kept])


@dataclass(frozen=True)
class Frame(Block):
    """A table that is HTML already."""

    html: str


@dataclass(frozen=True)
class Definitions(Block):
    """What terms mean."""

    meanings: Mapping[str, str]


@dataclass(frozen=True)
class Notes(Block):
    """Warnings of each model."""

    notes: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Verdicts(Block):
    """Findings, problems first."""

    verdicts: Sequence[Verdict]

    @property
    def ordered(self) -> list[Verdict]:
        """Problems, then what deserves a look, then what is good."""
        return sorted(self.verdicts, key=lambda v: ("bad", "look", "good").index(v.level))


@dataclass(frozen=True)
class Figure(Block):
    """A picture (base64 of a PNG) with its caption, and the warnings that drawing it gave."""

    caption: str
    png: str
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Zoomable(Block):
    """A figure (HTML that needs the script of plotly) for the screen, and the still one that is printed, if it is another."""

    caption: str
    html: str
    still: Figure | None = None


@dataclass(frozen=True)
class Equation(Block):
    """A line of LaTeX and its picture (base64 of an SVG)."""

    latex: str
    svg: str
