"""States of a sampler and its iterators: what they name, and what loading one does, at once."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from superdl.sampler import SuperSampler
from superdl.super_wire.errors import ConfigError, UsageError
from tests.sampler.stand_ins import BoundDataset

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it


@pytest.fixture
def make(coordinator):
    made = []

    def make(**arguments):
        sampler = SuperSampler(
            BoundDataset(), **{"batch_size": 2, "coordinator": coordinator.address} | arguments
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


def test_the_sampler_names_the_next_epoch_and_the_iterator_its_place(make):
    sampler = make()
    iterator = iter(sampler)
    assert place(sampler.state_dict()) == place(iterator.state_dict()) == (0, 0)
    places(iterator, 3)
    assert place(iterator.state_dict()) == (0, 3)
    assert place(sampler.state_dict()) == (1, 0)
    places(iterator)
    assert place(iterator.state_dict()) == (0, 50)


@pytest.mark.parametrize("consumed", [0, 1, 25, 49, 50])
def test_what_the_loop_consumed_is_where_another_sampler_goes_on(make, consumed):
    sampler = make()
    places(iter(sampler))  # a loader with workers has asked for all of it
    state = json.loads(json.dumps(sampler.state_dict(batches_consumed=consumed)))
    assert place(state) == (0, consumed)
    resumed = make()
    resumed.load_state_dict(state)
    assert place(resumed.state_dict()) == (0, consumed)
    assert places(resumed) == epoch(0, consumed)
    assert places(resumed) == epoch(1)


def test_resumed_iterations_count_from_where_they_began(make):
    sampler = make()
    sampler.load_state_dict(sampler.state_dict() | {"epoch": 4, "position": 10})
    assert place(sampler.state_dict(batches_consumed=0)) == (4, 10)
    places(iter(sampler), 9)
    assert place(sampler.state_dict(batches_consumed=7)) == (4, 17)
    again = make()
    again.load_state_dict(sampler.state_dict(batches_consumed=7))
    places(iter(again), 5)
    assert place(again.state_dict(batches_consumed=5)) == (4, 22)


@pytest.mark.parametrize("consumed", [-1, 1.0, True, "3"])
def test_batches_consumed_is_a_whole_number(make, consumed):
    with pytest.raises(ConfigError, match="batches_consumed is a whole number from 0"):
        make().state_dict(batches_consumed=consumed)


def test_more_than_was_given_cannot_have_been_consumed(make):
    sampler = make()
    with pytest.raises(ConfigError, match="batches_consumed=1, but no iteration has begun"):
        sampler.state_dict(batches_consumed=1)
    iterator = iter(sampler)
    next(iterator)
    next(iterator)
    with pytest.raises(ConfigError, match="batches_consumed=3, but the latest iteration gave 2"):
        sampler.state_dict(batches_consumed=3)


def test_set_epoch_keeps_the_position_of_the_epoch_just_loaded(make):
    sampler = make()
    state = sampler.state_dict() | {"epoch": 3, "position": 40}
    sampler.load_state_dict(state)
    sampler.set_epoch(3)
    assert places(sampler) == epoch(3, 40)
    sampler.load_state_dict(state)
    sampler.set_epoch(2)
    assert places(sampler) == epoch(2)


def test_an_iterator_goes_on_where_another_stood_and_moves_its_sampler_on(make):
    sampler = make()
    iterator = iter(sampler)
    places(iterator, 20)
    state = json.loads(json.dumps(iterator.state_dict()))
    resumed = make()
    other = iter(resumed)
    other.load_state_dict(state)
    assert (other.epoch, other.position) == (0, 20)
    assert place(resumed.state_dict()) == (0, 0), "it has not begun"
    assert places(other) == epoch(0, 20)
    assert places(resumed) == epoch(1)


def test_an_epoch_named_for_later_survives_an_iterator_that_goes_on(make):
    sampler = make()
    sampler.set_epoch(5)
    iterator = iter(sampler)
    iterator.load_state_dict(sampler.state_dict() | {"epoch": 3, "position": 48})
    assert places(iterator) == epoch(3, 48)
    assert places(sampler) == epoch(5)


def test_out_of_order_what_went_ahead_does_not_go_again(make, coordinator):
    coordinator.script.resident = {3, 5, 9}
    sampler = make(in_order=False)
    iterator = iter(sampler)
    given = places(iterator, 2)
    assert given == [(0, 3), (0, 5)]
    state = json.loads(json.dumps(iterator.state_dict()))
    assert (place(state), state["given_ahead"]) == ((0, 0), [3, 5])
    assert sampler.state_dict(batches_consumed=1)["given_ahead"] == [3]
    for in_order in (False, True):
        resumed = make(in_order=in_order)
        resumed.load_state_dict(state)
        assert sorted(given + places(resumed)) == epoch(0)


def test_loading_a_state_asks_for_its_page_before_a_batch_is_asked_for(make, coordinator):
    sampler = make()
    coordinator.gate.clear()  # no page is answered, and nobody waits for one
    sampler.load_state_dict(sampler.state_dict() | {"epoch": 6, "position": 31})
    coordinator.wait_for(lambda: coordinator.count("NextBatches"))
    asked = coordinator.requests("NextBatches")[0]
    assert (asked.epoch, asked.position, asked.yielded) == (6, 31, 31)
    coordinator.gate.set()
    assert places(sampler) == epoch(6, 31)
    pages = [one for one in coordinator.requests("NextBatches") if one.count > 1]
    assert len(pages) == 1, "the page was asked for once"


def test_the_end_of_an_epoch_is_told_too(make, coordinator):
    sampler = make()
    sampler.load_state_dict(sampler.state_dict() | {"epoch": 6, "position": 50})
    coordinator.wait_for(lambda: coordinator.count("NextBatches"))
    asked = coordinator.requests("NextBatches")[0]
    assert (asked.epoch, asked.position, asked.yielded) == (6, 50, 50)
    assert places(sampler) == []
    assert places(sampler) == epoch(7)


def test_of_a_samplers_state_and_its_iterators_the_later_is_asked_for(make, coordinator):
    sampler = make()
    base = sampler.state_dict()
    sampler.load_state_dict(base | {"epoch": 1})
    iterator = iter(sampler)
    iterator.load_state_dict(base | {"epoch": 0, "position": 30})
    assert places(iterator, 1) == [(0, 30)]
    assert [(one.epoch, one.position) for one in coordinator.requests("NextBatches")] == [(0, 30)]


def test_a_state_of_another_plan_changes_nothing(make):
    sampler = make()
    with pytest.raises(ConfigError, match="seed is 9 in the state and 0 here"):
        sampler.load_state_dict(sampler.state_dict() | {"seed": 9, "epoch": 3})
    iterator = iter(sampler)
    with pytest.raises(ConfigError, match="seed is 9 in the state and 0 here"):
        iterator.load_state_dict(sampler.state_dict() | {"seed": 9, "epoch": 3})
    assert places(iterator) == epoch(0)


def test_a_closed_sampler_loads_nothing_and_still_says_where_it_stood(make):
    sampler = make()
    places(iter(sampler), 4)
    sampler.close()
    assert place(sampler.state_dict(batches_consumed=4)) == (0, 4)
    with pytest.raises(UsageError, match="closed"):
        sampler.load_state_dict(sampler.state_dict())


def test_other_ranks_and_other_numbers_of_them_load_a_state(make):
    saved = make(rank=0, num_replicas=4, batch_size=2)
    places(iter(saved), 6)
    for rank in range(2):
        other = make(rank=rank, num_replicas=2, batch_size=4)
        other.load_state_dict(saved.state_dict(batches_consumed=6))
        assert places(other) == epoch(0, 6)
    with pytest.raises(ConfigError, match="2 x 4 ranks = 8 in the state and 2 x 2 ranks = 4 here"):
        make(rank=0, num_replicas=2, batch_size=2).load_state_dict(saved.state_dict())


def loaded(sampler, state):
    loader = StatefulDataLoader(BoundDataset(), sampler=sampler, batch_size=None, collate_fn=list)
    if state is not None:
        loader.load_state_dict(state)
    return loader


@pytest.mark.parametrize("taken", [0, 1, 25, 49, 50])
@pytest.mark.parametrize("epochs_before", [0, 2])
def test_a_stateful_dataloader_goes_on_exactly(make, taken, epochs_before):
    loader = loaded(make(), None)
    for _ in range(epochs_before):
        assert len(list(loader)) == 50
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = loaded(make(), state)
    assert [tuple(batch[:2]) for batch in resumed] == epoch(epochs_before, taken)
    assert [tuple(batch[:2]) for batch in resumed] == epoch(epochs_before + 1)


def test_a_stateful_dataloader_after_a_finished_epoch_begins_the_next(make):
    loader = loaded(make(), None)
    assert len(list(loader)) == 50
    resumed = loaded(make(), loader.state_dict())
    assert [tuple(batch[:2]) for batch in resumed] == epoch(1)


def test_a_stateful_dataloader_with_set_epoch_in_the_loop(make):
    sampler = make()
    loader = loaded(sampler, None)
    for number in (7, 9):
        sampler.set_epoch(number)
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
    other = make()
    resumed = loaded(other, loader.state_dict())
    other.set_epoch(9)
    assert [tuple(batch[:2]) for batch in resumed] == epoch(9, 5)
    other.set_epoch(11)
    assert [tuple(batch[:2]) for batch in resumed] == epoch(11)
