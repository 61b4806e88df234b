"""What a run's figures are said to mean: each rule at its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from superdl.experiments.reporting.run_findings import findings, tiles
from tests.experiments.reporting.runs import a_run, bill, one_pass, stalls

if TYPE_CHECKING:
    from superdl.experiments.reporting.run_files import RunFiles


def said(run: RunFiles, subject: str) -> str:
    (text,) = [text for name, text in findings(run) if name == subject]
    return text


@pytest.mark.parametrize(
    ("wait_s", "words"),
    [
        (0.49, "nothing. Data does not limit training."),
        (0.5, "The first epoch could be a little faster: try"),
        (1.99, "The first epoch could be a little faster: try"),
        (2.0, "The first epoch is limited by data: try"),
    ],
)
def test_waiting_matters_from_a_twentieth_on_and_limits_from_a_fifth_on(wait_s, words):
    run = a_run(one_pass(wait_s=wait_s))
    assert said(run, "What to change:").startswith(words)
    assert "".join(f"{name} {text}" for name, text in findings(run)).count("Data does not limit") <= 1


def test_later_epochs_are_told_apart_from_the_first_and_added_up():
    later = [one_pass(epoch, wait_s=0.2, wall_s=5.0, images_per_s=200.0) for epoch in (1, 2)]
    run = a_run(one_pass(wait_s=5.5), *later, bill=bill(("cache", 0.5), ("training machine", None)))
    assert said(run, "Waiting for data:") == "55.0% of the time in the first epoch, 4.0% in later epochs."
    assert [(tile.value, tile.note) for tile in tiles(run)] == [
        ("200", "first epoch: 100"),
        ("4.0%", "first epoch: 55.0%"),
        ("$0.500", "$2.50 for a million training images; without training machine: no price known"),
    ]


def test_later_epochs_wait_for_what_most_of_their_waiting_was_for():
    """Not for what the worst of them waited for."""
    later = [one_pass(epoch, wait_s=2.0, stalls=stalls(decode=2.0)) for epoch in range(1, 10)]
    worst = one_pass(10, wait_s=2.2, stalls=stalls(loader_start=1.2, decode=1.0))
    run = a_run(one_pass(), *later, worst)
    assert said(run, "Waiting for data:").endswith(
        "20.2% in later epochs, mostly because decoding took longer than training (19.0 s)."
    )
    assert said(run, "What to change:") == (
        "Later epochs are limited by data: try more slots or functions, or a second executor."
    )


def test_accuracy_is_of_the_last_epoch_and_names_a_better_one():
    first, last = (one_pass(epoch, "val", accuracy=accuracy) for epoch, accuracy in ((0, 0.8), (1, 0.7)))
    assert said(a_run(one_pass(), first, one_pass(1), last), "Accuracy:") == (
        "after epoch 2 the model was right for 70.0% of 1,000 validation images. Best was epoch 1 with 80.0%."
    )
    assert "no validation finished" in said(a_run(one_pass()), "Accuracy:")


def test_the_first_batch_is_counted_from_the_runs_start_too():
    assert said(a_run(one_pass(), first_batch_s=2.5), "First batch:").startswith(
        "500 ms after the first epoch began, 2.50 s after the start of the run"
    )
    assert said(a_run(one_pass()), "First batch:") == "500 ms after the first epoch began."


def test_the_cost_says_what_is_not_in_it():
    nothing = a_run(one_pass(), bill=bill(("training machine", None)))
    assert tiles(nothing)[-1] == ("$0.00", "cost of the run", "without training machine: no price known")
    assert tiles(a_run(one_pass(), bill=bill()))[-1].note == "no priced services"
    assert len(tiles(a_run(one_pass()))) == 2


@pytest.mark.parametrize(
    ("epochs", "planned", "words"),
    [
        ((0,), 3, "after 1 of 3 epochs in 12.0 s: X: y."),
        ((2,), 4, "after epoch 3 of 4 in 12.0 s: X: y."),
        ((2, 3), 4, "after epochs 3 to 4 of 4 in 12.0 s: X: y."),
    ],
)
def test_a_run_says_how_far_it_came_and_from_where(epochs, planned, words):
    run = a_run(*map(one_pass, epochs), status="failed", reason="X: y", spec={"epochs": planned})
    assert findings(run)[1] == ("Failed", words)
    first = f"epoch {epochs[0] + 1}" if epochs[0] else "the first epoch"
    assert said(run, "First batch:").startswith(f"500 ms after {first} began")
