"""The heavy augmentation: one image per seed, on every machine, which stays recognisable."""

from hashlib import sha256

import numpy as np
import pytest

from superdl.experiments.augmentations.heavy import ROUNDS_MAX, heavy

PICTURE = np.linspace(0, 255, 32 * 40 * 3).reshape(32, 40, 3).astype(np.uint8)


@pytest.mark.parametrize("rounds", [1, 8, ROUNDS_MAX])
def test_an_image_depends_on_the_seed_and_stays_recognisable(rounds):
    digests = set()
    for seed in range(8):
        after = heavy(PICTURE, seed=seed, rounds=rounds)
        np.testing.assert_array_equal(after, heavy(PICTURE, seed=seed, rounds=rounds))
        assert (after.dtype, after.shape) == (np.uint8, PICTURE.shape)
        likeness = max(
            np.corrcoef(before.astype(float).ravel(), after.astype(float).ravel())[0, 1]
            for before in (PICTURE, PICTURE[:, ::-1])
        )
        assert likeness > 0.4
        digests.add(sha256(after.tobytes()).digest())
    assert len(digests) == 8
