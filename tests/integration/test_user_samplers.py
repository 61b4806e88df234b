"""Epochs in the order of any torch sampler: the batches it yields, also across saved states."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from superdl import SuperDataset, SuperLoader, SuperMix, SuperSampler
from superdl.super_wire.errors import ConfigError
from tests.integration.delivery import RECIPE

SIZE = 150


class Recorded:
    """A user's sampler that records what it yielded."""

    def __init__(self, sampler):
        self._sampler = sampler
        self.epochs = []

    def __iter__(self):
        yielded = [list(item) if isinstance(item, list) else item for item in self._sampler]
        self.epochs.append(yielded)
        return iter(yielded)

    def __len__(self):
        return len(self._sampler)

    def __getattr__(self, name):
        return getattr(self._sampler, name)


@pytest.fixture
def dataset(shared_stack, images):
    return SuperDataset(str(images), RECIPE, coordinator=shared_stack.address)


def keys_of(dataset, images):
    return [str(Path(path).relative_to(images)) for path, _ in dataset.samples]


class Curriculum:
    """A sampler with more samples in each epoch."""

    def __init__(self):
        self._epoch = 0

    def set_epoch(self, epoch):
        self._epoch = epoch

    def __iter__(self):
        return iter(range(20 * (self._epoch + 1)))


def seeded(seed=5):
    return RandomSampler(range(SIZE), generator=torch.Generator().manual_seed(seed))


SAMPLERS = {
    "at random": (lambda: RandomSampler(range(SIZE)), 16),
    "by weights": (lambda: WeightedRandomSampler(torch.rand(SIZE).tolist(), 77), 10),
    "a curriculum": (Curriculum, 9),
    "batches": (lambda: BatchSampler(SequentialSampler(range(SIZE)), 7, drop_last=True), None),
    "batches of any length": (lambda: [[1, 2, 3], [149], [5, 6, 7, 8, 9, 5]], None),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_batches_are_those_that_the_sampler_yields(dataset, images, name):
    make, batch_size = SAMPLERS[name]
    paths = keys_of(dataset, images)
    recorded = Recorded(make())
    how = {"batch_sampler": recorded} if batch_size is None else {"sampler": recorded}
    how |= {} if batch_size is None else {"batch_size": batch_size}
    with SuperSampler(dataset, **how) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2)
        for epoch in range(2):
            labels = [batch_labels.tolist() for _, batch_labels in loader]
            yielded = recorded.epochs[epoch]
            if batch_size is not None:
                yielded = [yielded[at : at + batch_size] for at in range(0, len(yielded), batch_size)]
            assert labels == [[dataset.targets[index] for index in batch] for batch in yielded]
        keys = [key for ref in sampler for key in ref.keys]
        yielded = recorded.epochs[-1]
        assert keys == [paths[index] for index in (yielded if batch_size else itertools.chain(*yielded))]


def test_a_loader_takes_the_sampler_of_a_script(dataset):
    by_index = SuperLoader(dataset, sampler=list(range(20, 0, -1)), batch_size=8, drop_last=True)
    by_batch = SuperLoader(dataset, batch_sampler=[[3], [1, 2]])
    for loader, batches in ((by_index, [range(20, 12, -1), range(12, 4, -1)]), (by_batch, [[3], [1, 2]])):
        labels = [batch.tolist() for _, batch in loader]
        assert labels == [[dataset.targets[index] for index in batch] for batch in batches]
        loader.close()


def test_a_state_has_what_the_sampler_needs_to_draw_the_same(dataset):
    for make in (seeded, lambda: RandomSampler(range(SIZE))):  # with its own generator, and the global one
        with SuperSampler(dataset, sampler=make(), batch_size=8) as sampler:
            list(sampler)
            epoch = iter(sampler)
            taken = [next(epoch).keys for _ in range(3)]
            state = json.loads(json.dumps(sampler.state_dict(batches_consumed=3)))
            rest = [ref.keys for ref in epoch]
            after = sampler.state_dict()
        torch.manual_seed(99)
        with SuperSampler(dataset, sampler=make(), batch_size=8) as resumed:
            resumed.load_state_dict(state)
            assert [ref.keys for ref in resumed] == rest
            assert len(taken) + len(rest) == len(resumed)
            resumed.load_state_dict(after)
            assert resumed.epoch == 2
    with (
        SuperSampler(dataset, batch_size=8, shuffle=False) as other,
        pytest.raises(ConfigError, match="drawn by your own sampler"),
    ):
        other.load_state_dict(state)


def test_a_sampler_that_draws_otherwise_cannot_go_on(dataset):
    with SuperSampler(dataset, sampler=list(range(40)), batch_size=8) as sampler:
        next(iter(sampler))
        state = sampler.state_dict(batches_consumed=1)
    with SuperSampler(dataset, sampler=list(range(1, 41)), batch_size=8) as another:
        another.load_state_dict(state)
        with pytest.raises(ConfigError, match="draws epoch 0 in a different order"):
            next(iter(another))


def test_each_rank_draws_its_part_of_a_distributed_sampler(dataset, images):
    read, jobs = [], set()
    for rank in range(2):
        own = DistributedSampler(range(SIZE), num_replicas=2, rank=rank, seed=3)
        with SuperSampler(dataset, sampler=own, batch_size=8, rank=rank, num_replicas=2) as sampler:
            jobs.add(sampler.job)
            read += [key for ref in sampler for key in ref.keys]
    assert len(jobs) == 2
    assert sorted(read) == sorted(keys_of(dataset, images))


def test_an_order_longer_than_a_message_is_sent_in_parts(dataset, images):
    order = torch.randint(SIZE, (600_001,), generator=torch.Generator().manual_seed(1)).tolist()
    with SuperSampler(dataset, sampler=order, batch_size=4096) as sampler:
        paths = keys_of(dataset, images)
        refs = iter(sampler)
        assert list(next(refs).keys) == [paths[index] for index in order[:4096]]
        state = sampler.state_dict(batches_consumed=1) | {"position": len(sampler) - 1}
        sampler.load_state_dict(state)
        (last,) = sampler
        assert list(last.keys) == [paths[index] for index in order[len(order) // 4096 * 4096 :]]


def test_of_a_subset_indices_are_its_places(dataset, images):
    part = Subset(dataset, [149, 3, 77])
    with SuperSampler(part, sampler=[2, 0, 1, 0], batch_size=3) as sampler:
        paths = keys_of(dataset, images)
        assert [list(ref.keys) for ref in sampler] == [[paths[77], paths[149], paths[3]], [paths[149]]]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"sampler": [1]}, "Pass batch_size too"),
        ({"sampler": [1], "batch_size": 2, "shuffle": True}, "Do not pass shuffle"),
        ({"batch_sampler": [[1]], "batch_size": 2}, "Do not pass batch_size"),
        ({"sampler": [1], "batch_sampler": [[1]]}, "Pass only one of them"),
        ({"sampler": 3, "batch_size": 2}, "iterable of indices, not int"),
        ({"sampler": [[1, 2]], "batch_size": 2}, "batch_sampler="),
        ({"sampler": [0.5], "batch_size": 2}, "integers"),
        ({"sampler": [0, SIZE], "batch_size": 2}, "index 150, but there are only 150"),
        ({"sampler": [], "batch_size": 2}, "yielded no indices"),
        ({"batch_sampler": [[1], []]}, "an empty batch"),
        ({"batch_sampler": [1, 2]}, "lists of indices, not '1'.*sampler="),
    ],
)
def test_what_is_no_order_is_refused(dataset, how, message):

    with pytest.raises(ConfigError, match=message), SuperSampler(dataset, **how) as sampler:
        next(iter(sampler))


def test_a_mix_takes_no_sampler(dataset):
    with pytest.raises(ConfigError, match="a mix does not accept sampler"):
        SuperSampler(SuperMix([dataset]), sampler=[1], batch_size=2)
