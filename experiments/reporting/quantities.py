"""Format quantities for people, with a unit and only significant digits."""

from __future__ import annotations

import math

# A value that was not measured, as opposed to zero.
ABSENT = "-"


def number(value: float | None, digits: int = 3) -> str:
    """Format with ``digits`` significant digits and separators; keep all whole digits."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def count(value: float | None, one: str = "") -> str:
    """Format a count, followed by the thing's name if given: ``one`` is its singular."""
    if value is None:
        return ABSENT
    return f"{value:,.0f} {one}{'' if value == 1 else 's'}" if one else f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """Format a duration: 85.0 ms, 1.25 s, 12 min 3 s, 2 h 5 min."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if 0 < abs(value) < 1:
        return f"{number(1000 * value)} ms"
    if value < 60:  # noqa: PLR2004  # seconds of a minute
        return f"{number(value)} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:  # noqa: PLR2004  # minutes of an hour
        return f"{minutes} min {rest} s"
    return f"{round(value / 60) // 60:,} h {round(value / 60) % 60} min"


def share(part: float | None, whole: float | None) -> float | None:
    """Return ``part / whole``, or None if either is unknown or the whole is zero."""
    return None if part is None or not whole else part / whole


def times(value: float | None, factor: float) -> float | None:
    """Multiply a value, if it is known."""
    return value if value is None or factor == 1 else factor * value


def percent(value: float | None) -> str:
    """Format a share as a percentage with one decimal."""
    return ABSENT if value is None or not math.isfinite(value) else f"{100 * value:.1f}%"


def usd(value: float | None) -> str:
    """Format US dollars: $0.00, $0.526, $1,250."""
    return ABSENT if value is None else f"${number(value) if value else '0.00'}"
