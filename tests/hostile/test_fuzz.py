"""Each fuzzer of this folder, for a moment and, in ``make soak``, for minutes; and files whose sizes lie."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from tests.hostile import fuzz
from tests.hostile.bombs import BOMBS
from tests.hostile.fuzz_wire import PARSERS

FUZZERS = fuzz.fuzzers()


@pytest.mark.parametrize("name", FUZZERS)
@pytest.mark.parametrize(
    ("seconds", "inputs"),
    [(0.3, 3000), pytest.param(180.0, 10**12, marks=[pytest.mark.soak, pytest.mark.timeout(540)])],
)
def test_a_fuzzer_finds_nothing(name, seconds, inputs):
    seed = 0 if seconds < 1 else time.time_ns() // 1000
    inputs = fuzz.run(name, FUZZERS[name], seconds=seconds, seed=seed, inputs=inputs)
    print(f"{name}: {inputs} inputs from seed {seed} on")  # noqa: T201 # make soak shows it


@pytest.mark.parametrize("name", PARSERS)
def test_what_is_good_is_read(name):
    good, parse, _ = PARSERS[name]
    assert parse(good) is not None


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
