"""Figures by hand-computed numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from superdl.experiments.comparing.figures import mean_by_name, round_figures, spread_of
from superdl.experiments.comparing.measured import (
    BillMeasured,
    PassMeasured,
    PhaseMeasured,
    RoundMeasured,
    RunMeasured,
)


def one_pass(epoch, split="train", *, samples=100, wall_s=2.0, wait_s=0.5, first_batch_s=0.25, produced=0):
    return PassMeasured(
        epoch, split, samples, wall_s, wait_s, first_batch_s, produced, accuracy=0.5 + epoch / 10
    )


def run_of(*passes, phases=(), ends=None, images=(100, 50)):
    return RunMeasured("r", "finished", images[0], images[1], passes, phases, ends or {})


ALONE = run_of(
    one_pass(0, wall_s=10.0, wait_s=9.0, first_batch_s=3.0, produced=100),
    one_pass(0, "val", samples=50, produced=50),
    one_pass(1, wall_s=2.0, wait_s=0.5),
    one_pass(1, "val", samples=50),
    one_pass(2, wall_s=3.0, wait_s=0.75),
    one_pass(2, "val", samples=50),
    phases=(
        PhaseMeasured(None, "start", 4.0, {"trainer": 2.0, "coordinator": 1.0}),
        PhaseMeasured(0, "train", 10.0, {"trainer": 5.0, "functions": 6.0}),
        PhaseMeasured(0, "val", 1.0, {"trainer": 1.0}),
        PhaseMeasured(1, "train", 2.0, {"trainer": 1.5, "workers": 0.3}),
        PhaseMeasured(1, "val", 1.0, {"trainer": 0.5}),
        PhaseMeasured(2, "train", 3.0, {"trainer": 1.5, "workers": 0.3}),
        PhaseMeasured(2, "val", 1.0, {"trainer": 0.4}),
    ),
)


def test_a_run_alone_after_its_warmup():
    figures = round_figures(RoundMeasured("a", 1, (ALONE,), wall_s=30.0, cpu_s=25.0), warmup_epochs=1)
    assert figures.images_per_s == pytest.approx(200 / 5.0)
    assert figures.wait_percent == pytest.approx(100 * 1.25 / 5.0)
    # 4.5 s of CPU for 200 training and 100 validation images
    assert figures.cpu_ms_per_image == pytest.approx(1000 * 4.5 / 300)
    assert figures.outside_ms_per_image == pytest.approx(1000 * 0.6 / 300)
    assert figures.cpu_ms_by_group == pytest.approx({"trainer": 13.0, "workers": 2.0})
    assert figures.decodes_per_image == 1.0
    assert figures.decodes_by_epoch == {0: 1.0, 1: 0.0, 2: 0.0}
    assert figures.first_batch_s == pytest.approx(4.0 + 3.0)
    assert (figures.wall_s, figures.cpu_s) == (30.0, 25.0)
    assert figures.val_accuracy == (0.7,)


def test_stalls_are_shares_of_the_training_time_that_counts():
    first = replace(one_pass(0, wall_s=10.0), stalls_s={"cold start": 9.0})
    second = replace(one_pass(1, wall_s=4.0), stalls_s={"decode": 1.0, "source": 0.5})
    val = replace(one_pass(1, "val"), stalls_s={"decode": 100.0})
    figures = round_figures(RoundMeasured("a", 1, (run_of(first, second, val),)), warmup_epochs=1)
    assert figures.stall_percent_by_cause == pytest.approx({"decode": 25.0, "source": 12.5})
    assert mean_by_name([{"a": 1.0}, {"a": 2.0, "b": 5.0}]) == {"b": 2.5, "a": 1.5}


def test_without_warmup_the_start_and_all_epochs_count():
    figures = round_figures(RoundMeasured("a", 1, (ALONE,)), warmup_epochs=0)
    assert figures.images_per_s == pytest.approx(300 / 15.0)
    assert figures.wait_percent == pytest.approx(100 * 10.25 / 15.0)
    assert figures.cpu_ms_per_image == pytest.approx(1000 * (4.5 + 3.0 + 11.0 + 1.0) / 450)
    assert figures.wall_s is None
    assert figures.cpu_s is None


def test_runs_at_once_share_what_was_decoded_and_are_added_up():
    first = run_of(
        one_pass(0, produced=70, wall_s=1.0),
        one_pass(1, wall_s=1.0),
        images=(100, 0),
        ends={-1: 50.0, 0: 51.0, 1: 52.0},
    )
    second = run_of(
        one_pass(0, produced=30, wall_s=4.0),
        one_pass(1, wall_s=4.0),
        images=(100, 0),
        ends={-1: 48.0, 0: 52.0, 1: 56.0},
    )
    figures = round_figures(RoundMeasured("a", 1, (first, second)), warmup_epochs=1)
    assert figures.decodes_per_image == 1.0
    assert figures.images_per_s == pytest.approx(200 / (56 - 51)), (
        "from the first out of its warm-up to the last"
    )
    whole = round_figures(RoundMeasured("a", 1, (first, second)), warmup_epochs=0)
    assert whole.images_per_s == pytest.approx(400 / (56 - 48))
    assert figures.wait_percent == pytest.approx(100 * 1.0 / 5.0)
    ends = {-1: 1.0, 0: 2.0, 1: 3.0}
    plain = [run_of(one_pass(0, produced=100), one_pass(1, produced=100), images=(100, 0), ends=ends)] * 8
    assert round_figures(RoundMeasured("b", 1, tuple(plain)), 0).decodes_per_image == 16.0


def test_validation_images_that_nobody_read_are_not_expected_to_be_decoded():
    run = run_of(one_pass(0, produced=100), images=(100, 100))
    assert round_figures(RoundMeasured("a", 1, (run,)), 0).decodes_per_image == 1.0
    validated = run_of(one_pass(0, produced=100), one_pass(0, "val", produced=0), images=(100, 100))
    assert round_figures(RoundMeasured("a", 1, (validated,)), 0).decodes_per_image == 0.5


def test_shared_services_count_once_and_from_the_first_end_of_a_warmup():
    services = ((10.0, {"cache": 1.0}), (20.0, {"cache": 2.0}), (30.0, {"cache": 5.0, "functions": 7.0}))
    runs = tuple(
        run_of(
            one_pass(0),
            one_pass(1),
            phases=(PhaseMeasured(1, "train", 2.0, {"trainer": 1.0}),),
            ends={0: end},
        )
        for end in (21.0, 29.0)
    )
    figures = round_figures(RoundMeasured("a", 1, runs, services=services), warmup_epochs=1)
    assert figures.cpu_ms_by_group == pytest.approx({"trainer": 10.0, "cache": 15.0, "functions": 35.0})
    whole = round_figures(RoundMeasured("a", 1, runs, services=services), warmup_epochs=0)
    assert whole.cpu_ms_by_group["cache"] == pytest.approx(1000 * 5.0 / 400)


def billed(usd, by_epoch, lines):
    bill = BillMeasured(usd, by_epoch, lines, frozenset({"training machine"}))
    return replace(run_of(one_pass(0), one_pass(1)), bill=bill)


def test_the_start_of_what_is_shared_is_before_the_first_batch():
    figures = round_figures(RoundMeasured("a", 1, (ALONE,), services_start_s=2.5), warmup_epochs=1)
    assert figures.first_batch_s == pytest.approx(2.5 + 4.0 + 3.0)


def test_a_run_alone_costs_what_its_bill_says_after_the_warmup():
    run = billed(10.0, {0: 6.0, 1: 3.0}, {"training machine": 8.0, "functions": 2.0})
    figures = round_figures(RoundMeasured("a", 1, (run,)), warmup_epochs=1)
    assert (figures.usd, figures.usd_per_epoch) == (10.0, 3.0)


def test_runs_at_once_pay_one_machine_and_each_their_functions():
    runs = (
        billed(10.0, {0: 5.0, 1: 5.0}, {"training machine": 8.0, "functions": 2.0}),
        billed(7.0, {0: 4.0, 1: 3.0}, {"training machine": 6.0, "functions": 1.0}),
    )
    figures = round_figures(RoundMeasured("a", 1, runs), warmup_epochs=1)
    assert figures.usd == 8.0 + 2.0 + 1.0
    assert figures.usd_per_epoch == pytest.approx(11.0 / 4)
    without = (runs[0], run_of(one_pass(0), one_pass(1)))
    assert round_figures(RoundMeasured("a", 1, without), warmup_epochs=1).usd is None


def test_what_was_not_told_is_absent_and_not_zero():
    silent = run_of(one_pass(0, produced=None), one_pass(1, produced=3))
    figures = round_figures(RoundMeasured("a", 1, (silent,)), warmup_epochs=1)
    assert figures.decodes_per_image is None
    assert figures.cpu_ms_per_image is None
    assert figures.first_batch_s is None
    assert spread_of([figures], "cpu_ms_per_image") is None
    assert round_figures(RoundMeasured("a", 1, (silent, silent)), warmup_epochs=1).images_per_s is None
