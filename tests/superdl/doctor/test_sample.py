"""What a measured rate means for a training loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from superdl.coordinator.server.settings import Settings
from superdl.doctor import Case, CheckStatus
from superdl.doctor.sample import judge_bandwidth, samples_at_once
from superdl.super_wire.recipe import Recipe

CASE = Case(settings=Settings(), recipe=Recipe.image(crop=224), batch_size=100, workers=4)


@pytest.mark.parametrize(
    ("wanted", "verdict"), [(0, CheckStatus.GOOD), (3, CheckStatus.GOOD), (3.1, CheckStatus.DOUBTFUL)]
)
def test_judgement(wanted, verdict):
    found = judge_bandwidth(replace(CASE, batches_per_s=wanted), 300e6, 10**6)
    assert found.verdict is verdict
    assert found.measured["batches_per_s"] == 3
    assert "300 samples or 3.0 batches of 100 a second" in found.reason
    assert ("zone" in found.remedy) is (verdict is CheckStatus.DOUBTFUL)


def test_large_batches_are_read_in_parts_that_a_slow_network_brings_in_time():
    case = replace(CASE, batch_size=2048)
    assert 4 * samples_at_once(case, 150_592) * 150_592 <= 2**25
    assert samples_at_once(case, 2**30) == 1
    assert samples_at_once(CASE, 1000) == 100
