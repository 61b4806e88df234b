"""The building blocks of a page: headings, words, tables, plots, in one HTML file that needs nothing else.

No script, no font, no image from elsewhere; every text is escaped, whatever it is. What a page says is left
to who builds it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from superdl.experiments.reporting.plots import draw, plots_missing
from superdl.experiments.reporting.quantities import ABSENT
from superdl.experiments.reporting.style import STYLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from superdl.experiments.reporting.charts import Chart

__all__ = ["Column", "Page", "Table", "table_of"]

_TOTAL = ' class="total"'


@dataclass(frozen=True, slots=True)
class Column:
    """A column's name, the unit of all its cells, and whether they are words rather than numbers."""

    name: str
    unit: str = ""
    words: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns; ``total``: the last row sums the others up."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    total: bool = False

    def __post_init__(self) -> None:
        """Refuse a row that has not one cell for each column."""
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.caption}: {len(row)} cells under {len(self.columns)} columns: {row}")


class Page:
    """A page that grows from its title down; `html` is what it has become."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        """Begin with a title."""
        self._title = title
        self._blocks = [f"<h1>{escape(title)}</h1>"]
        if subtitle:
            self._blocks.append(f'<p class="subtitle">{escape(subtitle)}</p>')
        self._anchors: set[str] = set()
        self._plots = 0
        self._said_missing = False

    def heading(self, text: str) -> None:
        """Begin a section."""
        anchor = self._anchor(text)
        self._blocks.append(f'<h2 id="{anchor}">{escape(text)}</h2>')

    def paragraph(self, text: str) -> None:
        """Words."""
        self._blocks.append(f"<p>{escape(text)}</p>")

    def note(self, text: str) -> None:
        """Words in a frame: what a reader must not miss."""
        self._blocks.append(f'<p class="note">{escape(text)}</p>')

    def small(self, text: str) -> None:
        """Words that explain a table or a plot."""
        self._blocks.append(f'<p class="small">{escape(text)}</p>')

    def points(self, points: Iterable[tuple[str, str]]) -> None:
        """A list of what is to be said, each after its own subject, which stands out."""
        items = "\n".join(f"<li><strong>{escape(name)}</strong> {escape(text)}</li>" for name, text in points)
        self._blocks.append(f'<ul class="points">\n{items}\n</ul>')

    def facts(self, caption: str, facts: Mapping[str, str]) -> None:
        """A table of two columns: what, and its value."""
        rows = tuple((name, value) for name, value in facts.items())
        self.table(Table(caption, (Column("what", words=True), Column("value", words=True)), rows))

    def table(self, table: Table) -> None:
        """A table; a cell that is absent is shown as such."""
        heads = "".join(_head(column) for column in table.columns)
        rows = []
        for index, row in enumerate(table.rows):
            pairs = zip(table.columns, row, strict=True)
            cells = "".join(_cell(column, text, first=not at) for at, (column, text) in enumerate(pairs))
            is_total = table.total and index == len(table.rows) - 1
            rows.append(f"<tr{_TOTAL if is_total else ''}>{cells}</tr>")
        body = "\n".join(rows)
        self._blocks.append(
            f'<div class="wide"><table>\n<caption>{escape(table.caption)}</caption>\n'
            f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
        )

    def listing(self, caption: str, text: str) -> None:
        """Text as it is, line by line, in columns where there is room."""
        self._blocks.append(f'<h3>{escape(caption)}</h3>\n<pre class="listing">{escape(text)}</pre>')

    def plot(self, caption: str, charts: Sequence[Chart], *, columns: int = 1, alike: bool = False) -> None:
        """Charts side by side in so many columns, with words below; ``alike``: with one vertical scale.

        Where plots cannot be drawn, the page says so once, and has its tables.
        """
        missing = plots_missing()
        if missing is not None:
            if not self._said_missing:
                self.note(missing)
                self._said_missing = True
            return
        self._plots += 1
        svg = draw(charts, alt=caption, identity=f"plot{self._plots}", columns=columns, alike=alike)
        self._blocks.append(f"<figure>\n{svg}\n<figcaption>{escape(caption)}</figcaption>\n</figure>")

    def html(self) -> str:
        """The whole page."""
        blocks = "\n".join(self._blocks)
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self._title)}</title>\n<style>\n{STYLE}</style>\n</head>\n"
            f"<body>\n<main>\n{blocks}\n</main>\n</body>\n</html>\n"
        )

    def write(self, path: Path) -> None:
        """Write the page; a reader sees the old file or the new one, never half of it."""
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        # A name of a file may hold what is no text: it is shown as such, not refused.
        partial.write_text(self.html(), encoding="utf-8", errors="backslashreplace")
        partial.replace(path)

    def _anchor(self, text: str) -> str:
        stem = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"
        anchor, number = stem, 2
        while anchor in self._anchors:
            anchor, number = f"{stem}-{number}", number + 1
        self._anchors.add(anchor)
        return anchor


def table_of(caption: str, columns: Sequence[tuple[Column, Sequence[str]]], *, total: bool = False) -> Table:
    """A table given by its columns, each with its cells from the top."""
    rows = zip(*(cells for _, cells in columns), strict=True)
    return Table(caption, tuple(column for column, _ in columns), tuple(rows), total)


def _head(column: Column) -> str:
    unit = f'<span class="unit">{escape(column.unit)}</span>' if column.unit else ""
    return f'<th scope="col"{_kind(column)}>{escape(column.name)}{unit}</th>'


def _cell(column: Column, text: str, *, first: bool) -> str:
    if first:
        return f'<th scope="row"{_kind(column)}>{escape(text)}</th>'
    absent = ' class="absent"' if text == ABSENT else _kind(column)
    return f"<td{absent}>{escape(text)}</td>"


def _kind(column: Column) -> str:
    return ' class="words"' if column.words else ""
