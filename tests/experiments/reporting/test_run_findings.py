"""What a run's figures are said to mean: each rule at its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from superdl.experiments.reporting.run_findings import findings
from tests.experiments.reporting.runs import a_run, bill, one_pass, printed_times, stalls

if TYPE_CHECKING:
    from superdl.experiments.reporting.run_files import RunFiles

WORK = {"samples_produced": 7, "invocations": 2, "fetch_s": 1.0, "decode_s": 2.0, "push_s": 0.5}


def said(run: RunFiles, subject: str) -> str:
    (text,) = [text for name, text in findings(run) if name == subject]
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
        ({"job": WORK}, "functions were producing 7 samples (3.50 s of work)"),
        (
            {"job": WORK | {"invocations": 0, "samples_produced": 1}},
            "its workers fetched and decoded 1 image (3.00 s)",
        ),
        ({}, "nothing was produced then, so that it waited for reading (1.50 s, summed over workers)"),
        (
            {"stalls": stalls(decode=1.0, cold_start=4.0), "job": WORK},
            "data limits it, most of all since functions, or the job itself, were starting (4.00 s)",
        ),
    ],
)
def test_what_was_waited_for_is_told_by_what_is_known(changes, words):
    assert words in said(a_run(one_pass(wait_s=5.0, **changes)), "Waiting for data:")


def test_later_epochs_are_told_apart_from_the_first_and_added_up():
    first = one_pass(wait_s=5.5)
    later = [one_pass(epoch, wait_s=0.2, wall_s=5.0, images_per_s=200.0) for epoch in (1, 2)]
    run = a_run(first, *later)
    assert said(run, "Waiting for data:").endswith("; 4.0% of the epochs after it: data does not limit it.")
    assert said(run, "Throughput:") == (
        "150 images/s while training: 100 images/s in the first epoch, 200 images/s after it."
    )
    slow = [one_pass(epoch, wait_s=5.0, job=WORK) for epoch in (1, 2)]
    assert said(a_run(one_pass(), *slow), "Waiting for data:").endswith(
        "functions were producing 14 samples (7.00 s of work)."
    )


def test_later_epochs_wait_for_what_most_of_their_waiting_was_for():
    """Not for what the worst of them waited for."""
    later = [one_pass(epoch, wait_s=2.0, stalls=stalls(decode=2.0)) for epoch in range(1, 10)]
    worst = one_pass(10, wait_s=2.2, stalls=stalls(loader_start=1.2, decode=1.0))
    waiting = said(a_run(one_pass(), *later, worst), "Waiting for data:")
    assert "20% of the epochs after it: data limits it, most of all since decoding" in waiting
    assert waiting.endswith("(19.0 s).")


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


def test_a_validation_that_was_cut_is_no_accuracy_and_never_the_best():
    whole = one_pass(0, "val", accuracy=0.8)
    cut = one_pass(1, "val", accuracy=0.95, samples=20)._replace(complete=False)
    run = a_run(one_pass(), whole, one_pass(1), cut, status="interrupted", reason="X", spec={"epochs": 2})
    accuracy = said(run, "Accuracy:")
    assert accuracy.startswith("after epoch 1 the model was right for 80.0% of 1,000 validation images")
    assert "95" not in accuracy
    assert said(run, "It was interrupted").startswith("after 1 of 2 epochs")
    alone = a_run(one_pass(), cut._replace(epoch=0), val_samples=50)
    assert "No validation came to its end" in said(alone, "Accuracy:")


def test_rank_0s_part_of_a_cut_epoch_is_not_added_to_passes_of_all_ranks():
    cut = one_pass(1, images_per_s=100.0, accuracy=0.1)._replace(complete=False, of_rank_0=True)
    run = a_run(one_pass(images_per_s=800.0), cut, ranks=8, val_samples=None)
    assert said(run, "Throughput:") == "800 images/s while training."
    assert said(run, "Accuracy:").startswith("90.0% of the training images in epoch 1. ")
    killed = a_run(one_pass()._replace(of_rank_0=True), cut, ranks=8)
    assert said(killed, "Throughput:").startswith("100 images/s of rank 0 while training: ")


def test_the_first_batch_is_counted_from_the_runs_start_too():
    phases = [{"epoch": None, "wall_s": 2.0}]
    assert said(a_run(one_pass(), utilization={"phases": phases}), "First batch:").startswith(
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


def test_bad_samples_are_said_only_where_there_are_some():
    assert "Bad samples:" not in dict(findings(a_run(one_pass())))
    assert said(a_run(one_pass(job={"samples_failed": 3})), "Bad samples:").startswith("3 times functions")


def test_a_run_says_how_far_it_came_and_from_where():
    run = a_run(one_pass(), status="failed", reason="X: y", spec={"epochs": 3})
    assert findings(run)[0] == ("It failed", "after 1 of 3 epochs in 12.0 s: X: y.")
    run = a_run(one_pass(2), one_pass(3), spec={"epochs": 4})
    assert findings(run)[0] == ("It finished:", "epochs 3 to 4 of 4 in 12.0 s.")
    run = a_run(one_pass(2), status="failed", reason="X: y", spec={"epochs": 4})
    assert findings(run)[0] == ("It failed", "after epoch 3 of 4 in 12.0 s: X: y.")


def test_the_first_epoch_of_a_run_that_went_on_has_its_number():
    run = a_run(one_pass(3, wait_s=5.0), one_pass(4, images_per_s=200.0), spec={"epochs": 5})
    assert said(run, "Waiting for data:").startswith("50% of epoch 4's 10.0 s: ")
    assert "100 images/s in epoch 4, " in said(run, "Throughput:")
    assert said(run, "First batch:").startswith("500 ms after epoch 4 began")


def test_step_times_are_said_as_they_were_printed():
    run = a_run(one_pass(), step_times=printed_times((0, 10, 2.5), (0, 20, 0.37), (1, 10, 0.88)))
    assert said(run, "Step time:") == (
        "880 ms, the mean of 10 steps up to step 10 of epoch 2; at best 370 ms, at step 20 of epoch 1."
    )
