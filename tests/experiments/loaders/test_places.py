"""Places of loaders that cannot seek: what is read again, what is said, and whose state is refused."""

import logging

import pytest
import torch

from superdl.experiments.loaders.decoding import DecodingLoader
from superdl.experiments.loaders.samples import Samples, WorkerFigures
from superdl.super_wire.errors import ConfigError

BATCHES = [(torch.zeros(1), torch.tensor([place]), WorkerFigures(b"", 0.0, 0.0, 0)) for place in range(5)]


def opened(tell=None, samples=5):
    split = Samples("file:///x", ["key"] * samples, [0] * samples, ("a", "b"), b"")
    return DecodingLoader(BATCHES, length=5, samples=split, settings={}, choose_epoch=tell)


def places(loader):
    return [int(labels) for _, labels, _ in loader]


def test_a_state_names_epoch_and_batch_in_a_resumed_epoch_too(caplog):
    told = []
    first = opened(told.append)
    assert places(first) == places(first) == [0, 1, 2, 3, 4]
    first.set_epoch(3)
    places(first)
    second = opened(told.append)
    second.load_state_dict(first.state_dict(2))
    second.set_epoch(3)  # as the loop does before each pass: the place stays
    with caplog.at_level(logging.WARNING):
        assert places(second) == [2, 3, 4]
    assert "2 batches of epoch 3 are read again and dropped" in caplog.text
    third = opened(told.append)
    third.load_state_dict(second.state_dict(2))
    assert (places(third), places(third)) == ([4], [0, 1, 2, 3, 4])
    assert told == [0, 1, 3, 3, 3, 4]
    third.load_state_dict(second.state_dict(2))
    third.set_epoch(5)  # another epoch than the state's begins at its first batch
    assert places(third) == [0, 1, 2, 3, 4]


def test_a_loader_that_counts_by_itself_says_which_order_it_has_and_refuses_the_middle_of_an_epoch(caplog):
    counting, seeking = opened(), opened(lambda _: None)
    assert [counting.resumes_within_epochs, seeking.resumes_within_epochs] == [False, True]
    with caplog.at_level(logging.WARNING):
        places(counting), places(counting)
        assert not caplog.text
        counting.set_epoch(9)
        places(counting)
    assert "cannot start at epoch 9: its order is that of epoch 2" in caplog.text
    with pytest.raises(ConfigError, match="cannot resume within an epoch"):
        counting.load_state_dict(seeking.state_dict(2))
    counting.load_state_dict(seeking.state_dict(0))


def test_states_of_other_loaders_and_other_batches_are_refused():
    with pytest.raises(ConfigError, match="another kind of loader"):
        opened().load_state_dict({"version": 1, "epoch": 0})
    with pytest.raises(ConfigError, match="samples was 6 and is now 5"):
        opened().load_state_dict(opened(samples=6).state_dict(0))
