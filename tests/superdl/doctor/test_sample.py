"""What a measured rate means for a training loop, and the size of its shared memory."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from superdl.coordinator.server.settings import Settings
from superdl.doctor import Case, CheckStatus
from superdl.doctor.sample import check_shared_memory, judge_bandwidth, samples_at_once
from superdl.super_wire.recipe import Recipe

MIB = 2**20
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


@pytest.mark.parametrize(
    ("size", "free", "verdict"),
    [
        (64 * MIB, 64 * MIB, CheckStatus.BAD),
        (1024 * MIB, 16 * MIB, CheckStatus.DOUBTFUL),
        (1023 * MIB, 900 * MIB, CheckStatus.GOOD),
    ],
)
def test_shared_memory(monkeypatch, size, free, verdict):
    sizes = (4096, 4096, size // 4096, free // 4096, free // 4096, 0, 0, 0, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(sizes))
    found = check_shared_memory(CASE)
    assert found.verdict is verdict
    assert f"{free // MIB:,} MiB of it free" in found.reason
    assert ("--shm-size" in found.remedy) is (verdict is not CheckStatus.GOOD)
