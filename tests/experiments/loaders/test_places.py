"""Places of loaders that cannot seek: what is read again, what is said, and whose state is refused."""

from __future__ import annotations

import logging

import pytest

from superdl.experiments.loaders.decoding import CountedPlace
from superdl.super_wire.errors import ConfigError

FACTS = {"samples": 40, "batches": 5}


def test_epochs_are_told_and_counted_from_nought():
    told: list[int] = []
    place = CountedPlace(FACTS, told.append)
    assert [place.begin(), place.begin()] == [0, 0]
    place.set_epoch(7)
    assert place.begin() == 0
    assert told == [0, 1, 7]


def test_a_state_names_the_batch_in_a_resumed_epoch_too(caplog):
    told: list[int] = []
    first = CountedPlace(FACTS, told.append)
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
    assert told == [3, 3, 3, 4]


def test_another_epoch_than_the_states_begins_at_its_first_batch():
    place = CountedPlace(FACTS, lambda _: None)
    place.load_state_dict({"format": "counted batches", **FACTS, "epoch": 3, "batch": 2})
    place.set_epoch(4)
    assert place.begin() == 0


def test_a_loader_that_counts_by_itself_says_which_order_it_has(caplog):
    place = CountedPlace(FACTS)
    place.begin()
    with caplog.at_level(logging.WARNING):
        place.begin()
        assert not caplog.text
        place.set_epoch(9)
        place.begin()
    assert "cannot begin at epoch 9: its order is that of epoch 2" in caplog.text


def test_a_loader_that_counts_by_itself_refuses_the_middle_of_an_epoch():
    told = CountedPlace(FACTS, lambda _: None)
    counting = CountedPlace(FACTS)
    assert told.resumes_within_epochs
    assert not counting.resumes_within_epochs
    told.begin()
    with pytest.raises(
        ConfigError, match="would repeat samples and leave others out: resume from a checkpoint"
    ):
        counting.load_state_dict(told.state_dict(2))
    counting.load_state_dict(told.state_dict(0))


def test_states_of_other_loaders_and_other_batches_are_refused():
    place = CountedPlace(FACTS)
    with pytest.raises(ConfigError, match="of a loader of another kind"):
        place.load_state_dict({"version": 1, "epoch": 0})
    with pytest.raises(ConfigError, match="samples is 41 in the state and 40 here"):
        place.load_state_dict(CountedPlace({"samples": 41, "batches": 5}).state_dict(0))
