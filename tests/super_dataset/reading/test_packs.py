"""Open packs are limited in number, closed once removed, and not inherited by forks.

``tests/hostile/fuzz_reading.py`` covers the read path over corrupt packs.
"""

import gc
import os
import random
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from superdl.super_dataset.reading.buffer import BatchBuffer
from superdl.super_dataset.reading.packs import OPEN_PACKS, OpenPacks, StoreErrorLog, read_placed
from superdl.super_wire.store import DirectoryStore
from tests.super_dataset.stored_batches import images, packed, ref_of

PACKS = 12
SIZE = 24


@pytest.fixture
def store(tmp_path):
    return DirectoryStore.open(tmp_path / "store", create=True)


@pytest.fixture
def batches(store):
    """Batches with the seeds of their pixels, each in twelve packs."""
    return [
        (packed(store, ref_of(SIZE, "redis://x", position=n), images(SIZE, seed=n), packs=PACKS), n)
        for n in range(6)
    ]


def check(batch, packs):
    ref, seed = batch
    buffer = BatchBuffer(SIZE)
    came, failed = read_placed(ref, buffer, packs)
    assert (sorted(came), failed) == (list(range(SIZE)), {})
    assert np.array_equal(buffer.block.numpy(), np.stack(images(SIZE, seed=seed)).reshape(-1))


def open_files(store):
    """How many files of the store this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += str(link.readlink()).startswith(store.address)
        except FileNotFoundError:  # the descriptor of this listing
            continue
    return found


def test_threads_share_the_limit_on_open_packs(store, batches):
    packs, chosen = OpenPacks(3), random.Random(0).choices(batches, k=200)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, chosen, [packs] * len(chosen)))
    gc.collect()
    assert open_files(store) == 3
    packs = None
    gc.collect()
    assert open_files(store) == 0


def test_removed_packs_are_closed_within_a_minute(store, batches):
    now_s = [100.0]
    packs = OpenPacks(100, clock=lambda: now_s[0])
    (first, _), second = batches[:2]
    check(batches[0], packs)
    check(second, packs)
    for name in first.places.packs:
        store.remove(name)
    check(second, packs)
    assert open_files(store) == 2 * PACKS
    now_s[0] += 61.0
    check(second, packs)
    assert open_files(store) == PACKS


def in_a_fork(work):
    """Run a function in a fork, and return the exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 # printed, and visible in the status
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_keeps_no_pack_open(store, batches):
    check(batches[0], OPEN_PACKS)
    assert open_files(store) == PACKS

    def work():
        assert open_files(store) == 0
        check(batches[0], OPEN_PACKS)

    with OPEN_PACKS._lock:  # as if held by another thread
        assert in_a_fork(work) == 0
    check(batches[0], OPEN_PACKS)
    assert open_files(store) == PACKS


def test_unreadable_samples_are_logged_once_a_minute(caplog):
    now_s = [0.0]
    log, ref = StoreErrorLog(lambda: now_s[0]), ref_of(3, "redis://x")
    failures = {0.0: {1: "gone"}, 1.0: {0: "gone", 2: "cut off"}, 59.0: {0: "gone"}, 60.0: {2: "cut off"}}
    for now_s[0], failed in failures.items():
        log.add(ref, failed)
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("1 sample could not be read")
    assert second.startswith("4 samples could not be read")
    assert second.endswith("train/0-2.jpg (by a pointer): cut off")
