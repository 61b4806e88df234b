"""Iterators are lazy, and states of samplers and iterators resume at their position."""

import json
import pickle
from itertools import islice

import pytest

from superdl.sampler import PlanIterator, SuperSampler
from superdl.super_wire.errors import ConfigError, UsageError
from tests.sampler.stand_ins import BoundDataset

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it


@pytest.fixture
def make(coordinator):
    made = []

    def make(**arguments):
        sampler = SuperSampler(
            BoundDataset(),
            **{"batch_size": 2, "shuffle": True, "coordinator": coordinator.address} | arguments,
        )
        made.append(sampler)
        return sampler

    yield make
    for sampler in made:
        sampler.close()


def place(state):
    return state["epoch"], state["position"]


def places(iterator, count=None):
    return [(batch.epoch, batch.position) for batch in islice(iterator, count)]


def epoch(number, first=0):
    return [(number, position) for position in range(first, 50)]


@pytest.mark.parametrize("consumed", [0, 1, 25, 49, 50])
def test_training_resumes_from_the_batches_consumed(make, consumed):
    sampler = make()
    places(iter(sampler))  # as a loader with workers requests all batches
    state = json.loads(json.dumps(sampler.state_dict(batches_consumed=consumed)))
    assert place(state) == (0, consumed)
    resumed = make()
    resumed.load_state_dict(state)
    assert place(resumed.state_dict()) == (0, consumed)
    assert places(resumed) == epoch(0, consumed)
    assert places(resumed) == epoch(1)


def test_more_batches_than_delivered_cannot_be_consumed(make):
    sampler = make()
    with pytest.raises(ConfigError, match="batches_consumed=1, but no iteration has begun"):
        sampler.state_dict(batches_consumed=1)
    iterator = iter(sampler)
    next(iterator)
    next(iterator)
    with pytest.raises(ConfigError, match="batches_consumed=3, but the latest iteration delivered 2"):
        sampler.state_dict(batches_consumed=3)


def test_set_epoch_keeps_the_position_loaded_for_that_epoch(make):
    sampler = make()
    state = sampler.state_dict() | {"epoch": 3, "position": 40}
    sampler.load_state_dict(state)
    sampler.set_epoch(3)
    assert places(sampler) == epoch(3, 40)
    sampler.load_state_dict(state)
    sampler.set_epoch(2)
    assert places(sampler) == epoch(2)


@pytest.mark.parametrize("position", [31, 50])
def test_loading_a_state_requests_its_page_in_advance(make, coordinator, position):
    sampler = make()
    coordinator.gate.clear()  # no page is answered, and nothing waits for one
    sampler.load_state_dict(sampler.state_dict() | {"epoch": 6, "position": position})
    coordinator.wait_for(lambda: coordinator.count("NextBatches"))
    request = coordinator.requests("NextBatches")[0]
    assert (request.epoch, request.position, request.yielded) == (6, position, position)
    coordinator.gate.set()
    assert places(sampler) == epoch(6, position)
    pages = [request for request in coordinator.requests("NextBatches") if request.count > 1]
    assert len(pages) == (position < 50), "the page is requested once"
    assert places(sampler) == epoch(7)


@pytest.fixture
def sampler(make):
    return make()


def epochs(iterator):
    return {batch.epoch for batch in iterator}


def test_an_unused_iterator_has_no_effect(sampler, coordinator):
    unused = [iter(sampler) for _ in range(3)]
    assert all(isinstance(iterator, PlanIterator) for iterator in unused)
    assert {(iterator.epoch, iterator.position) for iterator in unused} == {(0, 0)}
    assert coordinator.count("NextBatches") == 0
    assert epochs(sampler) == {0}
    assert epochs(sampler) == {1}
    assert epochs(unused[2]) == {2}, "its epoch is the next when it begins, not when it was made"


def test_set_epoch_sets_the_next_epoch(sampler):
    sampler.set_epoch(7)
    assert epochs(sampler) == {7}
    assert epochs(sampler) == {8}
    sampler.set_epoch(8)
    assert epochs(sampler) == {8}, "an epoch may be repeated"


def test_setting_an_epoch_too_late_warns_once(sampler, caplog):
    iterator = iter(sampler)
    next(iterator)
    sampler.set_epoch(0)  # the current epoch, as Lightning does in each first epoch
    next(iterator)
    assert caplog.messages == []
    sampler.set_epoch(3)
    assert epochs(iterator) == {0}
    (told,) = caplog.messages
    assert "set_epoch(3)" in told
    assert "iteration of epoch 0" in told
    assert epochs(sampler) == {3}
    assert epochs(sampler) == {4}
    assert len(caplog.messages) == 1, "an ordinary loop has nothing to be told"


def test_an_iterator_cannot_be_pickled_but_its_batches_can(sampler):
    iterator = iter(sampler)
    batch = next(iterator)
    assert pickle.loads(pickle.dumps(batch)) == batch
    with pytest.raises(UsageError, match="cannot be pickled"):
        pickle.dumps(iterator)
