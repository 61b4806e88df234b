"""The one parser of sizes and of seconds in variables, and counts formatted for people."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def seconds_from(environment: Mapping[str, str], name: str, default: float) -> float:
    """Read a number of seconds from a variable; ``ConfigError`` unless it is above 0."""
    text = environment.get(name) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e6:  # noqa: PLR2004  # more than a week is a mistake
        raise ConfigError(f"{name} is a number of seconds above 0, such as {default:g}; not {text!r}")
    return seconds


def parse_bytes(text: str, name: str) -> int:
    """Parse a size in bytes; units are powers of 1024, as in Redis's settings. 0 means the default.

    >>> parse_bytes("1.5gb", "cache_bytes")
    1610612736

    Raises:
        ConfigError: it is no size, or below 1 MiB: a bare 4 probably means 4gb. The message begins with
            ``name``.
    """
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([kmgt]?)b?\s*", text.lower())
    size_bytes = int(Fraction(match[1]) * _UNITS[match[2]]) if match else -1
    if size_bytes < 2**20 and size_bytes != 0:
        raise ConfigError(f"{name} is a size of at least 1mb, such as 4gb or 500mb; not {text[:80]!r}")
    return size_bytes


def counted(count: int, noun: str) -> str:
    """Format a count of things for people.

    >>> counted(1, "sample"), counted(1200, "sample")
    ('1 sample', '1,200 samples')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Format the first of many names for people.

    >>> some_of(["a", "b", "c", "d"], most=2)
    'a, b and 2 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
