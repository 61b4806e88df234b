"""Console output for all commands: lines and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import console
from rich.box import SIMPLE_HEAD
from rich.table import Table

from superdl.super_wire.display import shown_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.text import Text


class Console(console.Console):
    """A Rich console that escapes control characters."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Render text or a table cell."""
        # Keys, labels and names are external data, and must not control the terminal.
        return super().render_str(shown_lines(text), **options)


def say(to: console.Console, line: str) -> None:
    """Print a line without markup or wrapping."""
    to.print(line, highlight=False, markup=False, soft_wrap=True)


def print_rows(
    to: console.Console,
    heads: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    title: str | None = None,
    text_columns: int = 1,
) -> None:
    """Print a table. The first ``text_columns`` columns are left-aligned, and the others right-aligned."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=0)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number < text_columns else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    to.print(table)
