"""A random step's numbers depend on sample, step, seed and epoch alone, and are fresh in each epoch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from superdl.lambda_prefetch.transforms import SampleRandom

ROOT = Path(__file__).resolve().parents[2]
DIGEST = bytes(range(16))


def draws(step=1, seed=7, epoch=3, bucket="s3://data", key="a/b.jpg", digest=DIGEST):
    return SampleRandom(digest, step, seed, epoch, bucket, key)


def test_a_stream_is_pinned_for_ever():
    # Other numbers mean that cached samples no longer are what their ids say: raise PIPELINE_VERSION then.
    stream = draws()
    assert [stream.below(1000) for _ in range(6)] == [641, 789, 592, 86, 417, 248]


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_equal_in_every_process(hash_seed):
    program = (
        "from superdl.lambda_prefetch.transforms import SampleRandom\n"
        f"d = SampleRandom({DIGEST!r}, 1, 7, 3, 's3://data', 'a/b.jpg')\n"
        "print(d.uniform(), d.below(1000), d.seed())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    mine = draws()
    assert done.stdout.split() == [str(mine.uniform()), str(mine.below(1000)), str(mine.seed())]


@pytest.mark.parametrize(
    "other",
    [
        {"step": 2},
        {"seed": 8},
        {"seed": -7},
        {"epoch": 4},
        {"bucket": "s3://dat"},
        {"key": "a/b.jpeg"},
        {"digest": bytes(16)},
        {"bucket": "s3://data/a", "key": "b.jpg"},
    ],
)
def test_another_sample_step_seed_or_epoch_draws_otherwise(other):
    assert draws(**other).seed() != draws().seed()


def test_draws_are_even_and_independent_of_their_neighbours():
    stream = draws()
    uniform = np.array([stream.uniform(-1, 1) for _ in range(20_000)])
    counts = np.histogram(uniform, bins=20, range=(-1, 1))[0]
    assert counts.sum() == 20_000
    assert ((counts - 1000) ** 2 / 1000).sum() < 50.8  # chi-squared, 19 degrees of freedom, p = 0.0001
    assert abs(np.corrcoef(uniform[:-1], uniform[1:])[0, 1]) < 0.03
    assert {stream.below(5) for _ in range(200)} == {0, 1, 2, 3, 4}
    assert 0 <= stream.seed() < 2**63
