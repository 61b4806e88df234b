"""The console of all commands. Others' words, such as keys, labels and names, cannot steer a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import console

from superdl.super_wire.redaction import shown_lines

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["Console"]


class Console(console.Console):
    """Rich's console, with control characters of every text escaped."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a text, or a table's cell, made printable."""
        return super().render_str(shown_lines(text), **options)
