"""What a measured rate means for a training loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from superdl.coordinator.server.settings import Settings
from superdl.doctor import Case, CheckStatus
from superdl.doctor.sample import judge_bandwidth, samples_at_once
from superdl.super_wire.recipe import Recipe

CASE = Case(settings=Settings(), recipe=Recipe.image(crop=224), batch_size=100, workers=4)
MB = 1e6


@pytest.mark.parametrize(
    ("alone", "together", "wanted", "verdict"),
    [
        (100 * MB, 300 * MB, 0, CheckStatus.GOOD),
        (100 * MB, 300 * MB, 3, CheckStatus.GOOD),
        (100 * MB, 300 * MB, 3.1, CheckStatus.DOUBTFUL),
        (300 * MB, 100 * MB, 3, CheckStatus.GOOD),
    ],
)
def test_judgement(alone, together, wanted, verdict):
    found = judge_bandwidth(replace(CASE, batches_per_s=wanted), alone, together, int(MB))
    assert found.verdict is verdict
    assert found.measured["batches_per_s"] == 3
    assert "300 samples or 3.0 batches of 100 a second" in found.reason
    assert ("zone" in found.remedy) is (verdict is CheckStatus.DOUBTFUL)


def test_large_batches_are_read_in_parts_that_a_slow_network_brings_in_time():
    case = replace(CASE, batch_size=2048)
    assert 4 * samples_at_once(case, 150_592) * 150_592 <= 2**25
    assert samples_at_once(case, 2**30) == 1
    assert samples_at_once(CASE, 1000) == 100
