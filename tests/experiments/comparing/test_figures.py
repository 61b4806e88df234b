"""Figures by hand-computed numbers."""

from __future__ import annotations

from functools import partial

import pytest

from superdl.experiments.comparing.figures import mean_by_name, round_figures, spread_of
from superdl.experiments.comparing.measured import RoundMeasured, RunMeasured


def one_pass(
    *,
    samples=100,
    batches=4,
    accuracy=0.5,
    wall_s=2.0,
    wait_s=0.5,
    first_batch_s=0.25,
    produced=0,
    stalls=None,
):
    causes = {cause: {"wait_s": waited_s} for cause, waited_s in (stalls or {}).items()}
    times = {"wall_s": wall_s, "wait_s": wait_s, "first_batch_s": first_batch_s}
    job = None if produced is None else {"samples_produced": produced}
    counts = {"samples": samples, "batches": batches, "accuracy": accuracy}
    return {**counts, "job": job, "stalls": {"causes": causes}, **times}


def run_of(
    *passes, vals=None, phases=(), ends=None, images=(100, 50), first=0, bill=None, node=None, ranks=1
):
    report = {
        "train_samples": images[0],
        "val_samples": images[1],
        "epochs": [
            {"epoch": first + at, "train": train, "val": vals[at] if vals else None}
            for at, train in enumerate(passes)
        ],
        "utilization": {
            "phases": [
                {
                    "epoch": None if epoch is None else first + epoch,
                    "wall_s": wall_s,
                    "groups": {name: {"cpu_s": cpu_s} for name, cpu_s in cpu.items()},
                }
                for epoch, wall_s, cpu in phases
            ]
            + [
                {"epoch": None if epoch < 0 else first + epoch, "groups": {}, "ended_at_s": end_s}
                for epoch, end_s in (ends or {}).items()
            ]
        },
        "first_batch_s": phases[0][1] + passes[0]["first_batch_s"] if phases else None,
        "bill": bill,
        "ranks": ranks,
        "spec": {"cost": {"cache_node": node}},
    }
    return RunMeasured(report)


PASSES = (
    one_pass(wall_s=10.0, wait_s=9.0, first_batch_s=3.0, produced=100),
    one_pass(wall_s=2.0, wait_s=0.5),
    one_pass(wall_s=3.0, wait_s=0.75),
)
alone = partial(
    run_of,
    *PASSES,
    vals=(
        one_pass(samples=50, produced=50),
        one_pass(samples=50, accuracy=0.75),
        one_pass(samples=50, accuracy=0.625),
    ),
    phases=(
        (None, 4.0, {"trainer": 2.0, "coordinator": 1.0}),
        (0, 10.0, {"trainer": 5.0, "functions": 6.0}),
        (0, 1.0, {"trainer": 1.0}),
        (1, 2.0, {"trainer": 1.5, "workers": 0.3}),
        (1, 1.0, {"trainer": 0.5}),
        (2, 3.0, {"trainer": 1.5, "workers": 0.3}),
        (2, 1.0, {"trainer": 0.4}),
    ),
)
ALONE = alone()


def test_a_run_alone_after_its_warmup():
    measured = RoundMeasured((ALONE,), wall_s=30.0, cpu_s=25.0, services_start_s=2.5)
    figures = round_figures(measured, warmup_epochs=1)
    assert figures.images_per_s == pytest.approx(200 / 5.0)
    assert figures.step_ms == pytest.approx(1000 * 5.0 / 8)
    assert figures.accuracy == 0.75
    assert figures.wait_percent == pytest.approx(100 * 1.25 / 5.0)
    # 4.5 s of CPU for 200 training and 100 validation images
    assert figures.cpu_ms_per_image == pytest.approx(1000 * 4.5 / 300)
    assert figures.outside_ms_per_image == pytest.approx(1000 * 0.6 / 300)
    assert figures.cpu_ms_by_group == pytest.approx({"trainer": 13.0, "workers": 2.0})
    assert figures.decodes_per_image == 1.0
    assert figures.first_batch_s == pytest.approx(2.5 + 4.0 + 3.0)
    assert (figures.wall_s, figures.cpu_s) == (30.0, 25.0)


def test_a_run_that_went_on_has_its_warmup_from_where_it_went_on_and_ranks_have_no_cpu_by_image():
    whole, resumed, ranks = (
        round_figures(RoundMeasured((run,)), 1) for run in (ALONE, alone(first=3), alone(ranks=4))
    )
    assert resumed == whole
    assert (ranks.cpu_ms_per_image, ranks.outside_ms_per_image) == (None, None)
    assert ranks.images_per_s == whole.images_per_s


def test_stalls_are_shares_of_the_training_time_that_counts():
    first = one_pass(wall_s=10.0, stalls={"cold start": 9.0})
    second = one_pass(wall_s=4.0, stalls={"decode": 1.0, "source": 0.5})
    run = run_of(first, second, vals=(None, one_pass(stalls={"decode": 100.0})))
    figures = round_figures(RoundMeasured((run,)), warmup_epochs=1)
    assert figures.stall_percent_by_cause == pytest.approx({"decoding": 25.0, "storage": 12.5})
    assert mean_by_name([{"a": 1.0}, {"a": 2.0, "b": 5.0}]) == {"b": 2.5, "a": 1.5}


def test_without_warmup_the_start_and_all_epochs_count():
    figures = round_figures(RoundMeasured((ALONE,)), warmup_epochs=0)
    assert figures.images_per_s == pytest.approx(300 / 15.0)
    assert figures.wait_percent == pytest.approx(100 * 10.25 / 15.0)
    assert figures.cpu_ms_per_image == pytest.approx(1000 * (4.5 + 3.0 + 11.0 + 1.0) / 450)
    assert (figures.wall_s, figures.cpu_s) == (None, None)


def test_runs_at_once_share_what_was_decoded_and_are_added_up():
    first, second = (
        run_of(
            one_pass(produced=produced, wall_s=wall_s), one_pass(wall_s=wall_s), images=(100, 0), ends=ends
        )
        for produced, wall_s, ends in (
            (70, 1.0, {-1: 50.0, 0: 51.0, 1: 52.0}),
            (30, 4.0, {-1: 48.0, 0: 52.0, 1: 56.0}),
        )
    )
    figures = round_figures(RoundMeasured((first, second)), warmup_epochs=1)
    assert figures.decodes_per_image == 1.0
    from_first_out_of_its_warmup_s = 56 - 51
    assert figures.images_per_s == pytest.approx(200 / from_first_out_of_its_warmup_s)
    assert figures.wait_percent == pytest.approx(100 * 1.0 / 5.0)
    whole = round_figures(RoundMeasured((first, second)), warmup_epochs=0)
    assert whole.images_per_s == pytest.approx(400 / (56 - 48))
    plain = run_of(one_pass(produced=100), one_pass(produced=100), images=(100, 0))
    assert round_figures(RoundMeasured((plain,) * 8), 0).decodes_per_image == 16.0


def test_validation_images_that_nobody_read_are_not_expected_to_be_decoded():
    run = run_of(one_pass(produced=100), images=(100, 100))
    assert round_figures(RoundMeasured((run,)), 0).decodes_per_image == 1.0
    validated = run_of(one_pass(produced=100), vals=(one_pass(),), images=(100, 100))
    assert round_figures(RoundMeasured((validated,)), 0).decodes_per_image == 0.5


def test_shared_services_count_once_and_from_the_first_end_of_a_warmup():
    services = ((10.0, {"cache": 1.0}), (20.0, {"cache": 2.0}), (30.0, {"cache": 5.0, "functions": 7.0}))
    runs = tuple(
        run_of(one_pass(), one_pass(), phases=((1, 2.0, {"trainer": 1.0}),), ends={0: end})
        for end in (21.0, 29.0)
    )
    figures = round_figures(RoundMeasured(runs, services=services), warmup_epochs=1)
    assert figures.cpu_ms_by_group == pytest.approx({"trainer": 10.0, "cache": 15.0, "functions": 35.0})
    whole = round_figures(RoundMeasured(runs, services=services), warmup_epochs=0)
    assert whole.cpu_ms_by_group["cache"] == pytest.approx(1000 * 5.0 / 400)


def billed(*by_epoch, node=None, **lines):
    told = [{"name": name.replace("_", " "), "usd": usd} for name, usd in lines.items()]
    costs = [{"epoch": at, "usd": usd} for at, usd in enumerate(by_epoch)]
    return run_of(one_pass(), one_pass(), bill={"lines": told, "epochs": costs}, node=node)


@pytest.mark.parametrize(("node", "caches"), [(None, 0.75), ("r6g", 0.5)])
def test_runs_at_once_pay_one_machine_and_each_their_functions(node, caches):
    """And one cache, where the spec names its nodes."""
    runs = (
        billed(6.0, 3.0, training_machine=8.0, functions=2.0, cache=0.5, node=node),
        billed(4.0, 3.0, training_machine=6.0, functions=1.0, cache=0.25, node=node),
    )
    alone = round_figures(RoundMeasured(runs[:1]), warmup_epochs=1)
    assert (alone.usd, alone.usd_per_epoch) == (10.5, 3.0)
    figures = round_figures(RoundMeasured(runs), warmup_epochs=1)
    assert figures.usd == 8.0 + 2.0 + 1.0 + caches
    assert figures.usd_per_epoch == pytest.approx(figures.usd / 4)
    without = (runs[0], run_of(one_pass(), one_pass()))
    assert round_figures(RoundMeasured(without), warmup_epochs=1).usd is None


def test_what_was_not_told_is_absent_and_not_zero():
    silent = run_of(one_pass(produced=None), one_pass(produced=3))
    figures = round_figures(RoundMeasured((silent,)), warmup_epochs=1)
    assert (figures.decodes_per_image, figures.cpu_ms_per_image, figures.first_batch_s) == (None, None, None)
    assert spread_of([figures], "cpu_ms_per_image") is None
    assert round_figures(RoundMeasured((silent, silent)), warmup_epochs=1).images_per_s is None
