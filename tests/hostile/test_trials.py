"""With faulty links and killed processes, each sample arrives once, in order and intact, or a typed error."""

from dataclasses import replace
from unittest import mock

import pytest

from superdl.super_dataset.reading import batch
from tests.hostile.trial import Trial, draw


@pytest.mark.timeout(300)  # a trial bounds its own waits; this catches hangs
def test_an_epoch_is_correct_or_ends_with_a_typed_error(shared, seed):
    trial = Trial(draw(seed), shared)
    try:
        trial.run()
    except BaseException as error:
        error.add_note(str(trial))
        raise


@pytest.mark.slow
def test_a_reader_that_accepts_flipped_bits_is_detected(shared):
    flips = {"reader": {"odds": {"flip": 1}, "every": 2.0, "most": 16}}
    drawn = replace(draw(0), loader="0", batch_size=8, source="directory", unix=False, links=flips, acts={})
    with mock.patch.object(batch, "verify_payload"), pytest.raises(AssertionError, match="nobody's pixels"):
        Trial(drawn, shared).run()
