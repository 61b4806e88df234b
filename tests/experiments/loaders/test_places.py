"""Positions of loaders that cannot seek: what is dropped when they resume, and whose state is refused."""

import pytest
import torch

from superdl.experiments.loaders.decoding import Decode, DecodingLoader
from superdl.experiments.loaders.samples import Samples, WorkerFigures
from superdl.experiments.spec import RecipeSpec
from superdl.super_wire.errors import ConfigError

BATCHES = [(torch.zeros(1), torch.tensor([place]), WorkerFigures(b"", 0.0, 0.0, 0)) for place in range(5)]


def opened(choose_epoch=None, samples=5):
    split = Samples("file:///x", ["key"] * samples, [0] * samples, ("a", "b"), b"")
    decode = Decode(split, RecipeSpec())
    return DecodingLoader(BATCHES, length=5, decode=decode, settings={}, choose_epoch=choose_epoch)


def places(loader):
    return [int(labels) for _, labels, _ in loader]


def test_a_state_names_epoch_and_batch_in_a_resumed_epoch_too():
    chosen = []
    first = opened(chosen.append)
    assert places(first) == places(first) == [0, 1, 2, 3, 4]
    first.set_epoch(3)
    places(first)
    second = opened(chosen.append)
    second.load_state_dict(first.state_dict(2))
    second.set_epoch(3)  # as the training loop does before each pass: the position stays
    assert places(second) == [2, 3, 4]
    assert second.job_stats().samples_produced == 5, "what is dropped costs as much"
    third = opened(chosen.append)
    third.load_state_dict(second.state_dict(2))
    assert (places(third), places(third)) == ([4], [0, 1, 2, 3, 4])
    assert chosen == [0, 1, 3, 3, 3, 4]
    third.load_state_dict(second.state_dict(2))
    third.set_epoch(5)  # an epoch other than the state's begins at its first batch
    assert places(third) == [0, 1, 2, 3, 4]


def test_a_loader_that_cannot_repeat_an_order_refuses_the_middle_of_an_epoch():
    counting, seeking = opened(), opened(lambda _: None)
    assert [counting.resumes_within_epochs, seeking.resumes_within_epochs] == [False, True]
    with pytest.raises(ConfigError, match="cannot resume within an epoch"):
        counting.load_state_dict(seeking.state_dict(2))
    counting.load_state_dict(seeking.state_dict(0))


def test_states_of_other_loaders_and_other_data_are_refused():
    with pytest.raises(ConfigError, match="another loader.kind"):
        opened().load_state_dict({"version": 1, "epoch": 0})
    with pytest.raises(ConfigError, match="samples was 6 and is now 5"):
        opened().load_state_dict(opened(samples=6).state_dict(0))
