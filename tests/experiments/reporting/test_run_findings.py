"""What a run's figures are said to mean: each rule at its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from superdl.experiments.reporting.run_findings import findings
from tests.experiments.reporting.runs import a_run, bill, one_pass, stalls

if TYPE_CHECKING:
    from superdl.experiments.reporting.run_files import RunFiles


def said(run: RunFiles, subject: str) -> str:
    (text,) = [text for name, text in findings(run) if name == subject]
    return text


@pytest.mark.parametrize(
    ("wait_s", "words"),
    [
        (0.49, "data does not limit it: 4.9% of the first epoch."),
        (0.5, "data slows it a little: 5.0% of the first epoch."),
        (1.99, "data slows it a little: 19.9% of the first epoch."),
        (2.0, "data limits it: 20.0% of the first epoch."),
    ],
)
def test_waiting_matters_from_a_twentieth_on_and_limits_from_a_fifth_on(wait_s, words):
    assert said(a_run(one_pass(wait_s=wait_s)), "Waiting for data:") == words


def test_later_epochs_are_told_apart_from_the_first_and_added_up():
    later = [one_pass(epoch, wait_s=0.2, wall_s=5.0, images_per_s=200.0) for epoch in (1, 2)]
    run = a_run(one_pass(wait_s=5.5), *later)
    assert said(run, "Waiting for data:").endswith("; data does not limit it: 4.0% of the epochs after it.")
    assert said(run, "Throughput:") == (
        "150 images/s while training: 100 images/s in the first epoch, 200 images/s after it."
    )


def test_later_epochs_wait_for_what_most_of_their_waiting_was_for():
    """Not for what the worst of them waited for."""
    later = [one_pass(epoch, wait_s=2.0, stalls=stalls(decode=2.0)) for epoch in range(1, 10)]
    worst = one_pass(10, wait_s=2.2, stalls=stalls(loader_start=1.2, decode=1.0))
    waiting = said(a_run(one_pass(), *later, worst), "Waiting for data:")
    assert "data limits it, most of all since decoding took most of the time (19.0 s): 20.2%" in waiting


def test_accuracy_is_of_the_last_epoch_and_names_a_better_one():
    first, last = (one_pass(epoch, "val", accuracy=accuracy) for epoch, accuracy in ((0, 0.8), (1, 0.7)))
    assert said(a_run(one_pass(), first, one_pass(1), last), "Accuracy:") == (
        "after epoch 2 the model was right for 70.0% of 1,000 validation images. Best was epoch 1 with 80.0%."
    )
    assert "no validation came to its end" in said(a_run(one_pass()), "Accuracy:")


def test_the_first_batch_is_counted_from_the_runs_start_too():
    assert said(a_run(one_pass(), first_batch_s=2.5), "First batch:").startswith(
        "500 ms after the first epoch began, 2.50 s after the run did"
    )
    assert said(a_run(one_pass()), "First batch:") == "500 ms after the first epoch began."


def test_the_cost_is_said_with_its_parts_and_what_is_not_in_it():
    told = bill(("training machine", 0.5), ("GETs", 0.25), ("functions", 0.0), ("cache", None))
    assert said(a_run(one_pass(), bill=told), "Cost:") == (
        "0.750 USD (2.50 USD for a million training images): training machine 0.500 USD, GETs 0.250 USD. "
        "Not in it, since no price is known: cache."
    )
    nothing = a_run(one_pass(), bill=bill(("training machine", None)))
    assert said(nothing, "Cost:").startswith("nothing of what has a price here was used. Not in it")


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
    assert findings(run)[0] == ("It failed", words)
    first = f"epoch {epochs[0] + 1}" if epochs[0] else "the first epoch"
    assert said(run, "First batch:").startswith(f"500 ms after {first} began")
