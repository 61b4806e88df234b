"""Real DataLoader workers pass batches to this process in reused memory."""

import gc
import multiprocessing
import os
import pickle
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from superdl.super_dataset.memory import handover
from superdl.super_dataset.memory.batch_memory import memory_here
from superdl.super_dataset.memory.handover import WorkerMemory
from superdl.super_wire.errors import SuperError
from tests.super_dataset.stored_batches import bound_dataset, images, stored

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd_create and /proc are Linux's")

SIZE = 16
SIDE = 64  # 196,608 bytes per batch
BLOCK_BYTES = 200_000


def blocks_of_this_process():
    """How many of SUPER's memory blocks this process has open."""
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if "super-batch" in str(entry.readlink()):
                inodes.add(entry.stat().st_ino)
        except FileNotFoundError:  # the descriptor of this listing
            continue
    return len(inodes)


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def with_blocks(batch, labels, info):
    """A transform that adds how many blocks the worker has."""
    return batch, labels, blocks_of_this_process()


def lies_in_a_block(tensor):
    start = tensor.untyped_storage().data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= start < high:
            return "super-batch" in line
    return False


def expected(n):
    return np.stack(images(SIZE, SIDE, seed=n))


def pixels(batch):
    return batch.permute(0, 2, 3, 1).numpy()


@pytest.fixture
def refs(valkey):
    return [stored(valkey, images(SIZE, SIDE, seed=n), position=n) for n in range(30)]


def loader_of(dataset, refs, workers=1, method="fork", **arguments):
    return DataLoader(
        dataset,
        sampler=refs,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=method,
        timeout=60,
        **arguments,
    )


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(other, marks=pytest.mark.slow) for other in ("spawn", "forkserver"))]
)
def test_a_few_blocks_serve_all_batches(refs, method):
    most = 0
    for n, (batch, labels, blocks) in enumerate(
        loader_of(bound_dataset(transform=with_blocks), refs, 2, method)
    ):
        assert lies_in_a_block(batch)
        assert np.array_equal(pixels(batch), expected(n))
        assert labels.tolist() == list(range(100, 100 + SIZE))
        assert not labels.is_shared()
        most = max(most, blocks)
    assert 1 <= most <= 6  # two prefetched, one held here, one being filled, one or two in transit


def test_all_batches_may_be_kept(refs):
    kept = list(loader_of(bound_dataset(), refs))
    assert {lies_in_a_block(batch) for batch, _ in kept} == {True, False}  # there are too few blocks
    gc.collect()
    for n, (batch, _) in enumerate(kept):
        assert np.array_equal(pixels(batch), expected(n))
    del kept, batch
    gc.collect()
    assert blocks_of_this_process() == 0


def test_ragged_batches_are_sent_in_one_block(valkey):
    arrays = [np.full((500 + n, 3), n, dtype=np.float32) for n in range(60)]
    ref = stored(valkey, arrays, position=99)
    before = open_files()
    for batch, _ in loader_of(bound_dataset(), [ref] * 4):
        assert all(np.array_equal(item.numpy(), array) for item, array in zip(batch, arrays, strict=True))
        assert all(lies_in_a_block(item) for item in batch[1:])
        assert open_files() < before + 20  # the loader's own, and one per batch
        del batch


class Giver(Dataset):
    """A dataset that returns filled blocks without a cache."""

    def __getitem__(self, number):
        block = memory_here().take(BLOCK_BYTES)
        block.fill_(number)
        return block


def test_a_fork_of_the_trainer_frees_nothing():
    batches = iter(DataLoader(Giver(), sampler=range(20), batch_size=None, num_workers=1, timeout=60))
    held = next(batches)
    child = os.fork()
    if not child:
        del held
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert [int(block[0]) for block in batches] == list(range(1, 20))
    assert bool((held == 0).all())


def give_one(connection, go_on):
    memory = WorkerMemory()
    block = memory.take(BLOCK_BYTES)
    connection.send_bytes(bytes(ForkingPickler.dumps(block)))
    go_on.recv()
    del block
    connection.send(blocks_of_this_process())
    memory.take(BLOCK_BYTES)
    connection.send(blocks_of_this_process())


def test_a_batch_of_an_exited_worker_names_it():
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    resume, go_on = context.Pipe()
    worker = context.Process(target=give_one, args=(there, go_on), daemon=True)
    worker.start()
    message = here.recv_bytes()
    held = pickle.loads(message)
    resume.send(True)
    assert (here.recv(), here.recv()) == (1, 2)  # one block is held here, so the worker made another
    worker.join()
    assert len(held) == BLOCK_BYTES
    del held
    with pytest.raises(SuperError, match=f"worker {worker.pid} .*exited before"):
        pickle.loads(message)


def test_small_tensors_are_sent_by_value():
    WorkerMemory().take(1)  # registers the pickler
    images = torch.rand(2, 3, 4, 5).to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
    boxes = torch.split(torch.arange(1024), [4, 0] * 128 + [512])
    for tensor in (torch.arange(5), images[1:], torch.empty(0), torch.arange(3).expand(2, 3), *boxes[:3]):
        copied = pickle.loads(bytes(ForkingPickler.dumps(tensor)))
        assert torch.equal(copied, tensor)
        assert (copied.dtype, copied.stride()) == (tensor.dtype, tensor.stride())
    assert not images.is_shared()
    assert len(bytes(ForkingPickler.dumps(torch.zeros(2**20)))) < 2**16
    assert len(bytes(ForkingPickler.dumps(list(boxes)))) < 2**16, "a view of all is not sent as all of them"


def looks_again(held, told, sent):
    told.recv()  # by now the trainer has dropped its own and read on
    sent.send(bool((held.numpy() == 0).all()))  # numpy: torch's threads do not survive a fork


def test_memory_held_by_a_fork_is_never_overwritten():
    batches = iter(DataLoader(Giver(), sampler=range(40), batch_size=None, num_workers=1, timeout=60))
    held = next(batches)
    context = multiprocessing.get_context("fork")
    told, tell = context.Pipe(duplex=False)
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=looks_again, args=(held, told, sending), daemon=True)
    child.start()
    del held
    assert [int(block[0]) for block in batches] == list(range(1, 40))
    tell.send(True)
    assert receiving.poll(60)
    assert receiving.recv()
    child.join()


def check_what_comes(queue, sending):
    sending.send(bool((queue.get().numpy() == 0).all()))


def test_a_batch_passed_on_is_copied():
    batches = iter(DataLoader(Giver(), sampler=range(30), batch_size=None, num_workers=1, timeout=60))
    held = next(batches)
    array = held.numpy()
    context = torch.multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    queue.put(held)  # pickled immediately
    del held
    assert [int(block[0]) for block in batches] == list(range(1, 30))
    assert bool((array == 0).all())
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=check_what_comes, args=(queue, sending), daemon=True)
    child.start()
    assert receiving.poll(60)
    assert receiving.recv()
    child.join()


def refused(*_, **__):
    raise PermissionError(13, "denied")


@pytest.mark.parametrize(
    ("module", "name", "make"),
    [
        (os, "memfd_create", None),  # Python built without it: unnamed file in /dev/shm
        (os, "memfd_create", refused),
        (os, "posix_fallocate", refused),
        (handover, "files_can_be_opened", lambda: False),
    ],
)
def test_batches_arrive_without_system_support(refs, monkeypatch, module, name, make):
    if make is None:
        monkeypatch.delattr(module, name)
    else:
        monkeypatch.setattr(module, name, make)
    for n, (batch, _) in enumerate(loader_of(bound_dataset(), refs[:5])):
        assert np.array_equal(pixels(batch), expected(n))
        assert lies_in_a_block(batch) is False


@pytest.fixture(autouse=True)
def _torch_s_own_pickler():
    """Restore torch's pickler: a worker replaces it, and some tests run as one in this process."""
    yield
    from torch.multiprocessing.reductions import init_reductions

    init_reductions()
