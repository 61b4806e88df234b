"""Parsers for numeric options of benchmarks."""

from __future__ import annotations

__all__ = ["not_negative", "positive"]


def positive(text: str) -> int:
    """Parse an integer of at least 1, else raise ``ValueError``."""
    return _at_least(1, text)


def not_negative(text: str) -> int:
    """Parse an integer of at least 0, else raise ``ValueError``."""
    return _at_least(0, text)


def _at_least(low: int, text: str) -> int:
    number = int(text)
    if number < low:
        raise ValueError(text)
    return number
