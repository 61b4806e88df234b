"""What is told of thrash is true: the size named ends it, and a tenth less does not."""

from __future__ import annotations

import pytest

from tests.simulation.mixes import draw_mix

SHARE = 0.7
_STEPS = 5


@pytest.mark.parametrize(
    "seed", [13, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2))], ids="mix-{}".format
)
def test_the_size_named_ends_the_thrash_and_a_tenth_less_does_not(seed):
    mix = draw_mix(seed)
    advised_bytes = mix.run(int(SHARE * mix.whole_bytes)).advised_bytes
    assert advised_bytes > SHARE * mix.whole_bytes
    assert not mix.run(advised_bytes).advised_bytes
    assert mix.run(int(advised_bytes / 1.1)).advised_bytes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120), ids="mix-{}".format)
def test_it_exceeds_the_least_that_does_by_a_tenth_at_most_in_random_mixes(seed):
    mix = draw_mix(seed)
    advised_bytes = mix.run(int(SHARE * mix.whole_bytes)).advised_bytes
    assert not mix.run(advised_bytes).advised_bytes
    too_little, least = int(SHARE * mix.whole_bytes), advised_bytes
    for _ in range(_STEPS):
        middle = (too_little + least) // 2
        if mix.run(middle).advised_bytes:
            too_little = middle
        else:
            least = middle
    assert advised_bytes <= 1.1 * least
