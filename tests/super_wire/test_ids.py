"""Sample ids, batch ids and cache keys."""

import hashlib
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.ids import ID_BYTES, FieldColumns, batch_ids, digest128, sample_ids, split_ids
from superdl.super_wire.keys import cache_key, cache_keys, report_stream
from tests.fixtures.ids import batch_id, sample_id

# Few characters, so that hypothesis meets different fields of one concatenation.
TEXT = st.text("a/:0\0", max_size=6)
SEED = st.integers(-(2**63), 2**63 - 1)
EPOCH = st.integers(0, 2**64 - 1)
RANDOMNESS = st.none() | st.tuples(SEED, EPOCH)
DIGEST = st.binary(max_size=20)


PART = st.tuples(TEXT, TEXT, st.none() | TEXT.filter(bool), TEXT)  # name, key, member, version
PARTED = st.tuples(
    TEXT, TEXT, st.none() | TEXT.filter(bool), TEXT, st.lists(PART, max_size=2), DIGEST, RANDOMNESS
)


def id_with_fields(bucket, key, member, version, parts, digest, randomness):
    fields = [
        FieldColumns(name, [its.encode()], [theirs.encode()], None if inner is None else [inner.encode()])
        for name, its, inner, theirs in parts
    ]
    members = None if member is None else [member.encode()]
    return sample_ids(bucket, [key.encode()], [version.encode()], digest, randomness, members, fields)


@given(PARTED, PARTED)
def test_ids_are_equal_only_if_all_parts_are(first, second):
    assert (id_with_fields(*first) == id_with_fields(*second)) is (first == second)
    bucket, key, member, version, _, digest, randomness = first
    without = id_with_fields(bucket, key, member, version, [], digest, randomness)
    assert without == sample_id(bucket, key, version, digest, randomness, member)


def test_golden_value_of_a_sample_with_fields():
    """Each field is hashed after its length in eight little-endian bytes."""
    found = id_with_fields("s3://b", "k", None, "v", [("mask", "m.tar", "1.png", "w")], b"digest", None)
    fields = (b"s3://b", b"k", b"v", b"mask", b"m.tar", b"1.png", b"w", b"digest")
    by_hand = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
    assert found == hashlib.blake2b(by_hand, digest_size=16).digest()


@given(st.lists(st.tuples(TEXT, TEXT), max_size=8), DIGEST, RANDOMNESS)
def test_ids_of_many_samples_are_those_of_each(samples, digest, randomness):
    many = sample_ids(
        "b",
        [key.encode() for key, _ in samples],
        [version.encode() for _, version in samples],
        digest,
        randomness,
    )
    assert split_ids(many) == [sample_id("b", key, version, digest, randomness) for key, version in samples]


@given(st.lists(st.lists(st.binary(min_size=ID_BYTES, max_size=ID_BYTES), max_size=5), max_size=5))
def test_ids_of_many_batches_are_those_of_each(batches):
    offsets = [0, *accumulate(map(len, batches))]
    ids = b"".join(sample for batch in batches for sample in batch)
    assert batch_ids(ids, offsets) == [digest128(*batch) for batch in batches]


SAMPLE = ("s3://my-bucket", "train/größe/1.jpg", "9b2cf535f27731c974343645a3985328", bytes(range(16)))
GOLDEN = {
    "deterministic": (SAMPLE, "36e8706ba3c4ce09a2f72573dcf53f53"),
    "random": ((*SAMPLE, (-1, 3)), "9d72afae9997aa3a2046af018b1e6308"),
}


def test_golden_values():
    """Never change these: all caches would become worthless."""
    for fields, expected in GOLDEN.values():
        assert sample_id(*fields).hex() == expected
    ids = b"".join(sample_id(*fields) for fields, _ in GOLDEN.values())
    assert batch_id(ids).hex() == "fe2914f26a67d752656da3e7d2f1eb0d"
    assert sample_id(*SAMPLE, member="1/ü.jpg").hex() == "63c789f7e25cf0eb700cae86ee4a0941"
    assert digest128().hex() == "cae66941d9efbd404e4d88758ea67670"


@given(st.binary(min_size=16, max_size=16))
def test_a_cache_key_is_the_prefix_and_the_id_in_hex(sample):
    key = cache_key(sample)
    assert key.decode("ascii") == f"super:r1:{sample.hex()}"  # braces would be a hash tag
    assert cache_keys(sample + sample) == [key, key]
    assert report_stream("job-1") == b"super:n1:{reports}:job-1"
