"""What a run's numbers are said to mean: each rule at its limits, and the charts' values."""

from __future__ import annotations

from pathlib import Path

import pytest

from superdl.experiments.records import StepRecord
from superdl.experiments.reporting.run_files import Pass, RunFiles, StepColumns, UsageRow
from superdl.experiments.reporting.run_plots import (
    cost_chart,
    learning_charts,
    speed_charts,
    stalls_chart,
    step_charts,
    step_times_chart,
    usage_charts,
)
from superdl.experiments.reporting.run_tables import gpus_table, passes_table, step_times_table
from superdl.experiments.reporting.run_words import verdict

FIGURES = {
    "samples": 1000,
    "batches": 10,
    "wall_s": 10.0,
    "first_batch_s": 0.5,
    "wait_s": 0.4,
    "read_s": 1.5,
    "compute_s": 9.0,
    "hits": 1000,
    "misses": 0,
    "loss": 0.5,
    "accuracy": 0.9,
    "top5_accuracy": None,
    "images_per_s": 100.0,
    "job": {},
}


def one_pass(epoch: int = 0, split: str = "train", **changes: object) -> Pass:
    return Pass(epoch, split, FIGURES | changes, complete=True)


def a_run(*passes: Pass, steps=None, usage=(), others=(), **known: object) -> RunFiles:
    report = {"status": "finished", "wall_s": 12.0, "spec": {"epochs": len(passes)}, "bill": None} | known
    return RunFiles(Path("run"), report, None, steps or {}, {0: tuple(usage), **dict(others)}, passes, ())


def said(run: RunFiles, subject: str) -> str:
    (text,) = [text for name, text in verdict(run) if name == subject]
    return text


@pytest.mark.parametrize(
    ("wait_s", "words"),
    [
        (0.49, "4.9% of the first epoch's 10.0 s: data does not limit it."),
        (0.5, "5.0% of the first epoch's 10.0 s: data slows it a little; "),
        (1.99, "20% of the first epoch's 10.0 s: data slows it a little; "),
        (2.0, "20% of the first epoch's 10.0 s: data limits it; "),
    ],
)
def test_waiting_matters_from_a_twentieth_on_and_limits_from_a_fifth_on(wait_s, words):
    assert said(a_run(one_pass(wait_s=wait_s)), "Waiting for data:").startswith(words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {
                "job": {
                    "samples_produced": 7,
                    "invocations": 2,
                    "fetch_s": 1.0,
                    "decode_s": 2.0,
                    "push_s": 0.5,
                }
            },
            "functions were producing 7 samples (3.50 s of work)",
        ),
        (
            {"job": {"samples_produced": 1, "invocations": 0, "fetch_s": 1.0, "decode_s": 2.0}},
            "its workers fetched and decoded 1 image (3.00 s)",
        ),
        (
            {"job": {}},
            "nothing was produced then, so that it waited for reading (1.50 s, summed over workers)",
        ),
        (
            {
                "stalls": {
                    "causes": {
                        "decode": {"steps": 1, "wait_s": 1.0},
                        "cold_start": {"steps": 2, "wait_s": 4.0},
                    }
                },
                "job": {"samples_produced": 7, "invocations": 2},
            },
            "data limits it, most of all since functions, or the job itself, were starting (4.00 s)",
        ),
    ],
)
def test_what_was_waited_for_is_told_by_what_is_known(changes, words):
    assert words in said(a_run(one_pass(wait_s=5.0, **changes)), "Waiting for data:")


def test_later_epochs_are_told_apart_from_the_first():
    first = one_pass(wait_s=5.5)
    later = [one_pass(epoch, wait_s=0.2, wall_s=5.0, images_per_s=200.0) for epoch in (1, 2)]
    run = a_run(first, *later)
    assert said(run, "Waiting for data:").endswith("; 4.0% of the epochs after it: data does not limit it.")
    assert said(run, "Throughput:") == (
        "150 images/s while training: 100 images/s in the first epoch, 200 images/s after it."
    )


def test_accuracy_is_of_the_last_epoch_and_names_a_better_one():
    vals = [
        one_pass(epoch, "val", accuracy=accuracy, top5_accuracy=1.0)
        for epoch, accuracy in ((0, 0.8), (1, 0.7))
    ]
    run = a_run(one_pass(), vals[0], one_pass(1), vals[1])
    assert said(run, "Accuracy:") == (
        "after epoch 2 the model was right for 70.0% (top-1; top-5 100.0%) of 1,000 validation images; of "
        "the training images for 90.0%. Best was epoch 1 with 80.0% (top-1; top-5 100.0%)."
    )
    assert "There was no validation data" in said(a_run(one_pass(), val_samples=None), "Accuracy:")
    unused = said(a_run(one_pass(), val_samples=50), "Accuracy:")
    assert "No epoch was validated (training.validate_every)" in unused


def test_the_first_batch_is_counted_from_the_runs_start_too():
    phases = [{"epoch": None, "wall_s": 2.0}]
    assert said(a_run(one_pass(), utilization={"phases": phases}), "First batch:").startswith(
        "500 ms after the first epoch began, 2.50 s after the run did"
    )
    assert said(a_run(one_pass()), "First batch:") == "500 ms after the first epoch began."


def bill(*lines: tuple[str, float | None], each: float | None = 2.5) -> dict[str, object]:
    return {
        "lines": [{"name": name, "usd": usd} for name, usd in lines],
        "usd": sum(usd or 0.0 for _, usd in lines),
        "usd_per_million_images": each,
    }


def test_the_cost_is_said_with_its_parts_and_what_is_not_in_it():
    told = bill(("training machine", 0.5), ("GETs", 0.25), ("functions", 0.0), ("cache", None))
    assert said(a_run(one_pass(), bill=told), "Cost:") == (
        "0.750 USD (2.50 USD for a million training images): training machine 0.500 USD, GETs 0.250 USD. "
        "Not in it, since no price is known: cache."
    )
    nothing = a_run(one_pass(), bill=bill(("training machine", None)))
    assert said(nothing, "Cost:").startswith("nothing of what has a price here was used. Not in it")


def test_bad_samples_are_said_only_where_there_are_some():
    assert "Bad samples:" not in dict(verdict(a_run(one_pass())))
    assert said(a_run(one_pass(job={"samples_failed": 3})), "Bad samples:").startswith("3 times functions")


def test_a_run_that_failed_in_its_second_epoch_says_how_far_it_came():
    run = a_run(one_pass(), status="failed", reason="X: y", spec={"epochs": 3})
    assert verdict(run)[0] == ("It failed", "after 1 of 3 epochs in 12.0 s: X: y.")


def test_a_run_that_went_on_from_another_says_which_epochs_it_did():
    run = a_run(one_pass(2), one_pass(3), spec={"epochs": 4})
    assert verdict(run)[0] == ("It finished:", "epochs 3 to 4 of 4 in 12.0 s.")
    run = a_run(one_pass(2), status="failed", reason="X: y", spec={"epochs": 4})
    assert verdict(run)[0] == ("It failed", "after epoch 3 of 4 in 12.0 s: X: y.")


def columns(*steps: tuple[float, float, float]) -> StepColumns:
    found = StepColumns()
    for index, (wait_s, compute_s, total_s) in enumerate(steps):
        rest = dict.fromkeys(("read_s", "fetch_s", "decode_s"), 0.0)
        whole = dict.fromkeys(("hits", "misses", "size_bytes"), 0)
        learnt = {"loss": 1.0 - index / 4, "accuracy": index / 4, "finished_at_s": 100.0 + index}
        times = {"wait_s": wait_s, "compute_s": compute_s, "total_s": total_s}
        found.add(StepRecord(0, "train", index, "", 4, **times, **learnt, **rest, **whole))
    return found


def test_a_step_consists_of_waiting_computing_and_what_is_left():
    run = a_run(one_pass(), steps={(0, "train"): columns((0.1, 0.2, 0.35), (0.0, 0.9, 0.4))})
    (chart,) = step_charts(run)
    assert [layer.name for layer in chart.layers] == ["waiting for data", "computing", "other"]
    assert [layer.values for layer in chart.layers] == [
        pytest.approx((100.0, 0.0)),
        pytest.approx((200.0, 900.0)),
        pytest.approx((50.0, 0.0)),
    ]
    assert (chart.xs, chart.end) == ((0.0, 1.0), 2.0)


def test_learning_is_shown_over_epochs_done():
    run = a_run(one_pass(), one_pass(0, "val"), steps={(0, "train"): columns((0, 0, 1), (0, 0, 1))})
    loss, accuracy = learning_charts(run)
    assert [(line.xs, line.ys) for line in loss.lines] == [((0.5, 1.0), (1.0, 0.75)), ((1.0,), (0.5,))]
    assert [line.ys for line in accuracy.lines] == [(0.0, 25.0), (90.0,)]


def printed_times(*times: tuple[int, int, float]) -> list[dict[str, float]]:
    return [{"epoch": epoch, "step": step, "steps": 10, "mean_s": mean_s} for epoch, step, mean_s in times]


def test_step_times_that_were_printed_are_said_listed_and_drawn():
    run = a_run(one_pass(), step_times=printed_times((0, 10, 2.5), (0, 20, 0.37), (1, 10, 0.88)))
    assert said(run, "Step time:") == (
        "880 ms, the mean of 10 steps up to step 10 of epoch 2; at best 370 ms, at step 20 of epoch 1."
    )
    assert step_times_table(run).rows == (("10", "2,500", "880"), ("20", "370", "-"))
    assert [(line.name, line.xs, line.ys) for line in step_times_chart(run).lines] == [
        ("epoch 1", (10.0, 20.0), (2500.0, 370.0)),
        ("epoch 2", (10.0,), (880.0,)),
    ]
    many = a_run(one_pass(), step_times=printed_times(*((epoch, 10, 1.0) for epoch in range(9))))
    names = ["epoch 1", "epoch 2", "epoch 3", "epoch 7", "epoch 8", "epoch 9"]
    assert [column.name for column in step_times_table(many).columns[1:]] == names
    assert step_times_table(a_run(one_pass())) is None
    assert step_times_chart(a_run(one_pass())) is None


def test_speed_has_a_chart_for_each_split():
    charts = speed_charts(a_run(one_pass(), one_pass(0, "val", images_per_s=900.0), one_pass(1)))
    assert [(chart.title, chart.categories, chart.series[0].values) for chart in charts] == [
        ("Training", ("1", "2"), (100.0, 100.0)),
        ("Validation", ("1",), (900.0,)),
    ]


def test_the_speed_of_many_epochs_is_a_line():
    (chart,) = speed_charts(a_run(*(one_pass(epoch) for epoch in range(13))))
    assert (chart.lines[0].xs[-1], len(chart.lines[0].ys)) == (13.0, 13)


def test_stalls_are_stacked_by_cause_over_epochs():
    def stalls(**waits: float) -> dict[str, object]:
        return {"causes": {name: {"steps": 1, "wait_s": wait_s} for name, wait_s in waits.items()}}

    run = a_run(one_pass(stalls=stalls(decode=1.0, own=2.0)), one_pass(1, stalls=stalls(cold_start=3.0)))
    chart = stalls_chart(run)
    assert [(layer.name, layer.values) for layer in chart.layers] == [
        ("cold start", (0.0, 3.0)),
        ("decode", (1.0, 0.0)),
        ("own", (2.0, 0.0)),
    ]
    assert stalls_chart(a_run(one_pass())) is None


def usage(at_s: float, subject: str, cores: float | None = None, **gpu: float) -> UsageRow:
    return UsageRow(at_s, subject, cores, gpu.get("percent"), gpu.get("used"), gpu.get("total"))


def test_cores_in_use_are_means_over_half_a_second_at_least():
    rows = [usage(100.0, "trainer"), usage(101.0, "trainer", 0.5), usage(101.01, "trainer", 9.0)]
    rows += [usage(102.0, "trainer", 1.0), usage(102.0, "workers", 0.25)]
    (chart,) = usage_charts(a_run(one_pass(), usage=rows))
    assert (chart.xs, chart.end) == ((0.0, 1.0), 2.0)
    assert {layer.name: layer.values for layer in chart.layers} == {
        "trainer": (0.5, pytest.approx(0.01 * 9.0 + 0.99 * 1.0)),
        "workers": (0.0, pytest.approx(0.99 * 0.25)),
    }


def test_a_gpu_has_charts_of_its_own():
    gpu = {"percent": 50.0, "used": 2**30, "total": 2**34}
    rows = [usage(at, name, 1.0, **gpu) for at in (0.0, 1.0) for name in ("trainer", "gpu")]
    cores, busy, memory = usage_charts(a_run(one_pass(), usage=rows))
    assert [layer.name for layer in cores.layers] == ["trainer"]
    assert [(line.name, line.ys) for line in busy.lines] == [("rank 0", (50.0, 50.0))]
    assert (memory.lines[0].ys, memory.top) == ((1.0, 1.0), 16.0)


def test_gpus_of_other_ranks_are_lines_and_rows_of_their_own():
    rows = {
        rank: [
            usage(float(at), "gpu", percent=20.0 * rank + at, used=2**30 * rank, total=2**34)
            for at in range(3)
        ]
        for rank in range(2)
    }
    run = a_run(one_pass(), usage=[usage(0.0, "trainer"), *rows[0]], others={1: rows[1]}.items())
    _, busy, memory = usage_charts(run)
    assert [(line.name, line.ys) for line in busy.lines] == [
        ("rank 0", (0.0, 1.0, 2.0)),
        ("rank 1", (20.0, 21.0, 22.0)),
    ]
    assert [line.ys[0] for line in memory.lines] == [0.0, 1.0]
    assert gpus_table(run).rows == (
        ("0", "3", "1.0", "0 B", "17.2 GB"),
        ("1", "3", "21.0", "1.07 GB", "17.2 GB"),
    )
    assert gpus_table(a_run(one_pass())) is None


def test_a_table_of_very_many_passes_leaves_its_middle_out():
    table = passes_table(a_run(*(one_pass(epoch) for epoch in range(100))))
    names = [row[0] for row in table.rows]
    assert (names[0], names[19:22], names[-1], len(names)) == (
        "1 train",
        ["20 train", "60 more", "81 train"],
        "100 train",
        41,
    )


def test_one_look_is_no_use_over_time():
    assert usage_charts(a_run(usage=[usage(1.0, "trainer")])) == []
    assert usage_charts(a_run()) == []


def test_costs_are_a_chart_where_there_are_several():
    assert cost_chart(bill(("a", 1.0), ("b", None), ("c", 0.0))) is None
    chart = cost_chart(bill(("a", 1.0), ("b", None), ("c", 2.0)))
    assert (chart.categories, chart.series[0].values) == (("a", "c"), (1.0, 2.0))
