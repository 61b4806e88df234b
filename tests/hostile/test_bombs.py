"""Files whose sizes are lies: reading each ends as it should, in bounded memory and time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.hostile.bombs import BOMBS

MOST_MIB = 128  # pyarrow and its libraries take some 60; each bomb would take 256 or more
QUICK = {
    "parquet-zstd-footer",
    "parquet-brotli-page",
    "parquet-hidden-size",
    "key-list-texts",
    "key-list-numbers",
    "tiff-tile",
    "zip-member",
    "store-segment",
    "tar-header",
}
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in BOMBS]


@pytest.mark.parametrize("name", CASES)
def test_a_bomb_takes_little_memory(name, tmp_path):
    make, _, ending = BOMBS[name]
    make(tmp_path / "bomb")
    command = [sys.executable, "-m", "tests.hostile.bombs", name, str(tmp_path / "bomb")]
    child = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert child.returncode == 0, child.stderr
    seen = json.loads(child.stdout.splitlines()[-1])
    assert (seen["ended"], seen["mib"] < MOST_MIB) == (ending, True), seen
