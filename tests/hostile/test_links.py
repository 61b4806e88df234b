"""All links are spoilt and processes are killed: each sample once, in order, right, or a typed error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.hostile.trial import run_trial

if TYPE_CHECKING:
    from tests.hostile.ground import Ground


@pytest.mark.timeout(300)  # a trial bounds its own waits; one that hangs is found by this
def test_an_epoch_ends_well_or_by_a_typed_error(shared: Ground, seed: int) -> None:
    run_trial("general", seed, shared)
