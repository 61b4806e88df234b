"""``SuperLoader`` called like a DataLoader, and a DataLoader's other arguments."""

import copy
import os
import pickle
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import get_worker_info

from superdl import sampler
from superdl.super_dataset import SuperLoader
from superdl.super_wire.errors import ConfigError, UsageError
from tests.super_dataset.stored_batches import bound_dataset, images, stored

BATCHES = 8
SIZE = 16


@pytest.fixture
def refs(valkey):
    return [stored(valkey, images(SIZE, seed=n), position=n) for n in range(BATCHES)]


def threads_of_loaders():
    return {thread for thread in threading.enumerate() if thread.name.startswith("super-read")}


class Planned(list):
    """A sampler's refs, and the arguments it was created with."""

    closed = 0
    epoch = None

    def __init__(self, refs, dataset=None, *, batch_size=SIZE, shuffle=True, drop_last=False, **more):
        super().__init__(refs)
        self.dataset, self.batch_size, self.shuffle, self.drop_last = dataset, batch_size, shuffle, drop_last
        self.more = more

    def set_epoch(self, epoch):
        self.epoch = epoch

    def close(self):
        self.closed += 1


@pytest.fixture
def planned(refs, monkeypatch):
    """Replace the sampler that a loader creates."""
    monkeypatch.setattr(sampler, "SuperSampler", partial(Planned, refs))


@pytest.mark.usefixtures("planned")
def test_a_loader_creates_and_closes_its_own_sampler():
    dataset, before = bound_dataset(), threads_of_loaders()
    # A DataLoader's call, with only the name changed:
    with SuperLoader(
        dataset, batch_size=SIZE, sampler=None, shuffle=True, num_workers=16, pin_memory=True, seed=3
    ) as loader:
        assert [len(labels) for _, labels in loader] == [SIZE] * BATCHES
        sampler = loader.sampler
        assert (sampler.dataset, sampler.shuffle, sampler.more) == (dataset, True, {"seed": 3})
        assert (loader.batch_size, loader.drop_last, loader.num_workers) == (SIZE, False, 16)
        assert len(threads_of_loaders() - before) == 3, "more threads than concurrent reads"
        assert len(loader.dataset) == 1000
        assert loader.dataset.source in repr(loader)
        loader.set_epoch(4)
        assert (sampler.epoch, sampler.closed) == (4, 0)
    assert sampler.closed == 1
    assert SuperLoader(dataset, batch_size=SIZE).sampler.shuffle is False, "a DataLoader's default"


def test_options_of_worker_processes_are_accepted(refs):
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
        assert "reads with threads: 1" in repr(loader)
        assert len(list(loader)) == BATCHES
    with pytest.raises(ConfigError, match="batch_sampler must be set on the Planned"):
        SuperLoader(bound_dataset(), Planned(refs), batch_sampler=[[1]])


@pytest.mark.usefixtures("planned")
def test_a_generator_sets_the_seed():
    for number in (3, 2**64 - 1):
        generator = torch.Generator().manual_seed(number)
        with SuperLoader(bound_dataset(), batch_size=SIZE, shuffle=True, generator=generator) as loader:
            assert loader.sampler.more["seed"] % 2**64 == number
            assert -(2**63) <= loader.sampler.more["seed"] < 2**63


def say_which(number):
    os.environ["WORKER_OF_THIS_TEST"] = str(number)


class Saying:
    """A dataset whose items include which worker read them."""

    def __getitem__(self, number):
        worker = get_worker_info()
        return number, os.environ.get("WORKER_OF_THIS_TEST"), None if worker is None else str(worker.id)


def test_worker_init_fn_is_called_in_worker_processes():
    with SuperLoader(Saying(), range(10), worker_init_fn=say_which, num_workers=2) as loader:
        for _ in range(2):  # workers persist
            items = list(loader)
            assert [number for number, *_ in items] == [*range(10)]
            assert all(said == worker for _, said, worker in items)
            assert {worker for *_, worker in items} == {"0", "1"}
        assert "worker processes: 2, since worker_init_fn" in repr(loader)


def test_a_replaced_pass_is_an_error():
    with SuperLoader(Saying(), range(10), num_workers=1) as loader:
        first, second = iter(loader), iter(loader)
        assert next(first)[0] == next(second)[0] == 0
        with pytest.raises(UsageError, match="another pass"):
            next(first)
        assert [number for number, *_ in second] == [*range(1, 10)]
    with SuperLoader(Saying(), range(10), num_workers=1, persistent_workers=False) as loader:
        assert [one[0] + other[0] for one, other in zip(loader, loader, strict=True)] == [*range(0, 20, 2)]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"batch_size": 3}, r"batch_size=3 contradicts the Planned, whose batches have 16"),
        ({"shuffle": True}, "shuffle must be set on the Planned"),
        ({"drop_last": True, "seed": 3}, "drop_last, seed must be set on the Planned"),
    ],
)
def test_arguments_that_contradict_the_sampler_are_rejected(refs, arguments, reason):
    with pytest.raises(ConfigError, match=reason):
        SuperLoader(bound_dataset(), Planned(refs), **arguments)


def test_a_sampler_or_batch_size_is_required():
    with pytest.raises(ConfigError, match="needs a sampler, or a batch_size"):
        SuperLoader(bound_dataset())


def test_a_path_is_answered_with_a_dataset_to_write():
    for given in ("images/train", Path("images/train")):
        with pytest.raises(UsageError, match=r"SuperDataset\('images/train', Recipe\.image"):
            SuperLoader(given, batch_size=SIZE)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_loader_cannot_be_copied(refs, copied):
    loader = SuperLoader(bound_dataset(), Planned(refs))
    with pytest.raises(UsageError, match="Pickle its dataset"):
        copied(loader)
