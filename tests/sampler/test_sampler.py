"""``SuperSampler``: arguments, attributes, statistics and closing."""

import copy
import gc
import importlib
import pickle
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch.distributed
from torch.utils.data.distributed import DistributedSampler

from superdl.coordinator.core import Plan
from superdl.sampler import SamplerStats, SuperSampler
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import (
    CacheUnreachableError,
    ConfigError,
    UsageError,
)
from tests.sampler.stand_ins import BoundDataset


def make(server, dataset=None, **arguments):
    arguments = {"batch_size": 2, "shuffle": True, "coordinator": server.address, **arguments}
    return SuperSampler(dataset or BoundDataset(), **arguments)


WRONG = [("batch_size", value) for value in (0, -1, 2.0, True, "8", 2**32)]
WRONG += [("seed", 2**63), ("seed", None), ("shuffle", 1), ("drop_last", "no"), ("in_order", None)]
WRONG += [("indices", []), ("indices", [0.5]), ("weights", "heavy"), ("draws", 0), ("draws", 7)]
WRONG += [("repeats", 0), ("repeats", 1025), ("repeats", None)]
WRONG += [("rank", 2), ("rank", -1), ("num_replicas", 0), ("job", ""), ("job", 7), ("coordinator", "nowhere")]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_invalid_arguments_are_named_before_any_call(coordinator, name, value):
    with pytest.raises(ConfigError, match=name):
        make(coordinator, **{"num_replicas": 2, "rank": 0} | {name: value})
    assert coordinator.calls == []


@pytest.mark.parametrize(
    "dataset", [[1, 2, 3], "file:///images", None, SimpleNamespace(source="s", recipe=None)]
)
def test_other_objects_than_a_dataset_are_rejected(coordinator, dataset):
    with pytest.raises(UsageError, match="SuperSampler needs a SuperDataset"):
        SuperSampler(dataset, batch_size=2, shuffle=True, coordinator=coordinator.address)
    assert coordinator.calls == []


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("size", "batch_size", "ranks"), [(150, 8, 2), (96, 8, 3), (7, 1, 4), (100, 100, 1)])
def test_it_has_the_attributes_of_a_distributed_sampler(coordinator, size, batch_size, ranks, drop_last):
    coordinator.script.size = size
    plan = Plan(size=size, batch_size=batch_size, replicas=ranks, seed=3, shuffle=False, drop_last=drop_last)
    place = {"batch_size": batch_size, "rank": ranks - 1, "num_replicas": ranks}
    with make(coordinator, **place, seed=3, shuffle=False, drop_last=drop_last) as sampler:
        assert isinstance(sampler, DistributedSampler)
        assert (sampler.rank, sampler.num_replicas) == (ranks - 1, ranks)
        assert (sampler.shuffle, sampler.seed, sampler.drop_last) == (False, 3, drop_last)
        assert sampler.batch_size == batch_size
        assert f"batches of {batch_size}, shuffle=False, seed=3" in repr(sampler)
        assert sampler.total_size == plan.samples_per_epoch + plan.padding_per_epoch
        assert sampler.num_samples * ranks == sampler.total_size
        assert sampler.epoch == 0
        next(iter(sampler))
        assert sampler.epoch == 1
        sampler.set_epoch(5)
        assert sampler.epoch == 5


def test_a_dataset_and_its_samplers_share_a_coordinator(coordinator):
    named, told = BoundDataset(coordinator=coordinator.address), BoundDataset()
    SuperSampler(named, batch_size=2, shuffle=True).close()
    make(coordinator, told).close()
    assert named.coordinator == told.coordinator == coordinator.address


def test_a_sampler_created_before_the_process_group_is_rejected(coordinator, tmp_path):
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers the backend "fake"
    with make(coordinator) as sampler, make(coordinator, rank=0, num_replicas=1) as told:
        store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
        torch.distributed.init_process_group("fake", store=store, rank=1, world_size=2)
        try:
            with pytest.raises(UsageError, match="rank 0 of 1, but .*torch.distributed .* rank 1 of 2"):
                iter(sampler)
            assert next(iter(told)).position == 0
        finally:
            torch.distributed.destroy_process_group()


def test_an_unreachable_cache_fails_the_constructor(coordinator):
    class Unreachable(BoundDataset):
        def ping_cache(self, cache):
            raise CacheUnreachableError(f"nobody answers at {cache}")

    with pytest.raises(CacheUnreachableError, match="nowhere"):
        make(coordinator, Unreachable())


def test_stats_have_every_field_of_the_protocol(coordinator):
    with make(coordinator) as sampler:
        stats = sampler.job_stats()
    assert isinstance(stats, SamplerStats)
    assert (stats.job, stats.invocations, stats.decode_s, stats.budget_bytes) == (sampler.job, 3, 1.5, 77)
    wire = {field.name for kind in (pb.JobStats, pb.CacheStats) for field in kind.DESCRIPTOR.fields}
    here = {"status_calls", "status_s", "status_cpu_s", "status_wait_s", "workers"}
    of_closed_jobs = {"opened_s", "closed_s"}
    assert set(SamplerStats.__dataclass_fields__) == (wire - of_closed_jobs) | here


def test_page_calls_are_counted(coordinator):
    with make(coordinator) as sampler:
        assert sampler.job_stats().status_calls == 0
        next(iter(sampler))
        stats = sampler.job_stats()
    assert 0 < stats.status_calls <= len(coordinator.requests("NextBatches"))
    assert stats.status_s >= stats.status_cpu_s > 0
    assert stats.status_wait_s > 0, "nothing was there when the first batch was asked for"


def test_close_closes_the_job_once(coordinator):
    sampler = make(coordinator, rank=1, num_replicas=2)
    iterator = iter(sampler)
    next(iterator)
    sampler.close()
    sampler.close()
    (closed,) = coordinator.requests("CloseJob")
    assert (closed.job, closed.rank) == (sampler.job, 1)
    with pytest.raises(UsageError, match="closed"):
        next(iterator)
    with pytest.raises(UsageError, match="closed"):
        list(sampler)


def test_closing_without_a_coordinator_only_warns(coordinator, caplog):
    sampler = make(coordinator)
    coordinator.stop()
    sampler.close()
    assert sampler.job in caplog.text


def test_a_dropped_sampler_ends_its_thread(coordinator):
    sampler = make(coordinator)
    next(iter(sampler))
    (thread,) = [one for one in threading.enumerate() if one.name == "superdl-pages"]
    gone = weakref.ref(sampler)
    del sampler
    gc.collect()
    assert gone() is None
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_sampler_cannot_be_copied(coordinator, duplicate):
    with make(coordinator) as sampler, pytest.raises(UsageError, match="Create one in each process"):
        duplicate(sampler)


def test_omitting_shuffle_keeps_the_order_and_warns(coordinator, caplog):
    for said in (True, False, None):
        given = {} if said is None else {"shuffle": said}
        with SuperSampler(BoundDataset(), batch_size=2, coordinator=coordinator.address, **given) as sampler:
            assert sampler.shuffle is bool(said)
        assert ("Pass shuffle=True" in caplog.text) is (said is None)
