"""Plots: the same picture each time, told apart without colour, with what is absent left out."""

from __future__ import annotations

import base64
import re
import sys
from functools import partial

import pytest

from superdl.experiments.reporting.plots import (
    Line,
    draw_bars,
    draw_lines,
    draw_stack,
    plot_of,
    plots_missing,
    with_marks,
)
from superdl.experiments.reporting.run_plots import thinned

TWO_SERIES = {"first epoch": (800.0, None), "later epochs": (1200.0, 710.0)}
BARS = partial(draw_bars, title="speed", label="images/s", categories=("super", "torch"), series=TWO_SERIES)
LINES = partial(
    draw_lines,
    title="loss",
    x_label="step",
    y_label="loss",
    lines=[Line("train", (0.0, 1.0, 2.0), (1.0, None, 0.5)), Line("val", (2.0,), (0.4,))],
)
LAYERS = {"waiting": (1.0, 2.0), "computing": (1.0, 0.0)}
STACK = partial(draw_stack, title="steps", x_label="step", y_label="s", xs=(0.0, 1.5), layers=LAYERS)
AREAS = partial(STACK, end=3.0)
ALL = {"bars": BARS, "lines": LINES, "stack": STACK, "areas": AREAS}


def axes_of(draw):
    """What a function has drawn, as matplotlib knows it."""
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    draw(axes)
    return axes


def svg_of(*drawings, **options) -> str:
    plot = plot_of("words", drawings, **options)
    assert plot is not None
    kind, _, content = plot.image.partition(",")
    assert kind == "data:image/svg+xml;base64"
    return base64.b64decode(content).decode()


@pytest.mark.parametrize("draw", ALL.values(), ids=ALL)
def test_a_chart_is_drawn_the_same_each_time_and_loads_nothing(draw):
    once, again = svg_of(draw), svg_of(draw)
    assert once == again
    assert not re.search(r'href="(?!#)|url\((?!#)|@import|<text', once)


def test_series_differ_by_hatch_and_dash_not_by_colour_alone():
    assert svg_of(BARS).count("<pattern") == 1  # the first is plain, the second hatched
    assert "stroke-dasharray" in svg_of(LINES)


def test_bars_say_their_values_and_how_far_they_spread():
    axes = axes_of(partial(BARS, series={"a": (5.0, 1200.0)}, spread=((1.0, 0.0), (2.0, 100.0))))
    assert [bar.get_width() for bar in axes.patches] == [5.0, 1200.0]
    assert [text.get_text() for text in axes.texts] == ["5.00", "1,200"]
    (whiskers,) = axes.collections
    assert [part[:, 0].tolist() for part in whiskers.get_segments()] == [[4.0, 7.0], [1200.0, 1300.0]]
    assert [text.get_text() for text in axes_of(BARS).texts] == ["800", "", "1,200", "710"]


def test_layers_lie_on_each_other():
    bars = [(bar.get_y(), bar.get_height()) for bar in axes_of(STACK).patches]
    assert bars == [(0.0, 1.0), (0.0, 2.0), (1.0, 1.0), (2.0, 0.0)]
    _, upper = axes_of(AREAS).collections
    assert upper.get_paths()[0].get_extents().bounds == (0.0, 1.0, 3.0, 1.0)


def test_names_that_look_like_formulas_or_lack_letters_are_drawn():
    svg_of(partial(BARS, title="$x^", label="$\\frac$", categories=("$", "名前"), series={"_{": (1.0, 2.0)}))


@pytest.mark.parametrize("turn", [1, -1])
def test_charts_of_one_scale_show_all_of_the_highest(turn, monkeypatch):
    from matplotlib.figure import Figure

    limits = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: limits.extend(map(ylim, self.axes)))
    high = partial(AREAS, layers={"a": (3.0, 90.0)})
    plot_of("words", [AREAS, high][::turn], columns=2, one_scale=True)
    assert limits == [(0.0, pytest.approx(94.5))] * 2


def ylim(axes):
    return axes.get_ylim()


def test_names_of_marks_have_room_above_what_is_drawn():
    before = axes_of(LINES).get_ylim()[1]
    axes = axes_of(with_marks(LINES, {"epoch 2": 1.0}))
    assert axes.get_ylim() == (0.0, pytest.approx(1.25 * before))
    assert [text.get_text() for text in axes.texts] == ["epoch 2"]
    assert axes_of(partial(LINES, top=5.0)).get_ylim() == (0.0, 5.0)


def test_settings_of_the_process_are_left_as_they_were_and_have_no_part(monkeypatch):
    import matplotlib as mpl

    plain = svg_of(BARS)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # an import of it would fail
    with mpl.rc_context({"font.size": 31.0, "axes.facecolor": "red"}):
        before = mpl.rcParams.copy()
        assert svg_of(BARS) == plain
        assert mpl.rcParams.copy() == before


def test_without_matplotlib_nothing_is_drawn_and_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert plot_of("words", [BARS]) is None
    assert "pip install 'superdl[train]'" in (plots_missing() or "")


def test_many_points_become_means_of_neighbours():
    assert thinned((1.0, 3.0, 5.0, 7.0, 8.0), 3) == ([0, 2, 4], [2.0, 6.0, 8.0])
    assert thinned((1.0, 2.0), 3) == ([0, 1], [1.0, 2.0])
    assert thinned((), 3) == ([], [])
