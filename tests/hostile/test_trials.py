"""All links are spoilt and processes are killed: each sample once, in order, right, or a typed error."""

import pytest

from tests.hostile.trial import Trial, draw


@pytest.mark.timeout(300)  # a trial bounds its own waits; one that hangs is found by this
def test_an_epoch_ends_well_or_by_a_typed_error(shared, seed):
    trial = Trial(draw(seed), shared)
    try:
        trial.run()
    except BaseException as error:
        error.add_note(str(trial))
        raise
