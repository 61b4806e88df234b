"""The read path over a scripted cache with random, truncated and corrupt replies, compared with a model.

The model has the bytes of each sample. Whatever the cache replies, a batch has these bytes, or a sample is
bad because of its own tombstone, or a typed error ends the read within its time limit. If the stream is
intact, the reader retries only samples whose last reply was bad. Samples in packs are requested only if their
pack is missing, truncated or corrupt, or if the cache has pointers to them.
"""

import tempfile
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import numpy as np

from superdl.super_dataset.reading.delivery import sample_tensors
from superdl.super_dataset.reading.reader import BatchReader, ReadSettings
from superdl.super_wire.cache import CacheAddress, Credentials, NodeConnections
from superdl.super_wire.errors import (
    BadSampleError,
    CacheError,
    CacheUnreachableError,
    ReadTimeoutError,
)
from superdl.super_wire.ids import digest128
from superdl.super_wire.keys import cache_key
from superdl.super_wire.record import HEADER_BYTES
from superdl.super_wire.record_kinds import Pointer, pack_pointer
from superdl.super_wire.store import DirectoryStore
from tests.hostile.scripted_packs import ScriptedDisk, ScriptedPacks, flipped, pixels_of, record_of, replaced
from tests.super_dataset.stored_batches import id_at, ref_of, tombstone

_SIDE = 6
_TIMEOUT_S = 60.0
_MOST_BATCHES = 4

_BROKEN = {
    "bad magic": lambda _rng, good: b"RDB!" + good[4:],
    "other version": lambda _rng, good: replaced(good, 4, b"\1"),
    "empty": lambda _rng, _good: b"",
    "one byte": lambda rng, _good: bytes([rng.randrange(256)]),
    "one byte of payload": lambda _rng, good: good[: HEADER_BYTES + 1],
    "too short": lambda rng, good: good[: rng.randrange(len(good))],
    "too long": lambda rng, good: good + rng.randbytes(rng.randrange(1, 40)),
    "payload flipped": lambda rng, good: flipped(rng, good, HEADER_BYTES),
    "payload of another": lambda rng, good: good[:HEADER_BYTES] + rng.randbytes(len(good) - HEADER_BYTES),
    "another's": lambda rng, good: record_of(digest128(rng.randbytes(4)), 6 if len(good) > 100 else 4),
    "another's tombstone": lambda rng, _good: tombstone("other.jpg", digest128(rng.randbytes(4))),
    "pointer": lambda _rng, good: pack_pointer(Pointer("pack", 0, 64), good[56:64] + bytes(8)),
    "noise": lambda rng, good: rng.randbytes(len(good)),
}


_ERRORS = (b"-LOADING wait\r\n", b"-WRONGTYPE no\r\n", b"-TRYAGAIN later\r\n", b"-ERR Protocol error\r\n")


class ScriptedCache:
    """A cache that replies to GETs with valid and broken records, with ``stream_faults`` in a broken stream.

    ``wrong`` is the probability of a wrong reply.
    """

    def __init__(self, rng, keys, side, *, stream_faults):
        self.rng = rng
        self.sample_ids = keys
        self.side = side
        self.stream_faults = stream_faults
        self.wrong = rng.choice([0.0, 0.05, 0.3, 0.9])
        self.last_good = {}
        self.pointers = {}
        """By key, a pointer that replaces the record until it is retried, and whether its target is valid."""
        self.entombed = set()
        self.connections = 0

    def answer(self, key):
        """Return the reply to one GET, before stream faults."""
        rng, sample_id = self.rng, self.sample_ids[key]
        good = record_of(sample_id, self.side)
        assert self.stream_faults or not self.last_good.get(key), "requested a sample again that had come"
        self.last_good[key] = False
        draw = rng.random()
        if draw >= self.wrong and key in self.pointers:
            whole, self.last_good[key] = self.pointers.pop(key)
            return _bulk(whole)
        if draw >= self.wrong:
            self.last_good[key] = True
            return _bulk(good)
        if draw < 0.15 * self.wrong:
            return b"$-1\r\n"
        if draw < 0.2 * self.wrong:
            return rng.choice(_ERRORS)
        if draw < 0.203 * self.wrong:
            self.entombed.add(sample_id)
            return _bulk(tombstone("its.jpg", sample_id))
        return _bulk(rng.choice(list(_BROKEN.values()))(rng, good))

    def stream(self, keys):
        """Return the replies to several GETs as bytes."""
        rng, replies = self.rng, [self.answer(key) for key in keys]
        if self.stream_faults and replies and rng.random() < self.wrong:
            at = rng.randrange(len(replies))
            fault = rng.randrange(4)
            if fault == 0:
                del replies[at]
            elif fault == 1:
                replies.insert(at, replies[rng.randrange(len(replies))])
            elif fault == 2:
                rng.shuffle(replies)
            else:
                replies[at] = flipped(rng, replies[at])
        return b"".join(replies)


def _bulk(value):
    return b"$%d\r\n%b\r\n" % (len(value), value)


class ScriptedConnection:
    """Stand in for a ``CacheConnection`` in a gather, without a socket."""

    address = "the scripted cache"

    def __init__(self, cache):
        self.owed = 0
        self.late_errors = []
        self._cache = cache
        self._waiting = bytearray()
        self._piece = cache.rng.choice([3, 60, 1000, 100_000])
        cache.connections += 1

    @property
    def pending(self):
        """Always false: without a socket, nothing arrives unannounced."""
        return False

    def send(self, data):
        """Answer GETs or a read report."""
        words = data.split(b"\r\n")
        keys = [word for word in words if word in self._cache.sample_ids]
        self._waiting += self._cache.stream(keys) if keys else _bulk(b"1-1")  # a read report

    def send_gathered(self, buffers, until_s):
        """Ignore a GET of the notes on the dataset's source."""

    def replies(self, count, until_s):
        """No note, another source's record, or noise."""
        rng = self._cache.rng
        notes = [None, tombstone("its source", digest128(rng.randbytes(4))), rng.randbytes(70)]
        return [rng.choice(notes) for _ in range(count)]

    def limit_wait(self, seconds):
        """Do nothing: this connection never blocks."""

    def close(self):
        """Do nothing: there is no socket."""

    def receive(self, buffers, *, once=False):
        """Deliver pending bytes in pieces. Raise if nothing is pending."""
        rng = self._cache.rng
        if not self._waiting or (self._cache.stream_faults and rng.random() < 0.02 * self._cache.wrong):
            raise CacheUnreachableError("the scripted cache hung up")
        left = count = min(len(self._waiting), rng.randint(1, self._piece), sum(map(len, buffers)))
        for view in buffers:
            taken = min(left, len(view))
            view[:taken] = self._waiting[:taken]
            del self._waiting[:taken]
            left -= taken
            if not left:
                break
        return count


class ScriptedNodes(NodeConnections):
    """A single node with scripted connections. A failed connection is replaced by a new one."""

    def __init__(self, cache):
        super().__init__(CacheAddress.parse("redis://127.0.0.1:1"), Credentials())
        self._cache = cache

    def connect(self, timeout_s=0.0):
        """Open the connection; there is no cluster map to load."""
        self.connection(self.home)

    def refresh(self, timeout_s, *, first=None):
        """Do nothing: this is no cluster."""

    def _connect(self, address, timeout_s):
        return ScriptedConnection(self._cache)


class ClockThatSleeps:
    """A clock moved only by sleeping, and slightly by each reading."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        self.now_s += 1e-4
        return self.now_s

    def sleep(self, seconds):
        """Advance the clock."""
        self.now_s += seconds


def _read_with_packs(rng):
    with tempfile.TemporaryDirectory() as directory, patch("os.preadv", ScriptedDisk(rng).preadv):
        store = DirectoryStore.open(directory, create=True)
        _read(rng, stream_faults=rng.random() < 0.2, store=store)


def _read(rng, *, stream_faults, store=None):
    """Read one to four batches with one reader, and compare the results with the model."""
    side, clock = rng.choice([_SIDE, 4]), ClockThatSleeps()
    settings = ReadSettings(
        read_timeout_s=_TIMEOUT_S,
        verify=rng.choice(["auto", "all"]),
        in_flight_bytes=rng.choice([1, 1000, 2**20]),
        record_bytes=rng.choice([None, HEADER_BYTES + side * side * 3]),
        stop_at_bad=rng.random() < 0.5,
    )
    scripted = []
    reader = BatchReader(
        settings,
        clock=clock,
        sleep=clock.sleep,
        open_nodes=lambda _address, _credentials: ScriptedNodes(scripted[-1]),
    )
    for position in range(rng.randint(1, _MOST_BATCHES)):
        ref = ref_of(rng.randint(1, 40), "redis://127.0.0.1:1", position=rng.randrange(10**6))
        ids = [id_at(ref, offset) for offset in range(len(ref))]
        scripted.append(
            ScriptedCache(rng, {cache_key(each): each for each in ids}, side, stream_faults=stream_faults)
        )
        packs = None if store is None else ScriptedPacks(rng, store, ref, side)
        if packs is not None:
            ref = packs.ref
        if packs is not None and rng.random() < 0.5:
            scripted[-1].pointers, ref = packs.pointers(), replace(ref, places=None)
        elif packs is not None:
            scripted[-1].last_good = {cache_key(ids[offset]): True for offset in packs.good}
        reader.link().drop()  # it followed the previous batch's script
        began_s = clock.now_s
        try:
            read = reader.read(ref)
        except BadSampleError:
            assert scripted[-1].entombed, f"batch {position}: bad without a tombstone"
            continue
        except (ReadTimeoutError, CacheError):
            assert scripted[-1].wrong, f"batch {position}: failed without a fault"
            continue
        finally:
            assert clock.now_s - began_s < _TIMEOUT_S + 1, "the read exceeded its time limit"
        straight = len(packs.good) if packs is not None else 0
        assert read.straight == straight or (ref.places is None and read.straight < straight)
        bad = {ids[offset] for offset in read.bad}
        assert bad <= scripted[-1].entombed, "bad without a tombstone"
        order = [offset for offset in range(len(ref)) if offset not in read.bad]
        if order:
            images = sample_tensors(read.buffer, order if bad else None)
            for image, offset in zip(images, order, strict=True):
                right = pixels_of(ids[offset], side)
                assert np.array_equal(image.permute(1, 2, 0).numpy(), right), f"sample {offset}: wrong bytes"


FUZZERS = {
    "reading: wrong records": partial(_read, stream_faults=False),
    "reading: wrong streams": partial(_read, stream_faults=True),
    "reading: packs": _read_with_packs,
}
