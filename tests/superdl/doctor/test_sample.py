"""What the size of shared memory means for a training loop."""

from __future__ import annotations

import os

import pytest

from superdl.coordinator.server.settings import Settings
from superdl.doctor import Case, CheckStatus
from superdl.doctor.sample import check_shared_memory
from superdl.super_wire.recipe import Recipe

MIB = 2**20
CASE = Case(settings=Settings(), recipe=Recipe.image(crop=224))


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
