"""The bare loops read every record of a store; dropped pages are no longer in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.image_sets import Loading
from benchmarks.store_arms import BareLoop, ReadSpec, drop_pages, read
from superdl.super_wire.record import payload_hash
from superdl.super_wire.store import DirectoryStore
from tests.super_dataset.stored_batches import images, packed, ref_of

COUNT, EPOCHS = 11, 2


@pytest.fixture(params=[8, 160], ids=["small records", "records on pages"])
def store(request, tmp_path):
    """A store, and the sum of its payloads' hashes."""
    made, arrays = DirectoryStore.open(tmp_path / "store", create=True), images(COUNT, request.param)
    packed(made, ref_of(COUNT, "redis://x"), arrays)
    return made.address, sum(payload_hash(array.tobytes()) for array in arrays)


@pytest.mark.parametrize("batch_size", [1, 4, COUNT + 1])
@pytest.mark.parametrize("how", [{}, {"one_slot": True}, {"cold": True}, {"direct_threads": 3}])
def test_every_record_is_hashed_once_in_an_epoch(store, batch_size, how):
    address, hashes = store
    loading = Loading("", "", COUNT, 0, 0, batch_size)
    spec = ReadSpec("", loading, EPOCHS, store=address, **how)
    try:
        loop = BareLoop(spec)
    except OSError:
        assert "direct_threads" in how
        pytest.skip("this filesystem has no O_DIRECT")
    orders = []
    for _ in range(EPOCHS):
        sums, batches = zip(*loop, strict=True)
        assert sum(sums) == hashes
        orders.append([place for batch in batches for place in batch])
    loop.close()
    assert sorted(orders[0]) == sorted(orders[1])
    assert len(set(orders[0])) == COUNT
    figures = read(spec).epochs
    assert [(one.disk_kb is not None) for one in figures] == EPOCHS * [spec.cold]
    assert all(one.images_per_s > 0 and one.cpu_ms == one.cpu_of_all_ms > 0 for one in figures)


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
