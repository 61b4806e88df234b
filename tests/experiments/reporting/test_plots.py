"""Plots: the same picture each time, told apart without colour, with what is absent left out."""

from __future__ import annotations

import base64
import re
import sys
from functools import partial

import pytest

from superdl.experiments.reporting.page import draw_bars, draw_lines, draw_stack, plot_of, plots_missing

BARS = partial(draw_bars, title="$x^", label="$\\frac$", bars={"super": 1200.0, "_{": None, "名前": 5.0})
LINES = partial(
    draw_lines,
    title="loss",
    x_label="step",
    y_label="loss",
    lines={"train": ((0.0, 1.0, 2.0), (1.0, None, 0.5)), "val": ((2.0,), (0.4,))},
)
LAYERS = {"waiting": (1.0, 2.0), "computing": (1.0, 0.0)}
AREAS = partial(draw_stack, title="steps", x_label="step", y_label="s", xs=(0.0, 1.5), layers=LAYERS, end=3.0)


def axes_of(draw):
    """What a function has drawn, as matplotlib knows it."""
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    draw(axes)
    return axes


def svg_of(*drawings) -> str:
    kind, _, content = plot_of("words", drawings).image.partition(",")
    assert kind == "data:image/svg+xml;base64"
    return base64.b64decode(content).decode()


@pytest.mark.parametrize("draw", [BARS, LINES, AREAS], ids=["bars", "lines", "areas"])
def test_a_chart_is_drawn_the_same_each_time_whatever_the_settings_and_loads_nothing(draw, monkeypatch):
    """Names that look like formulas, or whose letters a font lacks, are drawn too."""
    import matplotlib as mpl

    once = svg_of(draw)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # an import of it would fail
    with mpl.rc_context({"font.size": 31.0, "axes.facecolor": "red"}):
        before = mpl.rcParams.copy()
        assert svg_of(draw) == once
        assert mpl.rcParams.copy() == before
    assert not re.search(r'href="(?!#)|url\((?!#)|@import|<text', once)


def test_series_differ_by_hatch_and_dash_not_by_colour_alone():
    assert svg_of(AREAS).count("<pattern") == 1  # the first is plain, the second hatched
    assert "stroke-dasharray" in svg_of(LINES)


def test_bars_say_their_values_and_how_far_they_spread():
    axes = axes_of(partial(BARS, spread=((100.0, None, 1.0), (300.0, None, 2.0))))
    assert [bar.get_width() for bar in axes.patches] == [1200.0, 0.0, 5.0]
    assert [text.get_text() for text in axes.texts] == ["1,200", "", "5.00"]
    (whiskers,) = axes.collections
    reaches = [part[:, 0].tolist() for part in whiskers.get_segments()]
    assert reaches == [[1100.0, 1500.0], [0.0, 0.0], [4.0, 7.0]]


def test_areas_lie_on_each_other_and_lines_begin_at_zero():
    _, upper = axes_of(AREAS).collections
    assert upper.get_paths()[0].get_extents().bounds == (0.0, 1.0, 3.0, 1.0)
    assert axes_of(partial(LINES, top=5.0)).get_ylim() == (0.0, 5.0)


def test_without_matplotlib_nothing_is_drawn_and_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert plot_of("words", [BARS]) is None
    assert "pip install 'superdl[train]'" in (plots_missing() or "")
