"""The bare loops read every record of a store; dropped pages are no longer in memory."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from benchmarks.harness.arm import ArmSpec, drop_pages, measure_arm
from benchmarks.harness.image_sets import Loading
from benchmarks.harness.processes import held_to
from benchmarks.loaders.bare_loops import PackLoop, open_pack_loop
from benchmarks.loaders.loading import open_in_planned_order
from benchmarks.train import TrainerSpec, warmed
from superdl.super_wire.record import payload_hash
from superdl.super_wire.store import DirectoryStore
from tests.fixtures.images import images
from tests.super_dataset.stored_batches import images as arrays_of
from tests.super_dataset.stored_batches import packed, ref_of

__all__ = ["images"]

COUNT, EPOCHS = 11, 2


@pytest.fixture(params=[8, 160], ids=["small records", "records on pages"])
def store(request, tmp_path):
    """A store, and the sum of its payloads' hashes."""
    made, arrays = DirectoryStore.open(tmp_path / "store", create=True), arrays_of(COUNT, request.param)
    packed(made, ref_of(COUNT, "redis://x"), arrays)
    return made.address, sum(payload_hash(array.tobytes()) for array in arrays)


@pytest.mark.parametrize("batch_size", [1, 4, COUNT + 1])
@pytest.mark.parametrize("how", [{}, {"one_slot": True}, {"ahead": True}])
def test_every_record_is_hashed_once_in_an_epoch(store, batch_size, how):
    address, hashes = store
    loop = PackLoop(batch_size, address, **how)
    orders = []
    for _ in range(EPOCHS):
        sums, batches = zip(*loop, strict=True)
        assert sum(sums) == hashes
        orders.append([place for batch in batches for place in batch])
    loop.close()
    assert sorted(orders[0]) == sorted(orders[1])
    assert len(set(orders[0])) == COUNT


def test_an_arm_measures_each_lap_of_packs_that_no_memory_holds(store):
    address, _ = store
    opening = partial(open_pack_loop, store=address)
    loading = Loading("", "", COUNT, 0, 0, batch_size=4)
    laps = measure_arm(ArmSpec(opening, loading, [1, 2], cold_store=address))
    # A batch of the bare loop has places for labels.
    assert [lap.images for lap in laps] == [COUNT, 2 * COUNT]
    assert laps[0].opening_s > laps[1].opening_s == 0
    assert all(lap.wall_s > lap.first_s > 0 and lap.cpu_of_all_s > 0 for lap in laps)


def test_an_arm_trains_on_each_batch_and_tells_steps_losses_and_waiting(images):
    loading = Loading("images", str(images), 150, 32, 32, batch_size=60)
    spec = TrainerSpec(loading, 2, min(os.sched_getaffinity(0)))
    arm = ArmSpec(open_in_planned_order, loading, [1, 1], checked=True, trainer=partial(warmed, spec))
    with held_to(sorted(os.sched_getaffinity(0))):  # the trainer holds this process to a core
        laps = measure_arm(arm)
    assert [(lap.images, lap.steps, len(lap.losses)) for lap in laps] == [(150, 3, 3)] * 2
    assert all(0 < lap.wait_s < lap.wall_s for lap in laps)
    assert laps[0].losses != laps[1].losses
    assert laps[0].checksum == laps[1].checksum > 0


def test_dropped_pages_are_read_from_the_disk_again(store):
    address, _ = store
    pack = next(Path(address, "packs").iterdir())
    content = pack.read_bytes()
    drop_pages(address)
    with pack.open("rb") as file:
        try:
            assert os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
            pytest.skip("this filesystem keeps files in memory")
        except BlockingIOError:
            assert file.read() == content
        except OSError:
            pytest.skip("this filesystem cannot tell what memory holds")
