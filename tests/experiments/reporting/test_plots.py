"""Plots: the same picture each time, told apart without colour, with what is absent left out."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest

from superdl.experiments.reporting.charts import Bars, Line, Lines, Mark, Series, Stack, thinned
from superdl.experiments.reporting.plots import _fill, draw
from superdl.super_wire.errors import ConfigError

BARS = Bars(
    "throughput",
    "images per second",
    ("super", "torch"),
    (
        Series("first epoch", (800.0, None), (700.0, None), (850.0, None)),
        Series("later epochs", (1200.0, 710.0), (1100.0, 700.0), (1300.0, 740.0)),
    ),
)
LINES = Lines(
    "loss",
    "step",
    "loss",
    (Line("train", (0.0, 1.0, 2.0), (1.0, None, 0.5)), Line("val", (2.0,), (0.4,), marked=True)),
    marks=(Mark(1.0, "epoch 2"),),
)
STACK = Stack(
    "step time",
    "step",
    "seconds",
    (0.0, 1.0),
    (Series("waiting", (1.0, 2.0)), Series("computing", (1.0, None))),
)
AREAS = Stack("cores", "s", "cores", (0.0, 1.5), (Series("a", (1.0, 2.0)), Series("b", (1.0, 0.0))), end=3.0)


@pytest.mark.parametrize("chart", [BARS, LINES, STACK, AREAS], ids=["bars", "lines", "stack", "areas"])
def test_a_chart_is_drawn_the_same_each_time(chart):
    once, again = (draw([chart], alt="words", identity="p1") for _ in range(2))
    assert once == again
    assert once.startswith('<svg role="img" aria-label="words"')
    assert not re.search(r"https?:|<!--|<\?xml|<style|xmlns", once)


def test_ids_of_two_plots_of_one_page_differ():
    ids = [set(re.findall(r'\bid="([^"]+)"', draw([BARS], alt="", identity=name))) for name in ("p1", "p2")]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_every_reference_in_a_plot_has_its_target():
    svg = draw([BARS, LINES, STACK, AREAS], alt="", identity="p1", columns=2)
    named = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg)
    assert named
    assert {first or second for first, second in named} <= set(re.findall(r'\bid="([^"]+)"', svg))


def test_series_differ_by_hatch_and_dash_not_by_colour_alone():
    bars = draw([BARS], alt="", identity="p1")
    assert bars.count("<pattern") == 1  # the first is plain, the second hatched
    lines = draw([LINES], alt="", identity="p1")
    assert "stroke-dasharray" in lines


def test_the_words_for_a_plot_are_escaped():
    assert 'aria-label="a &lt;b&gt; &quot;c&quot; &amp;"' in draw([BARS], alt='a <b> "c" &', identity="p1")


def test_names_that_look_like_formulas_or_lack_letters_are_drawn():
    draw([Bars("$x^", "$\\frac$", ("$", "名前"), (Series("_{", (1.0, 2.0)),))], alt="", identity="p1")


def test_charts_that_are_alike_show_all_of_the_highest():
    from matplotlib.figure import Figure

    high = Stack("high", "x", "y", (0.0, 1.0), (Series("a", (3.0, 90.0)),), end=2.0)
    figure = Figure()
    _fill(figure, [STACK, high], rows=1, columns=2, alike=True)
    assert [axes.get_ylim() for axes in figure.axes] == [(0.0, pytest.approx(94.5))] * 2


def test_names_of_marks_have_room_above_what_is_drawn():
    from matplotlib.figure import Figure

    figure = Figure()
    _fill(figure, [LINES, replace(LINES, marks=(), top=5.0)], rows=2, columns=1, alike=False)
    drawn, fixed = (axes.get_ylim()[1] for axes in figure.axes)
    assert drawn > 1.25
    assert fixed == 5.0


def test_settings_of_the_process_are_left_as_they_were_and_have_no_part(monkeypatch):
    import matplotlib as mpl

    plain = draw([BARS], alt="", identity="p1")
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # an import of it would fail
    with mpl.rc_context({"font.size": 31.0, "axes.facecolor": "red"}):
        before = mpl.rcParams.copy()
        assert draw([BARS], alt="", identity="p1") == plain
        assert mpl.rcParams.copy() == before


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'superdl\[train\]'"):
        draw([BARS], alt="", identity="p1")


def test_many_points_become_means_of_neighbours():
    xs, (ys, zs) = thinned((0, 1, 2, 3, 4), [(1.0, 3.0, 5.0, 7.0, 8.0), (0.0,) * 5], 3)
    assert xs == (0, 2, 4)
    assert ys == (2.0, 6.0, 8.0)
    assert zs == (0.0, 0.0, 0.0)
    assert thinned((0, 1), [(1.0, 2.0)], 3) == ((0, 1), [(1.0, 2.0)])
    assert thinned((), [()], 3) == ((), [()])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Series("a", (1.0,), low=(1.0,)), "low and high go together"),
        (lambda: Series("a", (1.0,), (1.0, 2.0), (1.0,)), "2 spreads for 1 values"),
        (lambda: Bars("t", "l", ("x",), (Series("a", (1.0, 2.0)),)), "2 values, 1 categories"),
        (lambda: Line("a", (1.0,), ()), "1 places, 0 values"),
        (lambda: Stack("t", "x", "y", (1.0,), (Series("a", ()),)), "0 values, 1 places"),
    ],
)
def test_values_that_do_not_fit_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
