"""The values that a run's plots and tables show."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import pytest

from superdl.experiments.reporting.run_page import run_tables
from superdl.experiments.reporting.run_plots import run_plots, thinned
from tests.experiments.reporting.runs import a_run, columns, one_pass, stalls, usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.experiments.reporting.run_files import RunFiles


@pytest.fixture
def drawn(monkeypatch) -> Callable[[RunFiles], dict[str, list]]:
    """The axes of each plot of a run, by the plot's name."""
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))

    def draw(run: RunFiles) -> dict[str, list]:
        figures.clear()
        names = [name for name, plot in run_plots(run).items() if plot is not None]
        return {name: figure.axes for name, figure in zip(names, figures, strict=True)}

    return draw


def lines_of(axes) -> dict[str, list]:
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines if line.get_marker()}


def heights_of(axes) -> dict[str, list[float]]:
    """The heights of areas on each other, by their names."""
    found = {}
    for area in axes.collections:
        (path,) = area.get_paths()
        places = sorted({x for x, _ in path.vertices.tolist()})
        middles = [(low + high) / 2 for low, high in itertools.pairwise(places)]
        found[area.get_label()] = [_height_at(path.vertices, middle) for middle in middles]
    return found


def _height_at(vertices, x: float) -> float:
    """How high an area of steps is at a place."""
    ys = [
        y0
        for (x0, y0), (x1, y1) in itertools.pairwise(vertices)
        if y0 == y1 and min(x0, x1) <= x <= max(x0, x1)
    ]
    return max(ys) - min(ys)


def cells_of(run: RunFiles, name: str) -> list[dict[str, object]]:
    """The rows of a table by the heads of its columns."""
    table = run_tables(run)[name]
    return [dict(zip(table.heads, row, strict=True)) for row in table.rows]


def test_a_step_consists_of_waiting_computing_and_what_is_left(drawn):
    run = a_run(one_pass(), steps={(0, "train"): columns((0.1, 0.2, 0.35), (0.0, 0.9, 0.4))})
    (axes, _) = drawn(run)["steps"]
    assert heights_of(axes) == {
        "waiting for data": [pytest.approx(100.0), 0.0],
        "computing": [pytest.approx(200.0), pytest.approx(900.0)],
        "other": [pytest.approx(50.0), 0.0],
    }


def test_learning_is_shown_over_epochs_done_and_a_diverged_loss_leaves_a_gap(drawn):
    steps = columns((0, 0, 1), (0, 0, 1))
    run = a_run(one_pass(), one_pass(0, "val"), steps={(0, "train"): steps})
    loss, accuracy = drawn(run)["learning"]
    assert lines_of(loss) == {"training, by step": [[0.5, 1.0], [1.0, 0.75]], "validation": [[1.0, 0.5]]}
    assert lines_of(accuracy) == {
        "training, by step": [[0.5, 0.0], [1.0, 25.0]],
        "validation, top-1": [[1.0, 90.0]],
    }
    steps["loss"][0] = math.nan
    assert math.isnan(lines_of(drawn(run)["learning"][0])["training, by step"][0][1])


def test_what_files_do_not_tell_has_no_table_and_no_plot(drawn):
    assert drawn(a_run()) == {}
    told = {name for name, table in run_tables(a_run(one_pass())).items() if table is not None}
    assert told == {"passes", "time"}
    assert drawn(a_run(usage=[usage(1.0, "trainer")])) == {}, "one look is no use over time"


def test_stalls_are_stacked_by_cause_over_epochs(drawn):
    run = a_run(one_pass(stalls=stalls(decode=1.0, own=2.0)), one_pass(1, stalls=stalls(cold_start=3.0)))
    (axes,) = drawn(run)["stalls"]
    assert heights_of(axes) == {"starting": [0.0, 3.0], "decoding": [1.0, 0.0], "unknown": [2.0, 0.0]}
    assert cells_of(run, "stalls")[0] == {
        "pass": "1 train",
        "steps": 10,
        "stalled (steps)": 2,
        "limited by computing (% of steps)": 80.0,
        "starting (s)": 0.0,
        "decoding (s)": 1.0,
        "unknown (s)": 2.0,
        "all stalls (s)": 3.0,
        "all stalls (% of time)": 30.0,
    }
    assert [row[0] for row in run_tables(run)["causes"].rows] == ["starting", "decoding", "unknown"]


def test_one_slow_step_is_cut_and_marked_and_axes_end_where_data_end(drawn):
    steps = {(0, "train"): columns((3.0, 0.1, 3.1), *[(0.0, 0.1, 0.1)] * 39)}
    (axes, _) = drawn(a_run(one_pass(), steps=steps))["steps"]
    assert axes.get_xlim() == (0.0, 40.0)
    assert axes.get_ylim() == (0.0, pytest.approx(150.0))
    assert [text.get_text().strip() for text in axes.texts] == ["\u25b2 3,100"]


def test_cores_in_use_are_means_over_half_a_second_at_least(drawn):
    rows = [usage(100.0, "trainer"), usage(100.8, "trainer", 0.5), usage(100.81, "trainer", 9.0)]
    rows += [usage(102.0, "trainer", 1.0), usage(102.0, "workers", 0.25)]
    (axes,) = drawn(a_run(one_pass(), usage=rows))["usage"]
    assert heights_of(axes) == {
        "trainer": [0.0, pytest.approx((0.8 * 0.5 + 0.01 * 9.0) / 0.5), 0.0, pytest.approx(1.19 / 0.5)],
        "workers": [0.0, 0.0, 0.0, pytest.approx(1.19 * 0.25 / 0.5)],
    }


def test_gpus_of_all_ranks_are_lines_of_their_own(drawn):
    rows = {
        rank: [usage(float(at), "gpu", percent=20.0 * rank + at, used=2**30 * rank) for at in range(3)]
        for rank in range(2)
    }
    run = a_run(one_pass(), usage=[usage(0.0, "trainer"), *rows[0]], others={1: rows[1]}.items())
    _, busy, memory = drawn(run)["usage"]
    assert lines_of(busy) == {
        "rank 0": [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]],
        "rank 1": [[0.0, 20.0], [1.0, 21.0], [2.0, 22.0]],
    }
    assert [points[0][1] for points in lines_of(memory).values()] == [0.0, 1.0]


def test_a_table_of_very_many_passes_leaves_its_middle_out():
    names = [row[0] for row in run_tables(a_run(*map(one_pass, range(100))))["passes"].rows]
    assert (names[0], names[19:22], names[-1], len(names)) == (
        "1 train",
        ["20 train", "60 more", "81 train"],
        "100 train",
        41,
    )


def test_many_points_become_means_of_neighbours():
    assert thinned((1.0, 3.0, 5.0, 7.0, 8.0), 3) == ([0, 2, 4], [2.0, 6.0, 8.0])
    assert thinned((1.0, 2.0), 3) == ([0, 1], [1.0, 2.0])
    assert thinned((), 3) == ([], [])


def test_processors_have_cpu_by_image_of_one_rank_alone_and_the_gpu_where_there_was_one():
    group = {"cpu_s": 4.0, "cpu_cores": 0.4, "pss_bytes_max": None}
    phase = {"epoch": 0, "split": "train", "wall_s": 10.0, "groups": {"trainer": group}}
    nothing, gpu = (
        {"gpu_percent": busy, "gpu_memory_bytes_max": used} for busy, used in ((None, None), (80.0, 10**9))
    )
    alone, several, with_gpu = (
        cells_of(a_run(one_pass(), ranks=ranks, utilization={"phases": [phase | on]}), "processors")[0]
        for ranks, on in ((1, nothing), (4, nothing), (1, gpu))
    )
    assert alone["CPU (ms/image)"] == 4.0
    assert several == {name: cell for name, cell in alone.items() if name != "CPU (ms/image)"}
    assert with_gpu == alone | {"GPU (% busy)": 80.0, "GPU memory (most, MB)": pytest.approx(1000.0)}


def test_a_bill_is_listed_by_what_was_paid_for():
    line = {"name": "training machine", "usd": 2.0, "by_epoch": [0.5, 0.25], "how": "1 h of 1 x box"}
    told = {"lines": [line], "epochs": [{"usd": 0.5}, {"usd": 0.25}], "usd": 2.0}
    assert run_tables(a_run(one_pass(), bill=told))["bill"].rows == [
        ("training machine", 2.0, 0.5, 0.25, "1 h of 1 x box"),
        ("all of it", 2.0, 0.5, 0.25, ""),
    ]
