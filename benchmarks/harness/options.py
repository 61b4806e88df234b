"""Numbers that options of benchmarks take."""

from __future__ import annotations

__all__ = ["not_negative", "positive"]


def positive(text: str) -> int:
    """A whole number from 1 on; ``ValueError``, which argparse explains, if it is none."""
    return _at_least(1, text)


def not_negative(text: str) -> int:
    """A whole number from 0 on; ``ValueError``, which argparse explains, if it is none."""
    return _at_least(0, text)


def _at_least(low: int, text: str) -> int:
    number = int(text)
    if number < low:
        raise ValueError(text)
    return number
