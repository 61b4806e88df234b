"""Words that came from elsewhere, as one line of bounded length: they end in logs, tombstones and replies."""

from __future__ import annotations

from superdl.super_wire.request import clean_text

__all__ = ["one_line"]

_SCAN = 4


def one_line(text: str, most: int) -> str:
    """At most ``most`` characters of a text, each printable, with one space for what is not."""
    shown = "".join(letter if letter.isprintable() else " " for letter in clean_text(text[: _SCAN * most]))
    return " ".join(shown.split())[:most]
