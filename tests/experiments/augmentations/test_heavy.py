"""The heavy augmentation: the same bytes for one seed, others for another, and images that stay images."""

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from superdl.experiments.augmentations.heavy import ROUNDS_MAX, heavy

ROOT = Path(__file__).resolve().parents[3]


def picture(height=32, width=40):
    ramp = np.linspace(0, 255, height * width * 3).reshape(height, width, 3)
    return ramp.astype(np.uint8)


def digest(**arguments):
    return sha256(heavy(picture(), **arguments).tobytes()).hexdigest()


def test_one_seed_gives_one_image_in_every_process():
    code = "from tests.experiments.augmentations.test_heavy import digest; print(digest(seed=7, rounds=3))"
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    assert digest(seed=7, rounds=3) == other
    assert len({digest(seed=seed, rounds=rounds) for seed in (7, 8) for rounds in (1, 3)}) == 4


@pytest.mark.parametrize("rounds", [1, 8, ROUNDS_MAX])
def test_an_image_keeps_its_shape_and_stays_like_itself(rounds):
    """Or its mirror: however many rounds, there is enough of it left to learn from."""
    before = picture()
    for seed in range(8):
        after = heavy(before, seed=seed, rounds=rounds)
        assert after.dtype == np.uint8
        assert after.shape == before.shape
        likeness = max(
            np.corrcoef(one.astype(float).ravel(), after.astype(float).ravel())[0, 1]
            for one in (before, before[:, ::-1])
        )
        assert likeness > 0.4
        assert not np.array_equal(after, before)
