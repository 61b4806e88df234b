"""``SuperLoader`` reads a real cache by threads and processes like a DataLoader."""

import gc
import os
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from superdl.super_dataset import SuperLoader
from superdl.super_wire.errors import BadSampleError, ConfigError, UsageError
from tests.super_dataset.stored_batches import (
    bound_dataset,
    images,
    stored,
    tombstone,
)

BATCHES = 8
SIZE = 16


@pytest.fixture
def refs(valkey):
    return [stored(valkey, images(SIZE, seed=n), position=n) for n in range(BATCHES)]


def check(batch, labels, n):
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(batch.permute(0, 2, 3, 1).numpy(), np.stack(images(SIZE, seed=n)))
    assert labels.tolist() == list(range(100, 100 + SIZE))


def threads_of_loaders():
    return [thread for thread in threading.enumerate() if thread.name.startswith("super-read")]


def join(threads):
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def _no_thread_stays(valkey):
    """Checked before the cache is emptied: a pending batch would wait for its samples until its timeout."""
    yield
    gc.collect()
    join(threads_of_loaders())


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("prefetch", [1, 2, 20])
def test_batches_arrive_in_order_in_every_epoch(refs, threads, prefetch):
    loader = SuperLoader(bound_dataset(), refs, None, prefetch, threads=threads)
    assert len(loader) == BATCHES
    for _ in range(3):
        count = 0
        for n, (batch, labels) in enumerate(loader):
            check(batch, labels, n)
            count += 1
        assert count == BATCHES
    assert len(threads_of_loaders()) == threads


class Counting:
    """A dataset that counts how far ahead it was read."""

    def __init__(self, dataset):
        self.dataset = dataset
        self.begun = 0
        self.arrived = threading.Semaphore(0)

    def __getitem__(self, ref):
        self.begun += 1
        item = self.dataset[ref]
        self.arrived.release()
        return item


def test_prefetch_limits_batches_read_ahead(refs):
    dataset = Counting(bound_dataset())
    batches = iter(SuperLoader(dataset, refs, None, 3, threads=1))
    assert dataset.begun == 0  # nothing starts before the first next()
    next(batches)
    for _ in range(4):
        assert dataset.arrived.acquire(timeout=60)
    assert dataset.begun == 4
    next(batches)
    assert dataset.arrived.acquire(timeout=60)
    assert dataset.begun == 5


@pytest.mark.parametrize("by", ["threads", "processes", "the process itself", "a DataLoader's worker"])
def test_errors_are_raised_in_place_of_their_batch(valkey, refs, by):
    bad = stored(valkey, [*images(1), tombstone("train/50-1.jpg")], position=50)
    foreign = replace(refs[1], dataset_id=b"x" * 16)
    given, dataset = [refs[0], bad, foreign, refs[3]], bound_dataset()
    if by == "a DataLoader's worker":
        batches = iter(DataLoader(dataset, sampler=given, batch_size=None, num_workers=1, timeout=60))
    else:
        workers = {"processes": 2, "the process itself": 0}.get(by)
        batches = iter(SuperLoader(dataset, given, threads=int(by == "threads"), num_workers=workers))
    check(*next(batches), 0)
    with pytest.raises(BadSampleError, match=r"train/50-1\.jpg"):
        next(batches)
    with pytest.raises(UsageError, match=foreign.dataset_id.hex()):
        next(batches)
    check(*next(batches), 3)
    assert list(batches) == []
    with pytest.raises(StopIteration):
        next(batches)


@pytest.mark.parametrize("threads", [0, 1])
def test_stop_iteration_in_a_transform_does_not_end_the_epoch(threads):
    def transform(item):
        return next(iter(())) if item == 3 else item

    loader = SuperLoader(range(10), range(10), collate_fn=transform, threads=threads, num_workers=2)
    batches = iter(loader)
    assert [next(batches) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(batches)
    assert list(batches) == [*range(4, 10)]


def failing_after(refs, error):
    yield from refs
    raise error from OSError()


class Once:
    """A sampler whose iteration fails."""

    def __init__(self, refs, error):
        self.refs, self.error = refs, error

    def __iter__(self):
        return failing_after(self.refs, self.error)

    def __len__(self):
        return len(self.refs)


@pytest.mark.parametrize("threads", [0, 1])
def test_a_sampler_s_error_follows_its_batches(refs, threads):
    sampler = Once(refs[:2], RuntimeError("no more plan"))
    batches = iter(SuperLoader(bound_dataset(), sampler, threads=threads))
    check(*next(batches), 0)
    check(*next(batches), 1)
    with pytest.raises(RuntimeError, match="no more plan") as caught:
        next(batches)
    assert isinstance(caught.value.__cause__, OSError), "the sampler's cause is lost"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"prefetch": 0}, "prefetch must be an integer"),
        ({"prefetch": True}, "prefetch must be an integer"),
        ({"threads": 1.5}, "threads must be an integer"),
        ({"collate_fn": 3}, "collate_fn must be callable"),
        ({"device": "warp"}, "device='warp' is not available"),
    ],
)
def test_invalid_arguments_are_named(arguments, reason):
    with pytest.raises(ConfigError, match=reason):
        SuperLoader(bound_dataset(), [], **arguments)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_arrive_on_the_gpu(refs):
    kept = list(SuperLoader(bound_dataset(), [*refs] * 20, "cuda"))
    for n, (batch, labels) in enumerate(kept):
        assert batch.device.type == "cuda"
        check(batch.cpu(), labels.cpu(), n % BATCHES)


@pytest.mark.parametrize("threads", [0, 1])
def test_closing_ends_a_loop(refs, threads):
    loader = SuperLoader(bound_dataset(), refs[:3], None, 5, threads=threads)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(UsageError, match="closed"):
        next(batches)


@pytest.mark.parametrize("threads", [0, 1])
def test_a_fork_cannot_continue_a_pass(refs, threads):
    batches = iter(SuperLoader(bound_dataset(), refs[:3], None, 5, threads=threads))
    next(batches)
    child = os.fork()
    if not child:
        status = 1
        try:
            next(batches)
        except UsageError as error:
            status = 0 if "in the process that created it" in str(error) else 2
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert next(batches)[0].shape == (16, 3, 8, 8)


LEFT_IN_MID_EPOCH = """
import torch
from superdl.super_dataset import SuperLoader

class Busy:
    def __getitem__(self, number):
        made = torch.rand(16, 3, 64, 64)
        for _ in range(50):
            made = made * 1.01 + made.mean()
        return made

batches = iter(SuperLoader(Busy(), range(10_000), None, 8, threads={threads}))
for _ in range(2):
    next(batches)
"""


@pytest.mark.parametrize("threads", [0, 3])
def test_a_script_may_exit_mid_epoch(threads):
    script = [sys.executable, "-c", LEFT_IN_MID_EPOCH.format(threads=threads)]
    done = subprocess.run(script, capture_output=True, timeout=100, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")
