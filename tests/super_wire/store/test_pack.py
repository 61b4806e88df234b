"""Packs and addresses of stores."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given

from superdl.super_wire.errors import ConfigError, RecordVersionError, StoreFormatError
from superdl.super_wire.record import (
    HEADER_BYTES,
    Tombstone,
    pack_tombstone,
    unpack,
)
from superdl.super_wire.record_kinds import Pointer, pack_arrays, pack_pointer
from superdl.super_wire.store import (
    PackMeta,
    bucket_and_prefix,
    check_record,
    collection_of,
    default_directory,
    is_bucket,
    parse_store,
)
from superdl.super_wire.store.pack import (
    read_pack_index,
)
from tests.super_wire.store.packing import (
    METAS,
    RECORDS,
    fill,
    in_memory,
    index_of,
    pack_bytes,
    records,
)

ID = bytes(range(16))


def read_parts(data):
    """Return a reader of a pack, and the list of lengths that it has read."""
    reads = []

    def read(offset, length):
        reads.append(length)
        return data[offset : offset + length]

    return read, reads


@given(METAS, RECORDS)
def test_packs_round_trip(meta, sizes):
    samples, (writer, written) = records(sizes), in_memory(meta)
    offsets = fill(writer, samples)
    writer.commit()
    size, (data,) = writer.size, written
    read, reads = read_parts(data)
    index = read_pack_index(read, size)
    assert (index.meta, len(data), writer.count, len(reads)) == (meta, size, len(samples), 1)
    assert index.entries["offset"].tolist() == offsets
    assert [bytes(sample_id) for sample_id in index.entries["id"]] == [sample_id for sample_id, _ in samples]
    for (sample_id, array), offset in zip(samples, offsets, strict=True):
        record = data[offset : offset + HEADER_BYTES + array.size]
        assert check_record(record, sample_id).payload_bytes == array.size
        assert np.array_equal(unpack(record)[1], array)
        assert (offset + HEADER_BYTES) % (4096 if array.size >= 65536 else 64) == 0


def test_a_long_index_takes_two_reads():
    data = pack_bytes(records([1] * 3000))
    read, reads = read_parts(data)
    assert len(read_pack_index(read, len(data)).entries) == 3000
    assert len(reads) == 2
    assert sum(reads) < 3000 * 32 + 1000


def test_packs_contain_only_data():
    (writer, _), arrays = in_memory(), pack_arrays({"a": np.arange(3)}, ID)
    writer.add(ID, arrays[:HEADER_BYTES], arrays[HEADER_BYTES:])
    check_record(arrays, ID)
    tombstone = pack_tombstone(Tombstone("k", "r", "m", permanent=True), ID)
    for record in (tombstone, pack_pointer(Pointer("p", 0, 64), ID)):
        with pytest.raises(ValueError, match="a pack record needs .* 'data' or 'arrays'"):
            writer.add(ID, record[:HEADER_BYTES], record[HEADER_BYTES:])
        with pytest.raises(RecordVersionError):
            check_record(record, ID)
    assert writer.count == 1


def test_collections_differ_by_bucket_and_recipe():
    cases = [("s3://a", b"b"), ("s3://ab", b""), ("s3://a", b"c"), ("s3://b", b"b")]
    assert len({collection_of(*case) for case in cases}) == 4


def sealed_pack(entries, meta, **changes):
    """Return a pack with any index and a matching hash."""
    body = b"SPAK" + struct.pack("<I", 1) + bytes(56 + 128)
    numbers = {"version": 1, "count": len(entries) // 32, "at": len(body), "meta": len(meta)} | changes
    head = b"SPAK" + struct.pack("<IQQQ", *numbers.values())
    digest = xxhash.xxh3_64_intdigest(entries + meta + head)
    return body + entries + meta + head + digest.to_bytes(8, "little") + bytes(24)


def entry(offset, size):
    return bytes(16) + struct.pack("<QIB3x", offset, size, 1)


META_JSON = json.dumps(dict.fromkeys(PackMeta.__slots__, "x")).encode()


@pytest.mark.parametrize(
    "data",
    [
        sealed_pack(entry(0, 64), META_JSON),  # in the head
        sealed_pack(entry(64, 63), META_JSON),  # shorter than a header
        sealed_pack(entry(128, 65), META_JSON),  # ends in the index
        sealed_pack(entry(2**64 - 64, 128), META_JSON),  # ends beyond 2**64
        sealed_pack(b"", META_JSON, version=2),
        sealed_pack(b"", META_JSON, count=2**59),
        sealed_pack(b"", META_JSON, at=2**64 - 1),
        sealed_pack(b"", META_JSON.replace(b'"x"', b'"\\ud800"', 1)),
        sealed_pack(b"", META_JSON.replace(b'"x"', b"1", 1)),
        *(sealed_pack(b"", meta) for meta in (b"{}", b"[" * 90_000, b"\xff")),
    ],
)
def test_an_invalid_index_with_a_valid_hash_is_refused(data):
    assert len(index_of(sealed_pack(entry(64, 64) + entry(128, 64), META_JSON)).entries) == 2
    with pytest.raises(StoreFormatError):
        index_of(data)


@pytest.mark.parametrize(
    ("text", "address", "parts"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b", ("bucket", "a/b")),
        ("s3://bucket/a/b/", "s3://bucket/a/b", ("bucket", "a/b")),
        ("s3://bucket", "s3://bucket", ("bucket", "")),
        ("s3://bucket/", "s3://bucket", ("bucket", "")),
    ],
)
def test_an_s3_address_has_one_normal_form(text, address, parts):
    assert parse_store(text) == address
    assert parse_store(address) == address
    assert is_bucket(address)
    assert bucket_and_prefix(address) == parts


def test_a_directory_has_one_normal_form(tmp_path, monkeypatch):
    real = tmp_path.resolve() / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in ("real", "./real/", "link", "~/real", "real/../link", str(real)):
        assert parse_store(text) == str(real)
    assert not is_bucket(str(real))


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "a\0b", "s3://", "s3://b", "s3://-b/x", "s3:///x", "s3://bucket/../x", "s3://bucket/a//b",
        "s3://bucket/./a", "http://host/x", "file:///x", "gs://bucket/x", "S3://bucket/x",
        "~nobody-has-this-name/store", "caf\udce9",
    ],
)  # fmt: skip
def test_invalid_addresses_are_refused(text):
    with pytest.raises(ConfigError, match=r"a store must be a directory or s3://bucket/prefix"):
        parse_store(text)


@pytest.mark.parametrize("text", ["s3://key:secret@bucket/x", "https://key:secret@host/x"])
def test_credentials_in_an_address_are_refused_and_not_repeated(text):
    with pytest.raises(ConfigError) as refused:
        parse_store(text)
    assert "secret" not in str(refused.value)


def test_the_default_is_in_the_users_cache_directory(tmp_path):
    assert default_directory({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/superdl/store")
    assert default_directory({"XDG_CACHE_HOME": "c", "HOME": "/h"}) == Path("/h/.cache/superdl/store")
    assert default_directory({"HOME": "/h"}) == Path("/h/.cache/superdl/store")
    assert default_directory({}) == Path.home() / ".cache/superdl/store"
