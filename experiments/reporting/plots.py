"""Plots of a page: bars, lines and stacks by matplotlib, as SVG images that lie in the page itself.

Matplotlib (`superdl[train]`) is optional and imported only when something is drawn. Neither its state for
interactive use (pyplot) nor a user's settings of it have a part, so the same figures give the same image.
Series differ by hatch, dash and marker, and their colours by lightness too: a black and white print loses
nothing. Values that are absent (None) leave a gap.
"""

from __future__ import annotations

import base64
import io
import itertools
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superdl.experiments.reporting.quantities import number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from matplotlib.axes import Axes

    Drawing = Callable[[Axes], None]
    Values = Sequence[float | None]

__all__ = [
    "Line",
    "Plot",
    "draw_bars",
    "draw_lines",
    "draw_stack",
    "height_of_bars",
    "plot_of",
    "plots_missing",
    "with_marks",
]

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
"""Colour and hatch of bars and areas, in turn."""
_STROKES = (
    ("#1f3b57", "-", "o"),
    ("#c8741a", "--", "s"),
    ("#4f7f49", "-.", "^"),
    ("#000000", ":", "D"),
    ("#8a4a6b", (0, (6, 1, 1, 1, 1, 1)), "v"),
    ("#6e6e6e", (0, (8, 2)), "x"),
)
"""Colour, dashes and marker of lines, in turn."""
_EDGE = "#222222"
_WIDTH_IN = 8.2
_ROW_IN = 3.0
_BAR_IN = 0.34
_GROUP = 0.8
"""Share of a category's room that its bars take."""
_MARKERS = 25
"""A line has so many markers at most."""
_MARKED_ROOM = 1.25
"""So much higher than what is drawn is a plot with marks, whose names stand there."""
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "path",  # letters are shapes: no font is looked for where the page is read
    "svg.hashsalt": "superdl",
    "text.parse_math": False,
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.0,
}


@dataclass(frozen=True, slots=True)
class Plot:
    """An image for a page: its caption, and the address of data that holds all of it."""

    caption: str
    image: str


@dataclass(frozen=True, slots=True)
class Line:
    """A named line through points."""

    name: str
    xs: Sequence[float]
    ys: Values


def plots_missing() -> str | None:
    """Why nothing can be drawn here; None where it can."""
    try:
        import matplotlib.figure  # noqa: F401  # to see whether it is there
    except ImportError as error:
        return f"{PLOTS_NEED} ({error})"
    return None


def plot_of(
    caption: str,
    drawings: Sequence[Drawing],
    *,
    columns: int = 1,
    row_in: float = _ROW_IN,
    one_scale: bool = False,
) -> Plot | None:
    """Draw charts side by side in so many columns, each by a function that gets its axes.

    ``row_in`` is the height of a row in inches; with ``one_scale`` all charts have the vertical scale of the
    highest. None: there is nothing to draw, or nothing to draw it with.
    """
    if not drawings or plots_missing() is not None:
        return None
    import matplotlib.style
    from matplotlib.figure import Figure

    rows = -(-len(drawings) // columns)
    file = io.BytesIO()
    with matplotlib.style.context(["default", _SETTINGS]), warnings.catch_warnings():
        # A name in a script that the font lacks shows as boxes; the page's tables have it in letters.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(_WIDTH_IN, row_in * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharey=one_scale)
        for axes, draw in itertools.zip_longest(grid.flat, drawings):
            if draw is None:
                axes.set_axis_off()
                continue
            draw(axes)
            if len(axes.get_legend_handles_labels()[1]) > 1:
                axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=max(1, 4 // columns))
        if one_scale:  # now that all are drawn
            grid[0, 0].set_ylim(0, None)
        undated = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=undated, transparent=True)
    return Plot(caption, "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode())


def height_of_bars(bars: int) -> float:
    """The height in inches of a chart with so many bars."""
    return 0.9 + _BAR_IN * bars


def draw_bars(
    axes: Axes,
    *,
    title: str,
    label: str,
    categories: Sequence[str],
    series: Mapping[str, Values],
    spread: tuple[Values, Values] | None = None,
) -> None:
    """Lying bars with their values, one of each series in each category.

    ``spread`` is how far a single series reaches below and above its values, as over repeats.
    """
    thick = _GROUP / max(1, len(series))
    for index, (name, values) in enumerate(series.items()):
        offset = (index - (len(series) - 1) / 2) * thick
        places = [place + offset for place in range(len(categories))]
        lengths = [0.0 if value is None else value for value in values]
        reach = None if spread is None else [[value or 0.0 for value in side] for side in spread]
        bars = axes.barh(places, lengths, thick * 0.92, label=name, xerr=reach, capsize=4, **_fill(index))
        told = ["" if value is None else number(value) for value in values]
        axes.bar_label(bars, told, padding=4, fontsize=8)
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.set_yticks(range(len(categories)), categories)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)


def draw_lines(
    axes: Axes,
    *,
    title: str,
    x_label: str,
    y_label: str,
    lines: Iterable[Line],
    top: float | None = None,
    whole: bool = False,
) -> None:
    """Lines over one horizontal axis, from zero up to ``top``, or to what is drawn.

    ``whole``: what is counted on the horizontal axis has no halves.
    """
    for index, line in enumerate(lines):
        colour, dashes, marker = _STROKES[index % len(_STROKES)]
        ys = [float("nan") if value is None else value for value in line.ys]
        step = -(-len(line.xs) // _MARKERS) or 1
        look: dict[str, Any] = {"color": colour, "linestyle": dashes, "marker": marker, "markevery": step}
        axes.plot(line.xs, ys, label=line.name, **look)
    _name_axes(axes, title, x_label, y_label, whole=whole)
    axes.set_ylim(0, top)


def draw_stack(
    axes: Axes,
    *,
    title: str,
    x_label: str,
    y_label: str,
    xs: Sequence[float],
    layers: Mapping[str, Sequence[float]],
    end: float | None = None,
    whole: bool = False,
) -> None:
    """Layers on each other: bars at their places, or areas where ``end`` is given.

    Of areas each layer holds from its place on to the next, the last to ``end``.
    """
    base = [0.0] * len(xs)
    for index, (name, heights) in enumerate(layers.items()):
        top = [under + height for under, height in zip(base, heights, strict=True)]
        if end is None:
            axes.bar(xs, heights, _GROUP, bottom=base, label=name, **_fill(index))
        else:
            edges, low, high = [*xs, end], [*base, *base[-1:]], [*top, *top[-1:]]
            axes.fill_between(edges, low, high, step="post", label=name, **_fill(index))
        base = top
    axes.grid(visible=False, axis="x")
    _name_axes(axes, title, x_label, y_label, whole=whole)
    axes.set_ylim(0, None, auto=True)  # which a later chart of the same scale may still move


def with_marks(draw: Drawing, marks: Mapping[str, float]) -> Drawing:
    """The same, with upright lines where something happened, and names in some room above what is drawn."""

    def marked(axes: Axes) -> None:
        draw(axes)
        if marks:
            axes.set_ylim(0, axes.get_ylim()[1] * _MARKED_ROOM)
        for name, x in marks.items():
            axes.axvline(x, color="#000000", linewidth=0.8, linestyle=(0, (2, 2)))
            at_top = {"xy": (x, 1.0), "xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            axes.annotate(name, xytext=(2, -2), rotation=90, va="top", fontsize=7.5, **at_top)

    return marked


def _fill(index: int) -> dict[str, Any]:
    colour, hatch = _FILLS[index % len(_FILLS)]
    return {"facecolor": colour, "hatch": hatch, "edgecolor": _EDGE, "linewidth": 0.6}


def _name_axes(axes: Axes, title: str, x_label: str, y_label: str, *, whole: bool) -> None:
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if whole:
        axes.xaxis.get_major_locator().set_params(integer=True)
