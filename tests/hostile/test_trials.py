"""All links are spoilt and processes are killed: each sample once, in order, right, or a typed error."""

from __future__ import annotations

from unittest import mock

import pytest

from superdl.super_dataset.reading import batch
from tests.hostile.trial import run_trial


@pytest.mark.timeout(300)  # a trial bounds its own waits; one that hangs is found by this
@pytest.mark.parametrize("kind", ["general", "bytes"])
def test_an_epoch_ends_well_or_by_a_typed_error(shared, kind, seed):
    run_trial(kind, seed, shared)


@pytest.mark.slow
def test_a_reader_that_lets_flipped_bits_pass_is_found_out(shared):
    with (
        mock.patch.object(batch, "verify_payload"),
        pytest.raises(AssertionError, match="nobody's pixels"),
    ):
        run_trial("bytes", 124, shared)  # it flips bits in every other reply
