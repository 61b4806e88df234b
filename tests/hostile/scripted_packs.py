"""Packs for the read path's fuzzer, whole or damaged, and a disk that sometimes fails."""

import contextlib
import errno
import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from superdl.super_wire.batch_ref import Places
from superdl.super_wire.errors import (
    RecordError,
)
from superdl.super_wire.ids import digest128
from superdl.super_wire.keys import cache_key
from superdl.super_wire.record import HEADER_BYTES
from superdl.super_wire.record_kinds import Pointer, pack_pointer
from superdl.super_wire.store import PackMeta
from superdl.super_wire.store.pack import new_pack_name
from tests.super_dataset.stored_batches import id_at, record


@cache
def pixels_of(sample_id, side):
    """Return the pixels of a sample."""
    rng = np.random.default_rng(int.from_bytes(sample_id, "little"))
    return rng.integers(0, 256, (side, side, 3), dtype=np.uint8)


@cache
def record_of(sample_id, side):
    """Return the record of a sample."""
    return record(pixels_of(sample_id, side), sample_id, fetch_us=sample_id[0], decode_us=sample_id[1])


def replaced(whole, at, new):
    return whole[:at] + new + whole[at + len(new) :]


def flipped(rng, whole, first=0):
    at = rng.randrange(first, len(whole))
    return replaced(whole, at, bytes([whole[at] ^ (1 << rng.randrange(8))]))


_TIMES = range(48, 56)  # header bytes that no checksum covers
_COLLECTION = "0123456789abcdef"


def _flipped_somewhere(rng, good):
    at = rng.choice([at for at in range(len(good)) if at not in _TIMES])
    return replaced(good, at, bytes([good[at] ^ (1 << rng.randrange(8))]))


class ScriptedPacks:
    """Write records of a batch to packs of a real store, and corrupt some. ``good``: offsets of the rest."""

    def __init__(self, rng, store, ref, side):
        self.good = set()
        self._rng = rng
        self._store = store
        self._wrong = rng.choice([0.0, 0.05, 0.5])
        size, share = len(ref), rng.choice([0.3, 0.9, 1.0])
        self._pack_of, self._offsets = np.zeros(size, dtype="<u4"), np.zeros(size, dtype="<u8")
        self._lengths = np.zeros(size, dtype="<u4")
        self._names = []
        offsets = [offset for offset in range(size) if rng.random() < share]
        rng.shuffle(offsets)
        while offsets:
            taken = rng.randint(1, len(offsets))
            self._write([(offset, id_at(ref, offset)) for offset in offsets[:taken]], side)
            del offsets[:taken]
        columns = (column.tobytes() for column in (self._pack_of, self._offsets, self._lengths))
        self.ref = replace(ref, store=store.address, places=Places(tuple(self._names), *columns))

    def pointers(self):
        """Return pointers to the same places by key, if they can be expressed, and whether each is valid."""
        pointers = {}
        for offset in np.flatnonzero(self._pack_of).tolist():
            sample_id = id_at(self.ref, offset)
            with contextlib.suppress(RecordError, IndexError):
                name = self._names[self._pack_of[offset] - 1]
                place = Pointer(name, int(self._offsets[offset]), int(self._lengths[offset]))
                pointers[cache_key(sample_id)] = pack_pointer(place, sample_id), offset in self.good
        return pointers

    def _write(self, samples, side):
        """Write one pack, then corrupt some of it."""
        rng = self._rng
        with self._store.begin_pack(PackMeta(_COLLECTION, "s3://bucket", "{}", "f", "v")) as pack:
            for offset, sample_id in samples:
                whole = record_of(sample_id, side)
                place = pack.add(sample_id, whole[:HEADER_BYTES], whole[HEADER_BYTES:])
                self._pack_of[offset] = len(self._names) + 1
                self._offsets[offset], self._lengths[offset] = place, len(whole)
            self._names.append(pack.commit())
        path = Path(self._store.address, "packs", self._names[-1])
        self.good.update(offset for offset, _ in samples)
        for offset, sample_id in samples:
            if rng.random() < self._wrong:
                self.good.discard(offset)
                self._spoil(path, offset, record_of(sample_id, side), side)
        if rng.random() < self._wrong:
            self.good.difference_update(offset for offset, _ in samples)
            if rng.random() < 0.5:
                path.unlink()
            else:
                self._names[-1] = rng.choice([new_pack_name(_COLLECTION), "../store.json", ""])
        elif rng.random() < self._wrong:
            cut = rng.randrange(path.stat().st_size)
            os.truncate(path, cut)
            ends = {offset: int(self._offsets[offset]) + int(self._lengths[offset]) for offset, _ in samples}
            self.good.difference_update(offset for offset, end in ends.items() if end > cut)

    def _spoil(self, path, offset, good, side):
        """Replace the record at a place, or change the place."""
        rng, begin = self._rng, int(self._offsets[offset])
        fault = rng.randrange(6)
        if fault == 0:
            self._offsets[offset] = rng.choice([begin + 1, begin + 64, 2**62, 2**63, 2**64 - 1, 0])
        elif fault == 1:
            self._lengths[offset] = rng.choice([0, 1, 63, 64, len(good) - 1, len(good) + 1, 2**32 - 1])
        elif fault == 2:
            self._pack_of[offset] = rng.choice([99, 2**32 - 1])
        else:
            another = record_of(digest128(rng.randbytes(4)), side)
            new = rng.choice([_flipped_somewhere(rng, good), another, bytes(len(good))])
            with path.open("r+b") as file:
                file.seek(begin)
                file.write(new)


class ScriptedDisk:
    """Non-blocking reads find none, some or all of the data in memory, or are unsupported."""

    def __init__(self, rng):
        self._rng = rng
        self._cold = rng.choice([0.0, 0.3, 1.0])
        self._cannot_tell = rng.random() < 0.2
        self._preadv = os.preadv

    def preadv(self, file, buffers, offset, flags=0):
        """Behave as ``os.preadv``."""
        if flags and self._cannot_tell:
            raise OSError(errno.EOPNOTSUPP, "not supported")
        if flags and self._rng.random() < self._cold:
            if self._rng.random() < 0.5:
                raise BlockingIOError(errno.EAGAIN, "it is on the disk")
            return self._preadv(file, buffers[:1], offset)
        return self._preadv(file, buffers, offset)
