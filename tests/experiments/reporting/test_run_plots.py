"""The values that a run's plots and tables show."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import pytest

from superdl.experiments.reporting.run_plots import cores_by_part, run_plots
from superdl.experiments.reporting.run_tables import run_tables
from tests.experiments.reporting.runs import a_run, bill, columns, one_pass, printed_times, stalls, usage

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
    return {
        line.get_label(): line.get_xydata().tolist() for line in axes.lines if line.get_marker() != "None"
    }


def heights_of(axes) -> dict[str, list[float]]:
    """The heights of areas or bars on each other, by their names."""
    if axes.containers:
        return {bars.get_label(): [bar.get_height() for bar in bars] for bars in axes.containers}
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


def cells_of(run: RunFiles, name: str) -> list[dict[str, str]]:
    """The rows of a table by the heads of its columns."""
    table = run_tables(run)[name]
    heads = [f"{one.name} ({one.unit})" if one.unit else one.name for one in table.columns]
    return [dict(zip(heads, row, strict=True)) for row in table.rows]


def test_a_step_consists_of_waiting_computing_and_what_is_left(drawn):
    run = a_run(one_pass(), steps={(0, "train"): columns((0.1, 0.2, 0.35), (0.0, 0.9, 0.4))})
    (axes,) = drawn(run)["steps"]
    assert heights_of(axes) == {
        "waiting for data": [pytest.approx(100.0), 0.0],
        "computing": [pytest.approx(200.0), pytest.approx(900.0)],
        "other": [pytest.approx(50.0), 0.0],
    }


def test_learning_is_shown_over_epochs_done(drawn):
    run = a_run(one_pass(), one_pass(0, "val"), steps={(0, "train"): columns((0, 0, 1), (0, 0, 1))})
    loss, accuracy = drawn(run)["learning"]
    assert lines_of(loss) == {"training, by step": [[0.5, 1.0], [1.0, 0.75]], "validation": [[1.0, 0.5]]}
    assert lines_of(accuracy) == {
        "training, by step": [[0.5, 0.0], [1.0, 25.0]],
        "validation, top-1": [[1.0, 90.0]],
    }


def test_speed_has_a_chart_for_each_split_and_is_a_line_over_many_epochs(drawn):
    charts = drawn(a_run(one_pass(), one_pass(0, "val", images_per_s=900.0), one_pass(1)))["speeds"]
    told = {axes.get_title(loc="left"): [bar.get_width() for bar in axes.patches] for axes in charts}
    assert told == {"Training": [100.0, 100.0], "Validation": [900.0]}
    (axes,) = drawn(a_run(*(one_pass(epoch) for epoch in range(13))))["speeds"]
    assert lines_of(axes)["Training"][-1] == [13.0, 100.0]
    assert len(lines_of(axes)["Training"]) == 13


def test_step_times_that_were_printed_are_listed_and_drawn(drawn):
    run = a_run(one_pass(), step_times=printed_times((0, 10, 2.5), (0, 20, 0.37), (1, 10, 0.88)))
    assert run_tables(run)["step_times"].rows == (("10", "2,500", "880"), ("20", "370", "-"))
    (axes,) = drawn(run)["step_times"]
    assert lines_of(axes) == {"epoch 1": [[10.0, 2500.0], [20.0, 370.0]], "epoch 2": [[10.0, 880.0]]}
    many = a_run(one_pass(), step_times=printed_times(*((epoch, 10, 1.0) for epoch in range(9))))
    names = ["epoch 1", "epoch 2", "epoch 3", "epoch 7", "epoch 8", "epoch 9"]
    assert [column.name for column in run_tables(many)["step_times"].columns[1:]] == names


def test_what_files_do_not_tell_has_no_table_and_no_plot(drawn):
    assert drawn(a_run()) == {}
    told = {name for name, table in run_tables(a_run(one_pass())).items() if table is not None}
    assert told == {"passes", "time"}
    assert drawn(a_run(usage=[usage(1.0, "trainer")])) == {}, "one look is no use over time"


def test_stalls_are_stacked_by_cause_over_epochs(drawn):
    passes = (one_pass(stalls=stalls(decode=1.0, own=2.0)), one_pass(1, stalls=stalls(cold_start=3.0)))
    run = a_run(*passes)
    (axes,) = drawn(run)["stalls"]
    assert heights_of(axes) == {"cold start": [0.0, 3.0], "decode": [1.0, 0.0], "own": [2.0, 0.0]}
    assert cells_of(run, "stalls")[0] == {
        "pass": "1 train",
        "steps": "10",
        "stalled (steps)": "2",
        "bound by computing (% of steps)": "80.0",
        "cold start (s)": "0",
        "decode (s)": "1.00",
        "own (s)": "2.00",
        "all stalls (s)": "3.00",
        "all stalls (% of time)": "30.0",
    }
    ((cause, meaning, _), (other, _, remedy)) = run_tables(run)["causes"].rows
    assert (cause, meaning) == ("cold start", "functions, or the job itself, were starting")
    assert (other, remedy) == ("decode", "more functions, or a second executor")


def test_cores_in_use_are_means_over_half_a_second_at_least(drawn):
    rows = [usage(100.0, "trainer"), usage(101.0, "trainer", 0.5), usage(101.01, "trainer", 9.0)]
    rows += [usage(102.0, "trainer", 1.0), usage(102.0, "workers", 0.25)]
    edges, layers = cores_by_part(rows, sorted({row.at_s for row in rows}))
    assert edges == [100.0, 101.0, 102.0]
    assert layers == {
        "trainer": [0.5, pytest.approx(0.01 * 9.0 + 0.99 * 1.0)],
        "workers": [0.0, pytest.approx(0.99 * 0.25)],
    }
    (axes,) = drawn(a_run(one_pass(), usage=rows))["usage"]
    assert axes.get_xlim()[0] <= 0.0
    assert heights_of(axes).keys() == layers.keys()


def test_gpus_of_all_ranks_are_lines_and_rows_of_their_own(drawn):
    rows = {
        rank: [
            usage(float(at), "gpu", percent=20.0 * rank + at, used=2**30 * rank, total=2**34)
            for at in range(3)
        ]
        for rank in range(2)
    }
    run = a_run(one_pass(), usage=[usage(0.0, "trainer"), *rows[0]], others={1: rows[1]}.items())
    _, busy, memory = drawn(run)["usage"]
    assert lines_of(busy) == {
        "rank 0": [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]],
        "rank 1": [[0.0, 20.0], [1.0, 21.0], [2.0, 22.0]],
    }
    assert [points[0][1] for points in lines_of(memory).values()] == [0.0, 1.0]
    assert memory.get_ylim() == (0.0, 16.0)
    assert run_tables(run)["gpus"].rows == (
        ("0", "3", "1.0", "0 B", "17.2 GB"),
        ("1", "3", "21.0", "1.07 GB", "17.2 GB"),
    )


def test_a_table_of_very_many_passes_leaves_its_middle_out():
    names = [row[0] for row in run_tables(a_run(*(one_pass(at) for at in range(100))))["passes"].rows]
    assert (names[0], names[19:22], names[-1], len(names)) == (
        "1 train",
        ["20 train", "60 more", "81 train"],
        "100 train",
        41,
    )


def test_costs_are_a_chart_where_there_are_several(drawn):
    assert "cost" not in drawn(a_run(bill=bill(("a", 1.0), ("b", None), ("c", 0.0))))
    (axes,) = drawn(a_run(bill=bill(("a", 1.0), ("b", None), ("c", 2.0))))["cost"]
    assert [bar.get_width() for bar in axes.patches] == [1.0, 2.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "c"]


def test_processors_have_cpu_by_image_of_one_rank_alone_and_the_gpu_where_there_was_one():
    group = {"cpu_s": 4.0, "cpu_cores": 0.4, "pss_bytes_max": None}
    phase = {"epoch": 0, "split": "train", "wall_s": 10.0, "groups": {"trainer": group}}
    nothing, gpu = (
        {"gpu_percent": busy, "gpu_memory_bytes_max": used} for busy, used in ((None, None), (80.0, 2**30))
    )
    alone, several, with_gpu = (
        cells_of(a_run(one_pass(), ranks=ranks, utilization={"phases": [phase | on]}), "processors")[0]
        for ranks, on in ((1, nothing), (4, nothing), (1, gpu))
    )
    assert alone["CPU (ms/image)"] == "4.00"
    assert several == {name: cell for name, cell in alone.items() if name != "CPU (ms/image)"}
    assert with_gpu == alone | {"GPU (% busy)": "80.0", "GPU memory (most)": "1.07 GB"}


def test_what_status_checks_cost_is_listed():
    counted = {"status_calls": 4, "status_s": 0.2, "status_cpu_s": 0.01, "status_wait_s": 0.02}
    (row,) = run_tables(a_run(one_pass(wall_s=2.0, job=counted), one_pass(1)))["status"].rows
    assert row == ("1 train", "4", "200", "10.0", "50.0", "20.0", "1.00")


def test_a_bill_is_listed_by_what_was_paid_for_and_by_epoch():
    line = {"name": "training machine", "usd": 2.0, "by_epoch": [0.5, 0.25], "how": "1 h of 1 x box"}
    epochs = [
        {"epoch": at, "usd": usd, "usd_per_million_images": usd * 4} for at, usd in ((0, 0.5), (1, 0.25))
    ]
    told = {"lines": [line], "epochs": epochs, "usd": 2.0, "usd_per_million_images": 9.0}
    tables = run_tables(a_run(one_pass(), bill=told))
    assert tables["bill"].rows == (
        ("training machine", "2.00", "0.500", "0.250", "1 h of 1 x box"),
        ("all of it", "2.00", "0.500", "0.250", ""),
    )
    assert tables["epoch_costs"].rows == (
        ("1", "0.50", "2.00"),
        ("2", "0.25", "1.00"),
        ("the run", "2.00", "9.00"),
    )


def test_a_diverged_loss_is_absent_and_leaves_a_gap(drawn):
    steps = columns((0, 0, 1), (0, 0, 1))
    steps.loss[0] = math.nan
    run = a_run(one_pass(loss=None), steps={(0, "train"): steps})
    assert cells_of(run, "passes")[0]["loss (mean)"] == "-"
    loss, _ = drawn(run)["learning"]
    assert math.isnan(lines_of(loss)["training, by step"][0][1])
