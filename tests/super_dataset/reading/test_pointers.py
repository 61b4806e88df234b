"""A reader follows the cache's pointers into packs of its store."""

from dataclasses import replace

import numpy as np
import pytest

from superdl.super_dataset.reading.delivery import batch_info, sample_tensors
from superdl.super_wire.record_kinds import Pointer, pack_pointer
from superdl.super_wire.store import DirectoryStore
from tests.super_dataset.reading.test_reader import FakeTime, pixels, reader_at
from tests.super_dataset.stored_batches import (
    id_at,
    images,
    packed,
    record,
    ref_of,
    reports,
    store,
)

SIZE = 12


@pytest.fixture
def packs(tmp_path):
    return DirectoryStore.open(tmp_path / "store", create=True)


def pointers_of(ref):
    """Pointers to a batch's places."""
    names, places = ref.places.packs, ref.places
    pack_of = np.frombuffer(places.pack_of, dtype="<u4")
    begins, lengths = np.frombuffer(places.offsets, dtype="<u8"), np.frombuffer(places.lengths, dtype="<u4")
    return [Pointer(names[pack_of[n] - 1], int(begins[n]), int(lengths[n])) for n in range(len(ref))]


def pointed(valkey, packs, arrays, *, but=None, **fields):
    """A batch without places: its records are in packs, and the cache has pointers to them. ``but`` replaces
    some of the cache's values, by offset.
    """
    placed = packed(packs, ref_of(len(arrays), valkey.unix_url, **fields), arrays)
    wholes = [pack_pointer(place, id_at(placed, n)) for n, place in enumerate(pointers_of(placed))]
    for offset, value in (but or {}).items():
        wholes[offset] = value
    ref = replace(placed, places=None)
    store(valkey, ref, wholes)
    return ref, placed


@pytest.mark.parametrize("side", [8, 150])
def test_pointers_are_followed_into_packs(valkey, packs, side):
    fake, arrays = FakeTime(), images(SIZE, side)
    reader = reader_at(fake)
    for position in range(3):
        ref, _ = pointed(valkey, packs, arrays, position=position)
        read = reader.read(ref)
        assert (read.attempts, read.straight, read.hits, read.missing) == (1, SIZE, 0, [])
        assert np.array_equal(sample_tensors(read.buffer, None).permute(0, 2, 3, 1).numpy(), np.stack(arrays))
        assert read.buffer.block is not None
        assert not read.buffer.own
        info = batch_info(read, None)
        assert (info.straight, info.hits, info.misses) == (SIZE, 0, 0)
        assert info.size_bytes - SIZE * len(record(arrays[0])) == read.size_bytes < SIZE * 160
    report = reports(valkey)[-1]
    assert (report.hits, report.straight, report.missed, report.corrupt) == (SIZE, SIZE, (), ())
    assert reader.link().record_bytes == len(record(arrays[0]))


def test_a_pointer_that_arrives_after_a_miss_counts_as_a_miss(valkey, packs):
    arrays, missed = images(SIZE), {1: None, 2: None}
    ref, placed = pointed(valkey, packs, arrays, but=missed)
    wholes = [pack_pointer(place, id_at(ref, n)) for n, place in enumerate(pointers_of(placed))]
    read = reader_at(FakeTime(lambda: store(valkey, ref, wholes))).read(ref)
    assert (read.attempts, read.straight, read.hits) == (2, SIZE - 2, 0)
    assert batch_info(read, None).misses == 2
    assert np.array_equal(pixels(read), np.stack(arrays))
    first, last = reports(valkey)
    assert (first.missed, first.corrupt, last.hits, last.straight) == ((1, 2), (), SIZE - 2, SIZE - 2)
