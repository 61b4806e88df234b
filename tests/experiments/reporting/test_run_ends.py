"""What is said of later epochs together, of runs that went on from others, and of passes that were cut."""

from __future__ import annotations

from tests.experiments.reporting.test_run_words import a_run, one_pass, said


def stalls(**waits: float) -> dict[str, object]:
    return {"causes": {name: {"steps": 1, "wait_s": wait_s} for name, wait_s in waits.items()}}


def test_later_epochs_wait_for_what_most_of_their_waiting_was_for():
    """Not for what the worst of them waited for."""
    later = [one_pass(epoch, wait_s=2.0, stalls=stalls(decode=2.0)) for epoch in range(1, 10)]
    worst = one_pass(10, wait_s=2.2, stalls=stalls(loader_start=1.2, decode=1.0))
    waiting = said(a_run(one_pass(), *later, worst), "Waiting for data:")
    assert "20% of the epochs after it: data limits it, most of all since decoding" in waiting
    assert waiting.endswith("(19.0 s).")


def test_work_of_later_epochs_is_added_up():
    job = {"samples_produced": 5, "invocations": 1, "fetch_s": 1.0, "decode_s": 2.0, "push_s": 0.5}
    later = [one_pass(epoch, wait_s=5.0, job=job) for epoch in (1, 2)]
    assert said(a_run(one_pass(), *later), "Waiting for data:").endswith(
        "functions were producing 10 samples (7.00 s of work)."
    )


def test_the_first_epoch_of_a_run_that_went_on_has_its_number():
    run = a_run(one_pass(3, wait_s=5.0), one_pass(4, images_per_s=200.0), spec={"epochs": 5})
    assert said(run, "Waiting for data:").startswith("50% of epoch 4's 10.0 s: ")
    assert "100 images/s in epoch 4, " in said(run, "Throughput:")
    assert said(run, "First batch:").startswith("500 ms after epoch 4 began")


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
