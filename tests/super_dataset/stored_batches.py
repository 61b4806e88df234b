"""Stand-ins for coordinator and functions: records in a cache, and ``BatchRef`` s that refer to them."""

from dataclasses import replace

import numpy as np

from superdl.super_dataset import SuperDataset
from superdl.super_dataset.memory.handover import shared_bytes
from superdl.super_dataset.reading.buffer import BatchBuffer
from superdl.super_wire import BatchRef, Recipe
from superdl.super_wire.batch_ref import DatasetBinding, Places
from superdl.super_wire.ids import digest128
from superdl.super_wire.keys import cache_key, report_stream
from superdl.super_wire.read_reports import ReadReport
from superdl.super_wire.record import HEADER_BYTES, MAGIC, Tombstone, pack_tombstone
from superdl.super_wire.record_kinds import pack_sample as pack_record
from superdl.super_wire.store import PackMeta
from tests.fixtures.ids import batch_id

DATASET_ID = b"dataset-id-of-16"
JOB = "test-job"


def images(count, side=8, *, seed=0):
    """Random images, uint8 of shape (side, side, 3)."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (side, side, 3), dtype=np.uint8) for _ in range(count)]


NO_ID = bytes(16)
"""Placeholder id: :func:`store` replaces it with the id of the sample under whose key it puts a record."""


def record(array, sample_id=NO_ID, *, fetch_us=0, decode_us=0):
    """A complete record."""
    header, payload = pack_record(array, sample_id, fetch_us=fetch_us, decode_us=decode_us)
    return header + bytes(payload)


def tombstone(key, sample_id=NO_ID, *, permanent=True):
    """A complete tombstone record."""
    return pack_tombstone(Tombstone(key, "undecodable", "cannot identify image file", permanent), sample_id)


def bound_to(sample_id, whole):
    """The record with the id of ``sample_id``, if it has no sample's id yet."""
    of_nobody = whole[:4] == MAGIC and whole[HEADER_BYTES - 8 : HEADER_BYTES] == NO_ID[:8]
    return whole[: HEADER_BYTES - 8] + sample_id[:8] + whole[HEADER_BYTES:] if of_nobody else whole


def ref_of(count, cache, *, position=0, epoch=0, named=True, padding=b""):
    """A batch of samples ``train/<position>-<offset>.jpg`` whose labels are 100, 101, ..."""
    keys = tuple(f"train/{position}-{offset}.jpg" for offset in range(count))
    ids = b"".join(digest128(key.encode()) for key in keys)
    return BatchRef(
        dataset_id=DATASET_ID,
        job=JOB,
        rank=0,
        epoch=epoch,
        position=position,
        batch_id=batch_id(ids),
        sample_ids=ids,
        labels=np.arange(100, 100 + count, dtype="<i8").tobytes(),
        label_dtype="int64",
        padding=padding,
        keys=keys if named else (),
        cache=cache,
    )


def id_at(ref, offset):
    """The id of one sample."""
    return ref.sample_ids[16 * offset : 16 * offset + 16]


def store(valkey, ref, values):
    """SET the batch's records: arrays are packed, bytes are stored as given, except that a record without an
    id gets its sample's, and ``None`` is left missing.
    """
    with valkey.client() as client:
        for offset, value in enumerate(values):
            if value is not None:
                whole = value if isinstance(value, bytes) else record(value)
                client.set(cache_key(id_at(ref, offset)), bound_to(id_at(ref, offset), whole))


def stored(valkey, values, **fields):
    """A batch whose records are in the cache."""
    ref = ref_of(len(values), valkey.unix_url, **fields)
    store(valkey, ref, values)
    return ref


def packed(store, ref, arrays, *, packs=2):
    """The batch with places: its records are dealt out to this many new packs."""
    names, columns = [], np.zeros(len(ref), dtype="<u4,<u8,<u4")
    for number in range(min(packs, len(ref))):
        with store.begin_pack(PackMeta("0123456789abcdef", "s3://bucket", "{}", "f", "v")) as pack:
            for offset in range(number, len(ref), packs):
                header, payload = pack_record(arrays[offset], id_at(ref, offset))
                begin = pack.add(id_at(ref, offset), header, payload)
                columns[offset] = (number + 1, begin, len(header) + len(payload))
            names.append(pack.commit())
    places = Places(tuple(names), *(columns[name].tobytes() for name in columns.dtype.names))
    return replace(ref, store=store.address, places=places)


class SharedMemory:
    """Memory that worker processes share with the trainer."""

    shared = True

    def take(self, size):
        """Allocate torch's own shared memory."""
        return shared_bytes(size)


def received(wholes, *, shared=False, uniform=True, to_hash=None):
    """A buffer filled with these records."""
    buffer = BatchBuffer(len(wholes), memory=SharedMemory() if shared else None, uniform=uniform)
    buffer.to_hash = buffer.to_hash if to_hash is None else to_hash
    for offset, whole in enumerate(wholes):
        receive(buffer, offset, whole)
    return buffer


def receive(buffer, offset, whole):
    """Put a complete record where the network code would put it."""
    incoming = buffer.place(offset, whole[:HEADER_BYTES], len(whole) - HEADER_BYTES)
    incoming.payload[:] = whole[HEADER_BYTES:]
    buffer.note_record(incoming)


def bound_dataset(**arguments):
    """A dataset, bound as by a sampler."""
    dataset = SuperDataset("s3://bucket/train", Recipe.image(resize=8, crop=8), **arguments)
    dataset.bind(DatasetBinding(DATASET_ID, b"fingerprint", 1000, ("cat", "dog"), "int64", "redis://x"))
    return dataset


def reports(valkey, job=JOB):
    """All read reports in the cache."""
    with valkey.client() as client:
        return [ReadReport.from_fields(fields) for _, fields in client.xrange(report_stream(job))]
