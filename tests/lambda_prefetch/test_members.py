"""Members are read in place: exact bytes, few GETs, and faults of single members."""

import io
import random
import zlib
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.lambda_prefetch.members import MAX_GAP_BYTES, pieces_of
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import Limits
from tests.lambda_prefetch.prefetching import (
    array_of,
    encode,
    fetched,
    file_version,
    member,
    member_request,
    outcomes_of,
    pixels,
    run,
    tombstone_of,
)

MIB = 2**20


@st.composite
def requests(draw):
    """Draw a request for members of two objects, in any order, with gaps of all sizes."""
    rows = []
    for key in ("a", "b"):
        at = 0
        for number in range(draw(st.integers(0, 12))):
            at += draw(st.sampled_from([0, 1, 512, MAX_GAP_BYTES, MAX_GAP_BYTES + 1, 5 * MIB]))
            length = draw(st.sampled_from([1, 1600, MIB, 3 * MIB, 20 * MIB]))
            rows.append(member(key, "v", number, at, length))
            at += length
    rows = draw(st.permutations(rows or [member("a", "v", 0, 0, 1)]))
    return member_request("file:///x", rows, "redis://h:1")


@given(requests(), st.sampled_from([MIB, 4 * MIB, 16 * MIB]))
def test_neighbours_share_a_read_of_limited_size(request_, most_bytes):
    ranges = pieces_of(request_, most_bytes)
    assert sorted(index for members in ranges for index in members.indices) == list(range(len(request_.keys)))
    assert [min(members.indices) for members in ranges] == sorted(min(members.indices) for members in ranges)
    spans = []
    for indices, span in ((members.indices, members.span) for members in ranges):
        begins = [request_.member_offsets[index] for index in indices]
        ends = [request_.member_offsets[index] + request_.member_lengths[index] for index in indices]
        assert (span.begin, span.end) == (begins[0], ends[-1])
        assert all(begin - end <= MAX_GAP_BYTES for begin, end in zip(begins[1:], ends[:-1], strict=True))
        assert len({request_.keys[index] for index in indices}) == 1
        assert span.size_bytes <= most_bytes or len(indices) == 1
        spans.append((request_.keys[indices[0]], *span, ends[0]))
    # Two consecutive ranges are far apart, or would be too large with one more member.
    for (key, begin, end, _), (next_key, next_begin, _, first_end) in pairwise(sorted(spans)):
        apart = key != next_key or next_begin - end > MAX_GAP_BYTES
        assert apart or first_end - begin > most_bytes


def drawn_objects(chance, count=3):
    """Return random objects by key, and rows for their members, without versions."""
    objects, rows = {}, []
    for number in range(count):
        body, key = bytearray(), f"shard-{number}.tar"
        for name in range(chance.randrange(1, 30)):
            body += chance.randbytes(chance.choice([0, 512, 1024, 80_000]))
            content = chance.randbytes(chance.choice([1, 700, 5000, 70_000]))
            if deflated := chance.random() < 0.3:
                packer = zlib.compressobj(wbits=-15)
                content = packer.compress(content) + packer.flush()
            encoding = "deflate" if deflated else ""
            rows.append(member(key, "", f"m/{name}", len(body), len(content), encoding))
            body += content
        objects[key] = bytes(body + chance.randbytes(chance.choice([0, 1024])))
    return objects, rows


@pytest.mark.parametrize("seed", range(3))
def test_every_member_has_its_own_bytes(kept, seed, monkeypatch):
    source, put = kept
    monkeypatch.setenv("SUPER_FETCH_BYTES", str(MIB))
    chance = random.Random(seed)
    objects, rows = drawn_objects(chance)
    versions = {key: put(key, body) for key, body in objects.items()}
    some = [row | {"version": versions[row["key"]]} for row in rows if chance.random() < 0.7] or rows[:0]
    chance.shuffle(some)
    if not some:
        return
    request_ = member_request("file:///x", some, "redis://h:1")
    found, ranges = fetched(request_, source)
    for place, row in enumerate(some):
        raw = objects[row["key"]][row["offset"] : row["offset"] + row["length"]]
        assert found[place] == (zlib.decompress(raw, -15) if row["encoding"] else raw)
    assert ranges == len(pieces_of(request_, MIB // 4))


def test_a_fault_affects_only_its_members(kept):
    source, put = kept
    body = random.Random(1).randbytes(300_000)
    versions = {key: put(key, body) for key in ("cut.tar", "changed.tar", "good.tar")}
    if "-" in versions["good.tar"]:  # of a file
        versions["changed.tar"] = "1-1"
    else:
        put("changed.tar", body[:200_000])
    places = [
        *[("good.tar", 0, 100), ("good.tar", 100, 50), ("good.tar", 299_999, 1)],
        *[("cut.tar", 200_000, 90_000), ("cut.tar", 290_000, 20_000)],  # one range: the second is cut off
        *[("cut.tar", 400_000, 10), ("cut.tar", 300_000, 10)],  # beyond its end
        *[("changed.tar", 0, 100), ("changed.tar", 100, 100), ("gone.tar", 0, 10)],
    ]
    rows = [
        member(key, versions.get(key, "0" * 32), f"m{n}", at, length)
        for n, (key, at, length) in enumerate(places)
    ]
    found, ranges = fetched(member_request("file:///x", rows, "redis://h:1"), source)
    ends = [*["whole"] * 4, *["changed"] * 5, "missing"]
    assert outcomes_of(found) == ends
    assert [found[n] for n in range(4)] == [body[at : at + length] for _, at, length in places[:4]]
    assert "ends at 300000" in found[4].message
    assert ranges <= 4
    assert len({id(found[n]) for n in (7, 8)}) == 2


def test_only_a_member_over_the_limit_is_not_read(kept):
    source, put = kept
    version = put("x.tar", bytes(9000))
    places = [(0, 1000), (1000, 5000), (6000, 1000)]
    rows = [member("x.tar", version, n, *place) for n, place in enumerate(places)]
    found, ranges = fetched(
        member_request("file:///x", rows, "redis://h:1", limits=Limits(object_bytes=4000)), source
    )
    assert [getattr(found[n], "reason", "") for n in range(3)] == ["", "too_large", ""]
    assert ranges == 2


def test_random_steps_depend_on_the_member_and_not_on_the_request(tmp_path, valkey):
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    image = encode(noise, "PNG")  # so large that no two of four places are the same
    (tmp_path / "x.tar").write_bytes(image * 4)
    version = file_version(tmp_path / "x.tar")
    rows = [member("x.tar", version, n, n * len(image), len(image)) for n in range(4)]
    recipe, found = Recipe([{"op": "random_crop", "size": 16}], augment_seed=3), []
    for some in (rows, rows[::-1]):
        request_ = member_request(f"file://{tmp_path.resolve()}", some, valkey.unix_url, recipe, epoch=2)
        assert run(request_).outcomes == ("cached",) * 4
        found.append([array_of(valkey, request_, n).tobytes() for n in range(4)])
    assert found[0] == found[1][::-1]
    assert len(set(found[0])) == 4


def test_a_corrupt_member_becomes_a_tombstone_with_object_and_member(tmp_path, valkey):
    bomb = zlib.compressobj(wbits=-15)
    packed = bomb.compress(bytes(10 * MIB)) + bomb.flush()
    whole = encode(pixels(), "BMP")
    packer = zlib.compressobj(wbits=-15)
    good = packer.compress(whole) + packer.flush()
    spoilt = good[:100] + bytes([good[100] ^ 255]) + good[101:]
    pieces = {"bomb": packed, "spoilt": spoilt, "short": good[:-20], "long": good + b"x", "good": good}
    offsets, body = {}, bytearray()
    for name, piece in pieces.items():
        offsets[name] = len(body)
        body += piece
    (tmp_path / "y.zip").write_bytes(body)
    version = file_version(tmp_path / "y.zip")
    rows = [
        member("y.zip", version, name, offsets[name], len(piece), "deflate") for name, piece in pieces.items()
    ]
    limits = Limits(object_bytes=MIB)
    request_ = member_request(f"file://{tmp_path.resolve()}", rows, valkey.unix_url, limits=limits)
    result = run(request_)
    assert result.outcomes == (*["tombstone"] * 4, "cached")
    tombstones = [tombstone_of(valkey, request_, n) for n in range(4)]
    assert [one.reason for one in tombstones] == ["too_large", *["undecodable"] * 3]
    assert [one.key for one in tombstones] == [f"y.zip::{name}" for name in list(pieces)[:4]]
    assert all(one.permanent for one in tombstones)
    assert f"{tmp_path.resolve()}/y.zip::short: " in result.messages["2"]
    with pytest.raises(ConfigError, match=r"y\.zip::x has the id"):
        run(replace(request_, members=("x",) * 5))


@pytest.mark.parametrize(
    ("status", "told", "size", "outcome"),
    [
        (206, "bytes 10-29/100", 20, "whole"),
        (206, "bytes 10-19/20", 10, "changed"),  # the object ends there
        (200, "", 100, "source_error"),  # it does not know ranges
        (206, "", 20, "source_error"),
        (206, "bytes 11-30/100", 20, "source_error"),
        (206, "bytes 10-28/100", 19, "source_error"),
        (206, "bytes 10-29/100", 19, "source_error"),
        (206, "bytes 10-29/*", 20, "source_error"),
        (416, "bytes */5", 0, "changed"),
        (412, "", 0, "changed"),
        (404, "", 0, "missing"),
    ],
)
def test_a_range_must_be_the_requested_range(s3_server, status, told, size, outcome):
    asked = []

    def answer(request_):
        asked.append(request_.headers["Range"])
        headers = {"ETag": '"e"'} | ({"Content-Range": told} if told else {})
        request_.answer(status, headers, bytes(range(10, 110))[:size])

    rows = [member("x", "e", "m", 10, 20)]
    found, ranges = fetched(member_request("s3://data", rows, "redis://h:1"), s3_server(answer))
    assert outcomes_of(found) == [outcome]
    assert set(asked) == {"bytes=10-29"}
    assert ranges == (1 if outcome == "whole" or size == 10 else 0)


def test_a_shard_may_be_larger_than_the_budget(tmp_path, valkey, monkeypatch):
    monkeypatch.setenv("SUPER_FETCH_BYTES", str(MIB))
    body, rows = io.BytesIO(), []
    for n in range(60):
        content = encode(pixels(100, 200, seed=n), "BMP")
        rows.append(member("x.tar", "", n, body.tell(), len(content)))
        body.write(content)
    (tmp_path / "x.tar").write_bytes(body.getvalue())
    version = file_version(tmp_path / "x.tar")
    request_ = member_request(
        f"file://{tmp_path.resolve()}", [row | {"version": version} for row in rows], valkey.unix_url
    )
    result = run(request_)
    assert result.outcomes == ("cached",) * 60
    assert np.array_equal(array_of(valkey, request_, 59), pixels(100, 200, seed=59))
    assert result.source_requests == 15
