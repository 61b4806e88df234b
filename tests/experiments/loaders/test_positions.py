"""Positions of loaders that cannot seek: what they drop when they resume, and which states they refuse."""

import pytest
import torch

from superdl.experiments.loaders.decoding import Decode, DecodingLoader
from superdl.experiments.loaders.samples import Samples, WorkerMetrics
from superdl.experiments.spec import RecipeSpec
from superdl.super_wire.errors import ConfigError

BATCHES = [(torch.zeros(1), torch.tensor([place]), WorkerMetrics(b"", 0.0, 0.0, 0)) for place in range(5)]


def opened(choose_epoch=None, samples=5):
    split = Samples("file:///x", ["key"] * samples, [0] * samples, ("a", "b"), b"")
    decode = Decode(split, RecipeSpec())
    return DecodingLoader(BATCHES, length=5, decode=decode, settings={}, choose_epoch=choose_epoch)


def places(loader):
    return [int(labels) for _, labels, _ in loader]


def test_a_state_resumes_at_its_epoch_and_batch():
    chosen = []
    first = opened(chosen.append)
    assert places(first) == places(first) == [0, 1, 2, 3, 4]
    first.set_epoch(3)
    places(first)
    second = opened(chosen.append)
    second.load_state_dict(first.state_dict(2))
    second.set_epoch(3)  # as the training loop does before each pass
    assert places(second) == [2, 3, 4]
    assert second.job_stats().samples_produced == 5, "dropped batches cost as much"
    third = opened(chosen.append)
    third.load_state_dict(second.state_dict(2))
    assert (places(third), places(third)) == ([4], [0, 1, 2, 3, 4])
    assert chosen == [0, 1, 3, 3, 3, 4]
    third.load_state_dict(second.state_dict(2))
    third.set_epoch(5)
    assert places(third) == [0, 1, 2, 3, 4]


def test_states_that_do_not_fit_are_refused():
    counting, seeking = opened(), opened(lambda _: None)
    with pytest.raises(ConfigError, match="cannot resume within an epoch"):
        counting.load_state_dict(seeking.state_dict(2))
    counting.load_state_dict(seeking.state_dict(0))
    for state in ({"version": 1, "epoch": 0}, opened(samples=6).state_dict(0)):
        with pytest.raises(ConfigError, match=r"another loader\.kind or to other data"):
            opened().load_state_dict(state)
