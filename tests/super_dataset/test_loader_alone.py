"""``SuperLoader`` without a sampler, called as a DataLoader is; and what it says beside one."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.utils.data.distributed import DistributedSampler

from superdl import sampler
from superdl.super_dataset import SuperLoader, coordinate_by
from superdl.super_wire.errors import ConfigError, UsageError
from tests.super_dataset.stored_batches import bound_dataset, images, stored

BATCHES = 8
SIZE = 16


@pytest.fixture
def refs(valkey):
    return [stored(valkey, images(SIZE, seed=n), position=n) for n in range(BATCHES)]


def threads_of_loaders() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("super-read")}


class Planned(list):
    """Refs of a sampler that was made, with what it was made of."""

    closed = closed_soon = 0
    epoch = None

    def __init__(self, refs, dataset=None, *, batch_size=SIZE, shuffle=True, drop_last=False, **more):
        super().__init__(refs)
        self.dataset, self.batch_size, self.shuffle, self.drop_last = dataset, batch_size, shuffle, drop_last
        self.more = more

    def set_epoch(self, epoch):
        self.epoch = epoch

    def close(self):
        self.closed += 1

    def close_soon(self):
        self.closed_soon += 1


def test_without_a_sampler_it_makes_one_and_closes_it(refs):
    coordinate_by(SimpleNamespace(SuperSampler=partial(Planned, refs)))
    dataset, before = bound_dataset(), threads_of_loaders()
    # A DataLoader's call by another name:
    with SuperLoader(
        dataset, batch_size=SIZE, sampler=None, shuffle=True, num_workers=16, pin_memory=True, seed=3
    ) as loader:
        assert [len(labels) for _, labels in loader] == [SIZE] * BATCHES
        sampler = loader.sampler
        assert (sampler.dataset, sampler.shuffle, sampler.more) == (dataset, True, {"seed": 3})
        assert (loader.batch_size, loader.drop_last, loader.num_workers) == (SIZE, False, 16)
        assert len(threads_of_loaders() - before) == 3, "no more than batches are read at once"
        assert len(loader.dataset) == 1000
        assert loader.dataset.source in repr(loader)
        loader.set_epoch(4)
        assert (sampler.epoch, sampler.closed) == (4, 0)
    assert sampler.closed == 1
    assert SuperLoader(dataset, batch_size=SIZE).sampler.shuffle is False, "as a DataLoader"


def test_one_that_is_dropped_has_its_sampler_closed(refs):
    coordinate_by(SimpleNamespace(SuperSampler=partial(Planned, refs)))
    loader = SuperLoader(bound_dataset(), batch_size=SIZE)
    sampler, batches = loader.sampler, iter(loader)
    next(batches)
    del loader
    gc.collect()
    assert sampler.closed_soon == 0, "a pass goes on"
    del batches
    gc.collect()
    assert (sampler.closed_soon, sampler.closed) == (1, 0)


def test_what_only_worker_processes_need_is_accepted_or_told_apart(refs):
    harmless = {
        "prefetch_factor": 4,
        "persistent_workers": True,
        "pin_memory": True,
        "timeout": 60,
        "multiprocessing_context": "spawn",
        "pin_memory_device": "",
        "worker_init_fn": None,
        "generator": None,
        "batch_sampler": None,
    }
    with SuperLoader(bound_dataset(), Planned(refs), **harmless) as loader:
        assert len(list(loader)) == BATCHES
    for name, instead in [
        ("worker_init_fn", "leave it out"),
        ("generator", "seed"),
        ("batch_sampler", "batch_"),
    ]:
        with pytest.raises(ConfigError, match=f"takes no {name}: .*{instead}"):
            SuperLoader(bound_dataset(), Planned(refs), **{name: print})


def test_a_sampler_that_it_was_given_stays_open(refs):
    sampler = Planned(refs)
    with SuperLoader(bound_dataset(), sampler, batch_size=SIZE, shuffle=False) as loader:
        assert loader.sampler is sampler
    assert sampler.closed == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"batch_size": 3}, r"batch_size=3, and the Planned beside it makes batches of 16"),
        ({"shuffle": True}, "shuffle: the Planned decides that"),
        ({"drop_last": True, "seed": 3}, "drop_last, seed: the Planned decides that"),
    ],
)
def test_what_contradicts_the_sampler_is_refused(refs, arguments, reason):
    with pytest.raises(ConfigError, match=reason):
        SuperLoader(bound_dataset(), Planned(refs), **arguments)


def test_a_sampler_of_single_samples_is_refused_beside_a_batch_size():
    theirs = DistributedSampler(bound_dataset(), num_replicas=2, rank=0)
    with pytest.raises(ConfigError, match="the DistributedSampler beside it deals out single samples"):
        SuperLoader(bound_dataset(), batch_size=SIZE, sampler=theirs)


def test_neither_sampler_nor_batch_size_and_nobody_to_make_one():
    with pytest.raises(ConfigError, match="takes a sampler, or a batch_size"):
        SuperLoader(bound_dataset())
    with pytest.raises(UsageError, match="import from superdl"):
        SuperLoader(bound_dataset(), batch_size=SIZE)


def test_a_path_in_the_datasets_place_is_answered_with_the_dataset_to_write():
    coordinate_by(sampler)
    for given in ("images/train", Path("images/train")):
        with pytest.raises(UsageError, match=r"SuperDataset\('images/train', Recipe\.image"):
            SuperLoader(given, batch_size=SIZE)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_or_copying_a_loader_says_what_to_pickle(refs, copied):
    loader = SuperLoader(bound_dataset(), Planned(refs))
    with pytest.raises(UsageError, match="pickle its dataset"):
        copied(loader)
