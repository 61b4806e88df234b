"""Render a Jinja2 template with tables, plots and text as one self-contained HTML file."""

from __future__ import annotations

import base64
import io
import itertools
import math
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes

    Drawing = Callable[[Axes], None]
    Values = Sequence[float | None]

# Stands for a value that was not measured, as opposed to zero.
ABSENT = "-"


def number(value: float | None, digits: int = 3) -> str:
    """Format with separators and ``digits`` significant digits, but keep all digits of the integer part."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def seconds(value: float | None) -> str:
    """Format a duration in seconds, such as 85.0 ms, 1.25 s, 12 min 3 s or 2 h 5 min."""
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


def moment(timestamp: str) -> str:
    """Format an ISO timestamp for display, such as 2026-12-01 15:47:26 UTC."""
    return timestamp.replace("T", " ").replace("+00:00", " UTC")


def share(part: float | None, whole: float | None) -> float | None:
    """Return ``part / whole``, or None if either is unknown or ``whole`` is zero."""
    return None if part is None or not whole else part / whole


def times(value: float | None, factor: float) -> float | None:
    """Return ``factor * value``, or None if the value is unknown."""
    return value if value is None or factor == 1 else factor * value


def percent(value: float | None) -> str:
    """Format a share as a percentage with one decimal place."""
    return ABSENT if value is None or not math.isfinite(value) else f"{100 * value:.1f}%"


def usd(value: float | None) -> str:
    """Format an amount in US dollars, such as $0.00, $0.526 or $1,250."""
    return ABSENT if value is None else f"${number(value) if value else '0.00'}"


PAGE_NAME = "report.html"

# Text, a number, or None for an unknown value.
Cell = str | float | None


class Table(NamedTuple):
    """A table. Column heads include units."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    total: bool = False  # the last row is the sum of the others
    best: Sequence[int | None] = ()  # for each row, the column of the best value

    @property
    def text_columns(self) -> set[int]:
        """The indices of text columns, which are left-aligned. All other columns are right-aligned."""
        return {
            at
            for at in range(len(self.heads))
            if any(isinstance(row[at], str) and row[at] for row in self.rows)
            and not any(isinstance(row[at], float | int) for row in self.rows)
        }


def facts_table(caption: str, facts: Mapping[str, object]) -> Table:
    """Return a table of names and values."""
    return Table(caption, ("what", "value"), [(str(name), str(value)) for name, value in facts.items()])


def render(template: str, **values: Any) -> str:
    """Render a template from ``templates/`` as a complete page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        # A misspelt name raises an error instead of rendering as nothing.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["plots_missing"] = plots_missing()
    environment.filters["cell"] = cell_text
    return environment.get_template(template).render(values)


def cell_text(cell: Cell) -> str:
    """Format a table cell."""
    if isinstance(cell, str):
        return cell
    # Integers are counts, so show all digits.
    return f"{cell:,}" if isinstance(cell, int) else number(cell)


# --------------------------------------------------------------------------------------------- plots

_BAR_COLOUR = "#1f3b57"
_WIDTH_IN = 8.2
_ROW_IN = 3.0
_NAME_WIDTH = 24
_MAX_MARKERS = 25  # on a line
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "path",  # draw letters as shapes, which need no font
    "svg.hashsalt": "superdl",
    "text.parse_math": False,
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.prop_cycle": "cycler(color=['#1f3b57', '#c8741a', '#4f7f49', '#000000', '#8a4a6b', '#6e6e6e'],"
    " linestyle=['-', '--', '-.', ':', '--', '-.'], marker=['o', 's', '^', 'D', 'v', 'x'])",
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.0,
}


class Plot(NamedTuple):
    """An image for a page, as a data URL, and its caption."""

    caption: str
    image: str


def plots_missing() -> str | None:
    """Return the reason plots cannot be drawn, or None if they can."""
    try:
        import matplotlib.figure  # noqa: F401  # only a check
    except ImportError as error:
        return (
            f"cannot import matplotlib ({error}). Run pip install 'superdl[train]', then superdl report "
            "DIRECTORY."
        )
    return None


def plot_of(
    caption: str, drawings: Sequence[Drawing], *, columns: int = 1, row_in: float = _ROW_IN
) -> Plot | None:
    """Draw charts in a grid with ``row_in``-inch rows. Return None without charts or without matplotlib."""
    if not drawings or plots_missing() is not None:
        return None
    import matplotlib.style
    from matplotlib.figure import Figure

    rows = -(-len(drawings) // columns)
    file = io.BytesIO()
    with matplotlib.style.context(["default", _SETTINGS]), warnings.catch_warnings():
        # Letters missing from the font show as boxes. The tables have the names, too.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(_WIDTH_IN, row_in * rows), layout="constrained")
        for axes, draw in itertools.zip_longest(figure.subplots(rows, columns, squeeze=False).flat, drawings):
            if draw is None:
                axes.set_axis_off()
                continue
            draw(axes)
            if len(axes.get_legend_handles_labels()[1]) > 1:
                axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=max(1, 4 // columns))
        # Without a date, the same data gives the same bytes.
        undated = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=undated, transparent=True)
    return Plot(caption, "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode())


def draw_bars(
    axes: Axes, *, title: str, label: str, bars: Mapping[str, float | None], spread: Sequence[Values] = ()
) -> None:
    """Draw named horizontal bars. ``spread`` gives the error bars' lengths below and above each value."""
    lengths = [value or 0.0 for value in bars.values()]
    errors = [[value or 0.0 for value in side] for side in spread] or None
    drawn = axes.barh(range(len(bars)), lengths, 0.7, xerr=errors, capsize=4, color=_BAR_COLOUR)
    labels = ["" if value is None else number(value) for value in bars.values()]
    axes.bar_label(drawn, labels, padding=4, fontsize=8)
    axes.set(title=title, xlabel=label)
    axes.set_yticks(range(len(bars)), [textwrap.fill(name, _NAME_WIDTH) for name in bars])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.12)


def draw_lines(
    axes: Axes,
    *,
    title: str,
    x_label: str,
    y_label: str,
    lines: Mapping[str, tuple[Sequence[float], Values]],
    top: float | None = None,
) -> None:
    """Draw named lines of (xs, values). The y axis ends at ``top`` or, by default, at the largest value."""
    for name, (xs, values) in lines.items():
        # NaN leaves a gap in the line.
        ys = [float("nan") if value is None else value for value in values]
        # The axes end where the data ends, so clipping would cut the last marker.
        axes.plot(xs, ys, label=name, markevery=-(-len(xs) // _MAX_MARKERS) or 1, clip_on=False)
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    places = [x for xs, _ in lines.values() for x in xs]
    if len(set(places)) > 1:
        axes.set_xlim(min(places), max(places))
    axes.set_ylim(0, top)
