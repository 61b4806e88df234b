"""The order of rounds: every arm as often as every other, and none always in the same place."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from superdl.experiments.comparing.arms import Round, rounds_of

ARMS = st.lists(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)


def test_each_repeat_begins_one_arm_further_on():
    order = [one.arm for one in rounds_of(["a", "b", "c"], 4)]
    assert order == ["a", "b", "c", "b", "c", "a", "c", "a", "b", "a", "b", "c"]


def test_rounds_are_numbered_and_know_their_repeat():
    assert rounds_of(["a", "b"], 2) == (
        Round(1, 1, "a"),
        Round(2, 1, "b"),
        Round(3, 2, "b"),
        Round(4, 2, "a"),
    )


@given(ARMS, st.integers(1, 12))
def test_every_repeat_has_every_arm_once(arms, repeats):
    rounds = rounds_of(arms, repeats)
    assert [one.number for one in rounds] == list(range(1, len(arms) * repeats + 1))
    for repeat in range(1, repeats + 1):
        of_repeat = [one for one in rounds if one.repeat == repeat]
        assert sorted(one.arm for one in of_repeat) == sorted(arms)
        assert [one.number for one in of_repeat] == list(
            range((repeat - 1) * len(arms) + 1, repeat * len(arms) + 1)
        ), "arms are interleaved: a repeat is over before the next begins"


@given(ARMS, st.integers(1, 12))
def test_no_arm_has_one_place_more_than_once_more_than_another(arms, repeats):
    rounds = rounds_of(arms, repeats)
    for place in range(len(arms)):
        there = Counter(rounds[repeat * len(arms) + place].arm for repeat in range(repeats))
        counts = [there[arm] for arm in arms]
        assert max(counts) - min(counts) <= 1
