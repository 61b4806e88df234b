"""Records and packs for tests, including hypothesis strategies."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from superdl.super_wire.objects import open_bucket
from superdl.super_wire.record import pack, unpack
from superdl.super_wire.store import PackMeta, bucket_and_prefix, check_record, collection_of, is_bucket
from superdl.super_wire.store.pack import PackInProgress, read_pack_index

META = PackMeta(collection_of("s3://b", b"r" * 16), "s3://b", '[{"op":"decode"}]', "f" * 16, "0.1.0")
METAS = st.builds(
    lambda bucket, recipe, fingerprint: PackMeta(
        collection_of(bucket, recipe.encode()), bucket, recipe, fingerprint, "1"
    ),
    *(st.text(st.characters(exclude_categories=["Cs"])) for _ in range(3)),
)
# Payloads about where their alignment changes, and about a page.
SIZES = st.sampled_from([0, 1, 63, 64, 65, 4031, 4032, 4096, 65535, 65536, 65537, 150_528])
RECORDS = st.lists(SIZES, max_size=8)


def records(sizes, seed=0):
    """Return sample ids, each with an array of the given size."""
    chance = np.random.default_rng(seed)
    return [(chance.bytes(16), chance.integers(0, 256, size, np.uint8)) for size in sizes]


def fill(writer, samples):
    """Write the samples' records. Return their offsets."""
    return [writer.add(sample_id, *pack(array, sample_id)) for sample_id, array in samples]


def in_memory(meta=META):
    """Return a pack in progress, and a list that receives its bytes at the commit."""
    file, written = io.BytesIO(), []
    return PackInProgress("name", file, meta, publish=lambda: written.append(file.getvalue())), written


def pack_bytes(samples, meta=META):
    """Return a complete pack."""
    writing, written = in_memory(meta)
    fill(writing, samples)
    writing.commit()
    assert writing.size == len(written[0])
    return written[0]


def index_of(data):
    """Return the index of a pack in memory."""
    return read_pack_index(lambda offset, length: data[offset : offset + length], len(data))


def intact(store, name, size):
    """Check all records of a pack. Return the payloads by sample id."""
    entries = store.read_index(name, size).entries
    spans = [(int(entry["offset"]), int(entry["bytes"])) for entry in entries]
    found = {}
    for entry, record in zip(entries, store.read_many(name, spans), strict=True):
        sample_id = bytes(entry["id"])
        check_record(record, sample_id)
        found[sample_id] = unpack(record, sample_id=sample_id)[1].tobytes()
    return found


@dataclass(frozen=True)
class Putter:
    """Writes foreign files into a store or its place."""

    address: str

    def __call__(self, name, data):
        if is_bucket(self.address):
            bucket, prefix = bucket_and_prefix(self.address)
            open_bucket(f"s3://{bucket}").put(f"{prefix}/{name}", data)
            return
        path = Path(self.address, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def held(self, name):
        """Return the content of a file."""
        if not is_bucket(self.address):
            return Path(self.address, name).read_bytes()
        bucket, prefix = bucket_and_prefix(self.address)
        return bytes(open_bucket(f"s3://{bucket}").read(f"{prefix}/{name}"))
