"""What a batch's progress makes of answers that a healthy cache does not give."""

from __future__ import annotations

from superdl.super_dataset.reading.buffer import BatchBuffer
from superdl.super_dataset.reading.progress import BatchProgress
from tests.super_dataset.stored_batches import ref_of


def progress_of(count: int) -> BatchProgress:
    ref = ref_of(count, "unix:///c")
    return BatchProgress(ref, BatchBuffer(count), None, list(range(count)))


def test_only_what_the_cache_said_it_lacks_is_reported_as_missed():
    progress = progress_of(3)
    progress.buffer.note_nil(0)
    progress.buffer.note_error(1, "LOADING the dataset in memory")  # and nothing came for the third
    progress.sort()
    report = progress.report(done=False)
    assert progress.missing == [0, 1, 2]
    assert (report.missed, report.corrupt, report.hits) == ((0,), (), 0)
    assert not progress.buffer.errors


def test_an_error_that_no_get_has_is_doubt_in_the_connection():
    """A bit of a command flipped on the way, or the answer to another command took this one's place."""
    progress = progress_of(2)
    progress.buffer.note_nil(0)
    progress.buffer.note_error(1, "ERR unknown command 'GDT'")
    progress.sort()
    assert progress.missing == [0, 1]
    assert "GDT" in progress.astray
    assert "GDT" in str(progress.timeout_error(1.0))
