"""A page is a Jinja2 template and its values: tables, plots, words. It becomes one HTML file.

No script, no font, no image from elsewhere. Every text is escaped; what a page says is in its template.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from superdl.experiments.reporting.plots import plots_missing
from superdl.experiments.reporting.quantities import count, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["PAGE_NAME", "Cell", "Table", "facts_table", "render", "write_page"]

PAGE_NAME = "report.html"

Cell = str | float | None
"""Words, a number, or nothing that is known."""


class Table(NamedTuple):
    """Rows of cells under heads, which name the unit; ``total``: the last row sums the others up."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    total: bool = False


def facts_table(caption: str, facts: Mapping[str, object]) -> Table:
    """A table of two columns: what, and its value."""
    return Table(caption, ("what", "value"), [(str(name), str(value)) for name, value in facts.items()])


def render(template: str, **values: Any) -> str:
    """The whole page that a file below ``templates/`` makes of the values."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["plots_missing"] = plots_missing()
    environment.filters["cell"] = _written
    return environment.get_template(template).render(values)


def _written(cell: Cell) -> str:
    """A cell's text: things that are counted have all their digits, what is measured has three."""
    if isinstance(cell, str):
        return cell
    return count(cell) if isinstance(cell, int) else number(cell)


def write_page(html: str, path: Path) -> None:
    """Write the page; a reader sees the old file or the new one, never half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    # A name of a file may hold what is no text: it is shown as such, not refused.
    partial.write_text(html, encoding="utf-8", errors="backslashreplace")
    partial.replace(path)
