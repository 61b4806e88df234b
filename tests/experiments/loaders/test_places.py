"""Places of loaders that cannot seek: what is read again, what is said, and whose state is refused."""

from __future__ import annotations

import logging

import pytest

from superdl.experiments.loaders.decoding import CountedPlace
from superdl.super_wire.errors import ConfigError

FACTS = {"samples": 40, "batches": 5}


def test_a_state_names_epoch_and_batch_in_a_resumed_epoch_too(caplog):
    told: list[int] = []
    first = CountedPlace(FACTS, told.append)
    assert [first.begin(), first.begin()] == [0, 0]
    first.set_epoch(3)
    first.begin()
    second = CountedPlace(FACTS, told.append)
    second.load_state_dict(first.state_dict(2))
    second.set_epoch(3)  # as the loop does before each pass: the place stays
    with caplog.at_level(logging.WARNING):
        assert second.begin() == 2
    assert "2 batches of epoch 3 are read again and dropped" in caplog.text
    third = CountedPlace(FACTS, told.append)
    third.load_state_dict(second.state_dict(2))
    assert (third.begin(), third.begin()) == (4, 0)
    assert told == [0, 1, 3, 3, 3, 4]
    third.load_state_dict(second.state_dict(2))
    third.set_epoch(5)  # another epoch than the state's begins at its first batch
    assert third.begin() == 0


def test_a_loader_that_counts_by_itself_says_which_order_it_has_and_refuses_the_middle_of_an_epoch(caplog):
    counting, seeking = CountedPlace(FACTS), CountedPlace(FACTS, lambda _: None)
    assert [counting.resumes_within_epochs, seeking.resumes_within_epochs] == [False, True]
    counting.begin()
    with caplog.at_level(logging.WARNING):
        counting.begin()
        assert not caplog.text
        counting.set_epoch(9)
        counting.begin()
    assert "cannot begin at epoch 9: its order is that of epoch 2" in caplog.text
    seeking.begin()
    with pytest.raises(
        ConfigError, match="would repeat samples and leave others out: resume from a checkpoint"
    ):
        counting.load_state_dict(seeking.state_dict(2))
    counting.load_state_dict(seeking.state_dict(0))


def test_states_of_other_loaders_and_other_batches_are_refused():
    place = CountedPlace(FACTS)
    with pytest.raises(ConfigError, match="of a loader of another kind"):
        place.load_state_dict({"version": 1, "epoch": 0})
    with pytest.raises(ConfigError, match="samples is 41 in the state and 40 here"):
        place.load_state_dict(CountedPlace({"samples": 41, "batches": 5}).state_dict(0))
