"""Draws charts as SVG to stand inside a page: the same text for the same chart, wherever it is drawn.

Matplotlib (`superdl[train]`) is optional and imported only when something is drawn; neither its state for
interactive use (pyplot) nor a user's settings of it have a part in it. Series differ by hatch, dash and
marker, and their colours by lightness too, so that a print in black and white loses nothing. Letters are
drawn as shapes: no font is looked for where the page is read.
"""

from __future__ import annotations

import io
import itertools
import re
import warnings
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.experiments.reporting.charts import Bars, Lines
from superdl.experiments.reporting.quantities import number
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from superdl.experiments.reporting.charts import Chart, Series, Stack

__all__ = ["PLOTS_NEED", "draw", "plots_missing"]

PLOTS_NEED = "plots need the package matplotlib: pip install 'superdl[train]', then superdl report DIRECTORY"

_FILLS = (
    ("#1f3b57", ""),
    ("#f4b26a", "////"),
    ("#c9dcee", ""),
    ("#6f9a68", "\\\\\\\\"),
    ("#ffffff", "||||"),
    ("#8a8a8a", ""),
    ("#f7e3c6", "xxxx"),
    ("#b0708f", "----"),
    ("#e6e6e6", "++++"),
)
_STROKES = (
    ("#1f3b57", "-", "o"),
    ("#c8741a", "--", "s"),
    ("#4f7f49", "-.", "^"),
    ("#000000", ":", "D"),
    ("#8a4a6b", (0, (6, 1, 1, 1, 1, 1)), "v"),
    ("#6e6e6e", (0, (8, 2)), "x"),
)
_EDGE = "#222222"
_WIDTH_IN = 8.2
_ROW_IN = 3.0
_BAR_IN = 0.34
_LINE_WIDTH = 1.4
_ROOM = 1.25
"""So much higher than what is drawn is a plot with marks."""
_FEW = 25
"""A line of so many points at most shows each of them; of a longer one so many are marked."""
_GROUP = 0.8
"""Share of a category's room that its bars take."""
_OTHERS = frozenset({"backend", "backend_fallback", "interactive", "toolbar", "webagg.open_in_browser"})
"""Settings of what draws on screens, which is no affair of ours."""
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "path",
    "svg.hashsalt": "superdl",
    "text.parse_math": False,
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


def plots_missing() -> str | None:
    """Why nothing can be drawn here; None where it can."""
    try:
        import matplotlib.figure  # noqa: F401  # to see whether it is there
    except ImportError as error:
        return f"{PLOTS_NEED} ({error})"
    return None


def draw(charts: Sequence[Chart], *, alt: str, identity: str, columns: int = 1, alike: bool = False) -> str:
    """The charts as one SVG element, side by side in so many columns.

    ``alt`` says in words what is to be seen; ``identity`` begins all of its ids, so that several stand in one
    page. ``alike``: all have the vertical scale of the highest.

    Raises:
        ConfigError: matplotlib is not installed.

    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(f"{PLOTS_NEED} ({error})") from error
    with mpl.rc_context(), warnings.catch_warnings():
        # A name in a script that the font lacks shows as boxes; the page's tables have it in letters.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # Not rcdefaults(), which would take the backend from whoever draws in this process too.
        defaults = {key: value for key, value in mpl.rcParamsDefault.items() if key not in _OTHERS}
        mpl.rcParams.update(defaults | _SETTINGS)
        rows = -(-len(charts) // columns)
        height_in = sum(
            max(_height_in(chart) for chart in charts[row * columns : (row + 1) * columns])
            for row in range(rows)
        )
        figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        _fill(figure, charts, rows=rows, columns=columns, alike=alike)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing, transparent=True)
    return _inline(file.getvalue(), alt, identity)


def _fill(figure: Figure, charts: Sequence[Chart], *, rows: int, columns: int, alike: bool) -> None:
    """Draw each chart at its place, then set the scales: of charts that are alike they follow from all."""
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=alike).flat)
    for place, chart in itertools.zip_longest(axes, charts):
        if chart is None:
            place.set_axis_off()
        else:
            _draw_on(place, chart, names_in_row=max(1, 4 // columns))
    for place, chart in zip(axes, charts, strict=False):
        if not isinstance(chart, Bars):
            _scale(place, chart)


def _height_in(chart: Chart) -> float:
    if isinstance(chart, Bars) and chart.horizontal:
        return 0.9 + _BAR_IN * len(chart.categories) * max(1, len(chart.series))
    return _ROW_IN


def _draw_on(axes: Axes, chart: Chart, *, names_in_row: int) -> None:
    axes.set_title(chart.title, loc="left")
    if isinstance(chart, Bars):
        _draw_bars(axes, chart)
        shown = len(chart.series) > 1
    elif isinstance(chart, Lines):
        _draw_lines(axes, chart)
        shown = len(chart.lines) > 1
    else:
        _draw_stack(axes, chart)
        shown = bool(chart.layers)
    if shown:
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.2),
            ncols=names_in_row,
            handlelength=2.6,
            handleheight=1.2,
        )


def _draw_bars(axes: Axes, chart: Bars) -> None:
    thick = _GROUP / max(1, len(chart.series))
    for index, one in enumerate(chart.series):
        offset = (index - (len(chart.series) - 1) / 2) * thick
        bars = [bar for bar in map(_bar, itertools.count(), one.values, *_spreads(one)) if bar is not None]
        places = [bar.place + offset for bar in bars]
        values = [bar.value for bar in bars]
        colour, hatch = _FILLS[index % len(_FILLS)]
        look: dict[str, Any] = {"facecolor": colour, "hatch": hatch, "edgecolor": _EDGE, "linewidth": 0.7}
        (axes.barh if chart.horizontal else axes.bar)(places, values, thick * 0.92, label=one.name, **look)
        if one.low is not None:
            spread = [[bar.value - bar.low for bar in bars], [bar.high - bar.value for bar in bars]]
            points = (values, places) if chart.horizontal else (places, values)
            error = {"xerr" if chart.horizontal else "yerr": spread, "fmt": "none"}
            axes.errorbar(*points, ecolor="#ffffff", elinewidth=3.2, capsize=4, capthick=3.2, **error)
            axes.errorbar(*points, ecolor="#000000", elinewidth=1.2, capsize=4, capthick=1.2, **error)
        if chart.numbered:
            for place, bar in zip(places, bars, strict=True):
                _number(axes, place, bar, horizontal=chart.horizontal)
    ticks = range(len(chart.categories))
    if chart.horizontal:
        axes.set_yticks(ticks, chart.categories)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.12)
        axes.set_xlabel(chart.label)
        axes.set_ylabel(chart.category_label)
    else:
        axes.set_xticks(ticks, chart.categories)
        axes.grid(visible=False, axis="x")
        axes.margins(y=0.12)
        axes.set_ylabel(chart.label)
        axes.set_xlabel(chart.category_label)


class _Bar(NamedTuple):
    place: int
    value: float
    low: float
    high: float


def _spreads(one: Series) -> tuple[Sequence[float | None], Sequence[float | None]]:
    return (one.low or one.values, one.high or one.values)


def _bar(place: int, value: float | None, low: float | None, high: float | None) -> _Bar | None:
    """A bar whose spread has it within; None where there is no value."""
    if value is None:
        return None
    return _Bar(
        place, value, value if low is None else min(low, value), value if high is None else max(high, value)
    )


def _number(axes: Axes, place: float, bar: _Bar, *, horizontal: bool) -> None:
    """Write a bar's value beyond its end, and beyond its spread."""
    axes.annotate(
        number(bar.value),
        (bar.high, place) if horizontal else (place, bar.high),
        xytext=(4, 0) if horizontal else (0, 3),
        textcoords="offset points",
        fontsize=8,
        ha="left" if horizontal else "center",
        va="center" if horizontal else "bottom",
    )


def _draw_lines(axes: Axes, chart: Lines) -> None:
    for index, line in enumerate(chart.lines):
        colour, dashes, marker = _STROKES[index % len(_STROKES)]
        ys = [float("nan") if value is None else value for value in line.ys]
        look: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": _LINE_WIDTH}
        if line.marked or len(line.xs) <= _FEW:
            look |= {"marker": marker, "markersize": 5, "markerfacecolor": "#ffffff" if index % 2 else colour}
            look["markevery"] = -(-len(line.xs) // _FEW) or 1
        axes.plot(line.xs, ys, label=line.name, **look)
    _label(axes, chart)


def _draw_stack(axes: Axes, chart: Stack) -> None:
    base = [0.0] * len(chart.xs)
    for index, layer in enumerate(chart.layers):
        colour, hatch = _FILLS[index % len(_FILLS)]
        heights = [value or 0.0 for value in layer.values]
        top = [under + height for under, height in zip(base, heights, strict=True)]
        look: dict[str, Any] = {"facecolor": colour, "hatch": hatch, "edgecolor": _EDGE, "label": layer.name}
        if chart.end is None:
            axes.bar(chart.xs, heights, _GROUP, bottom=base, linewidth=0.7, **look)
        elif chart.xs:
            edges = (*chart.xs, chart.end)
            low, high = [*base, base[-1]], [*top, top[-1]]
            axes.fill_between(edges, low, high, step="post", linewidth=0.5, **look)
        base = top
    axes.grid(visible=False, axis="x")
    _label(axes, chart)


def _label(axes: Axes, chart: Lines | Stack) -> None:
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.whole:
        axes.xaxis.get_major_locator().set_params(integer=True)


def _scale(axes: Axes, chart: Lines | Stack) -> None:
    """From zero up to what is drawn, with room for marks' names; and the marks."""
    top = axes.get_ylim()[1] if chart.top is None else chart.top
    axes.set_ylim(0, top * _ROOM if chart.marks and chart.top is None else top)
    for mark in chart.marks:
        axes.axvline(mark.x, color="#000000", linewidth=0.8, linestyle=(0, (2, 2)))
        axes.annotate(
            mark.name,
            (mark.x, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(2, -2),
            textcoords="offset points",
            fontsize=7.5,
            rotation=90,
            va="top",
            bbox={"facecolor": "#ffffff", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
        )


def _inline(svg: str, alt: str, identity: str) -> str:
    """The element alone, named for who cannot see it; ids begin with the page's name for it."""
    element = svg[svg.index("<svg ") :]
    element = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", element, count=1, flags=re.DOTALL)
    element = re.sub(r"<!--.*?-->\s*", "", element, flags=re.DOTALL)
    element = re.sub(r' xmlns(:xlink)?="[^"]*"', "", element)
    element = element.replace("xlink:href=", "href=")
    element = re.sub(r'\b(id|href)="(#?)', rf'\1="\2{identity}-', element)
    element = element.replace("url(#", f"url(#{identity}-")
    element = re.sub(r"\s+", " ", element).replace("> <", "><").replace(" />", "/>")
    element = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"', "", element, count=1)
    return element.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1).strip()
