"""Iterators are lazy: only a first batch makes an epoch begin."""

from __future__ import annotations

import pickle

import pytest

from superdl.sampler import PlanIterator, SuperSampler
from superdl.super_wire.errors import UsageError
from tests.sampler.stand_ins import BoundDataset


@pytest.fixture
def sampler(coordinator):
    with SuperSampler(BoundDataset(), batch_size=2, shuffle=True, coordinator=coordinator.address) as made:
        yield made


def epochs(iterator):
    return {batch.epoch for batch in iterator}


def test_an_iterator_that_is_never_used_has_no_effect(sampler, coordinator):
    unused = [iter(sampler) for _ in range(3)]
    assert all(isinstance(iterator, PlanIterator) for iterator in unused)
    assert {(iterator.epoch, iterator.position) for iterator in unused} == {(0, 0)}
    assert coordinator.count("NextBatches") == 0
    assert epochs(sampler) == {0}
    assert epochs(sampler) == {1}
    assert epochs(unused[2]) == {2}, "its epoch is the next when it begins, not when it was made"


def test_an_abandoned_epoch_is_not_resumed(sampler):
    iterator = iter(sampler)
    next(iterator)
    assert [batch.position for batch in sampler] == list(range(50))
    assert epochs(sampler) == {2}


def test_set_epoch_names_the_next(sampler):
    sampler.set_epoch(7)
    assert epochs(sampler) == {7}
    assert epochs(sampler) == {8}
    sampler.set_epoch(8)
    assert epochs(sampler) == {8}, "an epoch may be repeated"


def test_an_epoch_set_too_late_for_an_iteration_is_told_once(sampler, caplog):
    iterator = iter(sampler)
    next(iterator)
    sampler.set_epoch(0)  # what it is, as Lightning says in each first epoch
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


def test_it_cannot_be_pickled_but_its_batches_can(sampler):
    iterator = iter(sampler)
    batch = next(iterator)
    assert pickle.loads(pickle.dumps(batch)) == batch
    with pytest.raises(UsageError, match="cannot be pickled"):
        pickle.dumps(iterator)
