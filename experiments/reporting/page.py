"""A page is a Jinja2 template and its values: tables, plots, words. It becomes one HTML file.

No script, no font, no image from elsewhere. Every text is escaped; what a page says is in its template.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from superdl.experiments.reporting.plots import plots_missing
from superdl.experiments.reporting.quantities import ABSENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["PAGE_NAME", "Column", "Table", "facts_table", "render", "table_of", "write_page"]

PAGE_NAME = "report.html"


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


def table_of(
    caption: str, columns: Sequence[tuple[Column, Sequence[str]]], *, total: bool = False, most: int = 40
) -> Table:
    """A table by its columns and their cells; of more than ``most`` rows the middle is left out."""
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    if len(rows) > most:
        half = most // 2
        gap = (f"{len(rows) - 2 * half} more", *[""] * (len(columns) - 1))
        rows = [*rows[:half], gap, *rows[-half:]]
    return Table(caption, tuple(column for column, _ in columns), tuple(rows), total)


def facts_table(caption: str, facts: Mapping[str, object]) -> Table:
    """A table of two columns: what, and its value."""
    rows = tuple((str(name), str(value)) for name, value in facts.items())
    return Table(caption, (Column("what", words=True), Column("value", words=True)), rows)


def render(template: str, **values: Any) -> str:
    """The whole page that a file below ``templates/`` makes of the values."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"ABSENT": ABSENT, "plots_missing": plots_missing()}
    return environment.get_template(template).render(values)


def write_page(html: str, path: Path) -> None:
    """Write the page; a reader sees the old file or the new one, never half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    # A name of a file may hold what is no text: it is shown as such, not refused.
    partial.write_text(html, encoding="utf-8", errors="backslashreplace")
    partial.replace(path)
