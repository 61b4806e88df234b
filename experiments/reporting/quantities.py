"""How quantities are written for people: with a unit, and with no more digits than mean anything."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ABSENT",
    "aligned",
    "count",
    "number",
    "percent",
    "points_of",
    "rate",
    "seconds",
    "share",
    "size",
    "usd",
]

ABSENT = "-"
"""Stands where nothing was measured, which is not zero."""

_MINUTE_S = 60
_HOUR_S = 3600
_KILO = 1000.0
_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")


def number(value: float | None, digits: int = 3) -> str:
    """So many significant digits, with commas between thousands; whole digits are never cut."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def aligned(values: Sequence[float | None], digits: int = 3) -> tuple[str, ...]:
    """Numbers for one column: all with as many decimals as the largest needs for so many digits, but 0."""
    there = [abs(value) for value in values if value is not None and math.isfinite(value)]
    most = max(there, default=0.0)
    decimals = max(0, digits - 1 - math.floor(math.log10(most))) if most > 0 else 0
    return tuple(
        ABSENT if value is None or not math.isfinite(value) else f"{value:,.{decimals}f}" if value else "0"
        for value in values
    )


def count(value: float | None, one: str = "", many: str = "") -> str:
    """A number of things; with their name, ``one`` for a single one."""
    if value is None:
        return ABSENT
    name = one if value == 1 else many or f"{one}s"
    return f"{value:,.0f} {name}" if one else f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """A time: 85 ms, 1.25 s, 12 min 3 s, 2 h 5 min."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0 s"
    if abs(value) < 1:
        return f"{number(value * _KILO)} ms"
    if value < _MINUTE_S:
        return f"{number(value)} s"
    whole = round(value)
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S} s"
    minutes = round(value / _MINUTE_S)
    return f"{minutes // 60:,} h {minutes % 60} min"


def share(part: float | None, whole: float | None) -> float | None:
    """What share of the whole a part is; None where either is not known or the whole is nothing."""
    return None if part is None or not whole else part / whole


def percent(value: float | None) -> str:
    """A share as a percentage; small ones with a decimal, which is where it matters."""
    if value is None or not math.isfinite(value):
        return ABSENT
    hundredths = 100 * value
    return f"{hundredths:.1f}%" if abs(hundredths) < 10 else f"{hundredths:.0f}%"  # noqa: PLR2004  # two digits either way


def points_of(value: float | None) -> str:
    """An accuracy as a percentage, to the tenth."""
    return ABSENT if value is None or not math.isfinite(value) else f"{100 * value:.1f}%"


def rate(value: float | None, unit: str) -> str:
    """So much of something each second."""
    return ABSENT if value is None else f"{number(value)} {unit}/s"


def size(value: float | None) -> str:
    """Bytes in decimal units."""
    if value is None:
        return ABSENT
    scaled, unit = float(value), _SIZES[0]
    for larger in _SIZES[1:]:
        if abs(scaled) < _KILO:
            break
        scaled, unit = scaled / _KILO, larger
    return f"{number(scaled)} {unit}" if unit != "B" else f"{scaled:,.0f} B"


def usd(value: float | None) -> str:
    """Money in US dollars, three digits at least."""
    return ABSENT if value is None else f"{number(value)} USD"
