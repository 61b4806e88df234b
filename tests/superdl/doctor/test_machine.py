"""What is looked at of this machine alone: clocks beside its own, shared memory."""

from __future__ import annotations

import os

import pytest

from superdl.doctor import CheckStatus
from superdl.doctor.checking import ClockReading
from superdl.doctor.machine import judge_clocks, judge_shared_memory

MIB = 2**20


@pytest.mark.parametrize(
    ("ahead_s", "within_s", "verdict"),
    [
        (8.0, 4.0, CheckStatus.GOOD),
        (-8.0, 1.0, CheckStatus.DOUBTFUL),
        (-400.0, 0.1, CheckStatus.BAD),
        (301.0, 2.0, CheckStatus.DOUBTFUL),
    ],
)
def test_no_more_is_said_of_a_clock_than_was_measured(ahead_s, within_s, verdict):
    clocks = [ClockReading("S3", 0.0, 0.5), ClockReading("the function", ahead_s, within_s)]
    found = judge_clocks(clocks, aws=True)
    assert found.verdict is verdict
    assert "the function" in found.reason
    assert ("the clock of the function" in found.remedy) is (verdict is not CheckStatus.GOOD)


def test_where_all_others_agree_it_is_this_machines_clock():
    found = judge_clocks([ClockReading("S3", 90.0, 0.5), ClockReading("the cache", 90.2, 0.1)], aws=True)
    assert "set this machine's clock right" in found.remedy
    assert judge_clocks([], aws=True).verdict is CheckStatus.SKIPPED


def test_five_minutes_are_no_end_where_nothing_is_signed():
    found = judge_clocks([ClockReading("the cache", 400.0, 0.1)], aws=False)
    assert found.verdict is CheckStatus.DOUBTFUL
    assert "AWS refuses" not in found.reason


@pytest.mark.parametrize(
    ("size", "free", "verdict"),
    [
        (64 * MIB, 64 * MIB, CheckStatus.BAD),
        (1024 * MIB, 16 * MIB, CheckStatus.DOUBTFUL),
        (1024 * MIB, 900 * MIB, CheckStatus.GOOD),
    ],
)
def test_shared_memory(monkeypatch, tmp_path, size, free, verdict):
    sizes = (4096, 4096, size // 4096, free // 4096, free // 4096, 0, 0, 0, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(sizes))
    found = judge_shared_memory(tmp_path)
    assert found.verdict is verdict
    assert f"{size // MIB:,} MiB" in found.reason
    assert ("--shm-size" in found.remedy) is (verdict is not CheckStatus.GOOD)


def test_a_system_without_shared_memory(tmp_path):
    assert judge_shared_memory(tmp_path / "none").verdict is CheckStatus.SKIPPED
