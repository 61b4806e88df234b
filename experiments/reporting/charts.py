"""What a plot shows, as plain values: bars with spread, lines, stacks. Drawing them is left to `plots`.

Values that are absent (None) leave a gap. Axes are named with their units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Bars", "Chart", "Line", "Lines", "Mark", "Series", "Stack", "thinned"]


@dataclass(frozen=True, slots=True)
class Series:
    """A named row of values; ``low`` and ``high`` are how far they spread, as over repeats."""

    name: str
    values: tuple[float | None, ...]
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse a spread that is not of the values."""
        if (self.low is None) != (self.high is None):
            raise ValueError(f"{self.name}: low and high go together")
        for spread in (self.low, self.high):
            if spread is not None and len(spread) != len(self.values):
                raise ValueError(f"{self.name}: {len(spread)} spreads for {len(self.values)} values")


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of bars, a bar for each series in each category; lying where ``horizontal``.

    ``label`` is the axis of values with its unit. Each bar says its value where ``numbered``.
    """

    title: str
    label: str
    categories: tuple[str, ...]
    series: tuple[Series, ...]
    category_label: str = ""
    horizontal: bool = False
    numbered: bool = True

    def __post_init__(self) -> None:
        """Refuse a series that has not one value for each category."""
        for one in self.series:
            if len(one.values) != len(self.categories):
                raise ValueError(f"{one.name}: {len(one.values)} values, {len(self.categories)} categories")


@dataclass(frozen=True, slots=True)
class Line:
    """A named line through points; ``marked`` shows the points themselves."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float | None, ...]
    marked: bool = False

    def __post_init__(self) -> None:
        """Refuse a point without one of its two values."""
        if len(self.xs) != len(self.ys):
            raise ValueError(f"{self.name}: {len(self.xs)} places, {len(self.ys)} values")


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on the horizontal axis, and what happened there."""

    x: float
    name: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over one horizontal axis.

    ``top`` is how far the vertical axis goes, where that is fixed. ``whole``: what is counted on the
    horizontal one has no halves.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    top: float | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """Layers on each other over one horizontal axis: bars at their places, or areas where ``end`` is given.

    Of areas each layer holds from its place on to the next, the last to ``end``. ``top``, ``whole``: as of
    `Lines`.
    """

    title: str
    x_label: str
    y_label: str
    xs: tuple[float, ...]
    layers: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    end: float | None = None
    top: float | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        """Refuse a layer that has not one value for each place."""
        for one in self.layers:
            if len(one.values) != len(self.xs):
                raise ValueError(f"{one.name}: {len(one.values)} values, {len(self.xs)} places")


Chart = Bars | Lines | Stack


def thinned(
    xs: Sequence[float], columns: Sequence[Sequence[float]], most: int
) -> tuple[tuple[float, ...], list[tuple[float, ...]]]:
    """At most ``most`` points in place of many: means over neighbours, each at the place of the first."""
    each = max(1, -(-len(xs) // most))
    starts = range(0, len(xs), each)

    def means(values: Sequence[float]) -> tuple[float, ...]:
        parts = (values[start : start + each] for start in starts)
        return tuple(sum(part) / len(part) for part in parts)

    return tuple(xs[start] for start in starts), [means(column) for column in columns]
