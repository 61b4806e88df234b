"""Run each fuzzer of this folder, briefly or, in ``make soak``, for minutes; also files with false sizes.

Each ``fuzz_*.py`` defines ``FUZZERS`` by name. A fuzzer makes one input from the given random generator,
tries it, and raises on an outcome that is not allowed. ``SUPER_TEST_FUZZ_S`` sets the seconds for each, with
new inputs; ``SUPER_TEST_SEED`` selects a single input. Tests have hyphenated names, such as
``reading-wrong-records``, for pytest's ``-k``.
"""

import json
import logging
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hostile import fuzz_function, fuzz_lists, fuzz_reading, fuzz_rpc, fuzz_web, fuzz_wire
from tests.hostile.bombs import BOMBS
from tests.hostile.fuzz_wire import PARSERS

MODULES = (fuzz_function, fuzz_lists, fuzz_reading, fuzz_rpc, fuzz_web, fuzz_wire)
FUZZERS = {
    "-".join(re.findall(r"\w+", name)): fuzzer
    for module in MODULES
    for name, fuzzer in module.FUZZERS.items()
}
SECONDS, SEED = float(os.environ.get("SUPER_TEST_FUZZ_S", "0")), os.environ.get("SUPER_TEST_SEED")


def test_every_fuzzer_in_the_folder_is_run():
    files = {path.stem for path in Path(__file__).parent.glob("fuzz_*.py")}
    assert {module.__name__.rpartition(".")[2] for module in MODULES} == files
    assert len(FUZZERS) == sum(len(module.FUZZERS) for module in MODULES), "two fuzzers share a name"


@pytest.fixture
def unlogged():
    """Turn off logging: refusals are logged a thousand times a second."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("unlogged")
@pytest.mark.timeout(540 + SECONDS)
@pytest.mark.parametrize("name", FUZZERS)
@pytest.mark.parametrize("seconds", [SECONDS or 0.3, pytest.param(180.0, marks=pytest.mark.soak)])
def test_a_fuzzer_finds_nothing(name, seconds):
    first = int(SEED) if SEED else time.time_ns() // 1000 if seconds >= 1 else 0
    most, until_s = 1 if SEED else 3000 if seconds < 1 else 10**12, time.monotonic() + seconds
    for seed in range(first, first + most):
        try:
            FUZZERS[name](random.Random(f"{name}/{seed}"))
        except BaseException as error:
            error.add_note(f"alone: SUPER_TEST_SEED={seed} pytest -k {name} tests/hostile/test_fuzz.py")
            raise
        if time.monotonic() > until_s:
            break
    print(f"{name}: {seed + 1 - first} inputs from seed {first} on")  # noqa: T201 # -rP shows it


@pytest.mark.parametrize("name", PARSERS)
def test_valid_input_is_parsed(name):
    good, parse, _ = PARSERS[name]
    assert parse(good) is not None


MAX_MIB = 128  # pyarrow alone uses 60; a bomb would use 256 or more
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
def test_a_bomb_uses_little_memory(name, tmp_path):
    make, _, ending = BOMBS[name]
    make(tmp_path / "bomb")
    command = [sys.executable, "-m", "tests.hostile.bombs", name, str(tmp_path / "bomb")]
    child = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert child.returncode == 0, child.stderr
    seen = json.loads(child.stdout.splitlines()[-1])
    assert (seen["ended"], seen["mib"] < MAX_MIB) == (ending, True), seen
