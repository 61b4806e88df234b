"""With faulty links and killed processes, each sample arrives once, in order and intact, or a typed error."""

import pytest

from tests.hostile.trial import Trial, draw


@pytest.mark.timeout(300)  # a trial bounds its own waits; this catches hangs
def test_an_epoch_is_correct_or_ends_with_a_typed_error(shared, seed):
    trial = Trial(draw(seed), shared)
    try:
        trial.run()
    except BaseException as error:
        error.add_note(str(trial))
        raise
