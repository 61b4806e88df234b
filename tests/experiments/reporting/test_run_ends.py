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
