"""The whole read path against a model: tens of thousands of random replies, and no wrong byte."""

from __future__ import annotations

import random

import pytest

from tests.hostile.fuzz_reading import FUZZERS, replies_given


@pytest.mark.parametrize("name", FUZZERS)
def test_no_reply_makes_a_wrong_byte(name):
    first, seed = next(replies_given), 0
    while next(replies_given) < first + 8_000:
        try:
            FUZZERS[name](random.Random(seed))
        except BaseException as error:
            error.add_note(f"the seed is {seed}")
            raise
        seed += 1
