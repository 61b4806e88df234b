"""A restore puts into the cache what a function put there before, from intact places of the store alone."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from superdl.super_wire.request import RequestKind
from tests.lambda_prefetch.prefetching import encode, file_request, pixels, raw_record, restore_of, run

SIDES = (10, 200, 37, 150, 64, 171, 22)
KEYS = [f"{n}.png" for n in range(len(SIDES))]
COUNT = len(SIDES)


@pytest.fixture
def written(tmp_path, valkey, store):
    """Two packs of the same samples; request, results and the records as they were in the cache."""
    return write(tmp_path, valkey, store)


@pytest.fixture
def in_directory(tmp_path, valkey, directory_store):
    """As ``written``, in a directory."""
    return write(tmp_path, valkey, directory_store)


def write(tmp_path, valkey, store):
    root = tmp_path / "images"
    root.mkdir()
    for name, side in zip(KEYS, SIDES, strict=True):
        (root / name).write_bytes(encode(pixels(side, side, seed=side)))
    request = file_request(root, KEYS, valkey.unix_url)
    request = replace(request, kind=RequestKind.DECODE_TO_STORE, store=store.address)
    results, records = [], []
    for _ in range(2):
        results.append(run(request))
        records.append([raw_record(valkey, request, n) for n in range(COUNT)])
        assert results[-1].pack
    for name in KEYS:
        (root / name).unlink()
    forget(valkey)
    return request, results, records


def forget(valkey):
    with valkey.client() as client:
        client.flushall()


def restore(written, pack_of=(0,) * COUNT, **changes):
    request, results, _ = written
    used = sorted(set(pack_of))
    packs = [results[place].pack for place in used]
    asked = restore_of(request, packs, [used.index(place) for place in pack_of], [results[n] for n in used])
    return run(replace(asked, **changes))


def assert_restored(valkey, written, result, pack_of=(0,) * COUNT, lost=()):
    """All but ``lost`` are in the cache, byte for byte; of these nothing is."""
    request, _, records = written
    for n, place in enumerate(pack_of):
        if n in lost:
            assert result.outcomes[n] == "not_stored"
            assert "images/" + KEYS[n] in result.messages[str(n)]
            assert raw_record(valkey, request, n) is None
        else:
            assert result.outcomes[n] == "cached", result.messages
            assert raw_record(valkey, request, n) == records[place][n]
    assert set(result.messages) == {str(n) for n in lost}
    assert result.store_trouble == ""


def test_what_was_written_is_restored_byte_for_byte(valkey, store, written):
    _, results, records = written
    for pack_of in ((0,) * COUNT, (0, 1, 0, 1, 1, 1, 0)):
        forget(valkey)
        result = restore(written, pack_of)
        assert_restored(valkey, written, result, pack_of)
        assert result.record_bytes == tuple(map(len, records[0]))
        assert result.decode_us == result.source_bytes == (0,) * COUNT
        assert result.store_bytes == sum(result.record_bytes)
        assert min(result.fetch_us) > 0
        assert (result.pack, result.offsets) == ("", ())
        assert 0 <= result.store_requests <= COUNT
    assert set(store.packs()) == {one.pack for one in results}


def test_s3_is_asked_once_for_neighbours(valkey, s3_store, tmp_path):
    written = write(tmp_path, valkey, s3_store)
    assert restore(written).store_requests == 1


def pack_file(store, result):
    return Path(store.address, "packs", result.pack)


def test_a_flipped_bit_costs_one_sample(valkey, directory_store, in_directory):
    _, results, records = in_directory
    path = pack_file(directory_store, results[0])
    good, places = path.read_bytes(), list(zip(results[0].offsets, map(len, records[0]), strict=True))
    draws = random.Random(7)
    ends = [offset + length for offset, length in places]
    for at in [*(offset for offset, _ in places), *(draws.randrange(max(ends)) for _ in range(40))]:
        spoiled = bytearray(good)
        spoiled[at] ^= 1 << draws.randrange(8)
        path.write_bytes(spoiled)
        forget(valkey)
        result = restore(in_directory)
        hit = {n for n, (offset, length) in enumerate(places) if offset <= at < offset + length}
        # The times in a header are no part of what is checked: any record may tell them.
        lost = {n for n in hit if not 48 <= at - places[n][0] < 56}
        told = hit - lost
        records_then = [records[0], records[1]]
        if told:
            (n,) = told
            offset, length = places[n]
            records_then[0] = [
                *records[0][:n],
                bytes(spoiled[offset : offset + length]),
                *records[0][n + 1 :],
            ]
        assert_restored(valkey, (*in_directory[:2], records_then), result, lost=lost)


def test_a_pack_that_is_cut_off_costs_what_was_behind(valkey, directory_store, in_directory):
    _, results, records = in_directory
    path = pack_file(directory_store, results[0])
    good, draws = path.read_bytes(), random.Random(8)
    ends = [offset + len(record) for offset, record in zip(results[0].offsets, records[0], strict=True)]
    for size in [
        0,
        len(good),
        *ends,
        *(end - 1 for end in ends),
        *(draws.randrange(len(good)) for _ in range(9)),
    ]:
        path.write_bytes(good[:size])
        forget(valkey)
        assert_restored(
            valkey, in_directory, restore(in_directory), lost={n for n in range(COUNT) if ends[n] > size}
        )


def test_a_pack_that_is_gone_costs_its_own_samples(valkey, store, written):
    store.remove(written[1][1].pack)
    pack_of = (0, 1, 0, 1, 1, 0, 0)
    result = restore(written, pack_of)
    assert_restored(valkey, written, result, pack_of, lost={1, 3, 4})


BAD_PLACES = [(0, 64), (10**6, 5000), (2**62, 64), (2**63 - 1, 2**63 - 1), (64, 2**63 - 1), (64, 0), (64, 63)]


def test_places_where_no_record_is(valkey, store, written):
    """No more is read than a record can have, wherever a request points."""
    request, results, _ = written
    good = restore_of(request, [results[0].pack], [0] * COUNT, [results[0]])
    places = [(good.offsets[0] + 64, good.lengths[0]), (good.offsets[1], good.lengths[0]), *BAD_PLACES]
    for at in range(0, len(places), COUNT):
        wrong = places[at : at + COUNT]
        offsets = (*(offset for offset, _ in wrong), *good.offsets[len(wrong) :])
        lengths = (*(length for _, length in wrong), *good.lengths[len(wrong) :])
        forget(valkey)
        result = run(replace(good, offsets=offsets, lengths=lengths))
        assert_restored(valkey, written, result, lost=set(range(len(wrong))))


@pytest.mark.parametrize(
    "name", ["../store.json", "/etc/passwd", "a.pack", "0" * 16 + "-" + "f" * 24 + ".pack"]
)
def test_names_that_no_pack_of_the_store_has(valkey, store, written, name):
    result = restore(written, packs=(name,))
    assert_restored(valkey, written, result, lost=set(range(COUNT)))


def test_another_samples_record_is_not_taken(valkey, directory_store, in_directory):
    request, results, _ = in_directory
    good = restore_of(request, [results[0].pack], [0] * COUNT, [results[0]])
    swap = [1, 0, *range(2, COUNT)]
    offsets, lengths = (tuple(column[n] for n in swap) for column in (good.offsets, good.lengths))
    result = run(replace(good, offsets=offsets, lengths=lengths))
    assert_restored(valkey, in_directory, result, lost={0, 1})


def assert_nothing_restored(result, words):
    assert result.outcomes == ("store_error",) * COUNT
    assert words in result.store_trouble
    assert all(words in result.messages[str(n)] for n in range(COUNT))


def test_a_store_that_does_not_answer(valkey, directory_store, in_directory, tmp_path, monkeypatch):
    Path(directory_store.address).rename(tmp_path / "elsewhere")
    assert_nothing_restored(restore(in_directory), directory_store.address)
    (tmp_path / "elsewhere").rename(directory_store.address)
    for setting in ("", str(tmp_path)):
        monkeypatch.setenv("SUPER_STORE", setting)
        assert_nothing_restored(restore(in_directory), "give the coordinator and its functions the same")
    monkeypatch.setenv("SUPER_STORE", directory_store.address)
    monkeypatch.setenv("SUPER_STORE_READ_ONLY", "1")
    assert_restored(valkey, in_directory, restore(in_directory))


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (0, "")])
def test_s3_that_gives_no_records(valkey, s3_store, tmp_path, spoil_s3, status, code):
    written = write(tmp_path, valkey, s3_store)
    asked = spoil_s3(status, code)
    assert_nothing_restored(restore(written, (0, 1) * 3 + (0,)), code or f"{s3_store.address}/packs/")
    assert 2 <= len(asked) <= 1 + 2 * 3  # a kept connection that was closed is one more


def test_a_pack_that_s3_refuses_is_taken_for_gone(valkey, s3_store, tmp_path, spoil_s3):
    """S3 answers so to who may read and not list."""
    written = write(tmp_path, valkey, s3_store)
    spoil_s3(403, "AccessDenied")
    assert_restored(valkey, written, restore(written), lost=set(range(COUNT)))


def test_what_is_late_or_finds_no_cache_is_told(valkey, directory_store, in_directory):
    assert restore(in_directory, expires_at=1.0).outcomes == ("expired",) * COUNT
    valkey.kill()
    result = restore(in_directory)
    assert set(result.outcomes) == {"cache_error"}
    assert all(valkey.unix_url in words for words in result.messages.values())


def test_more_than_the_room_passes(valkey, directory_store, tmp_path, monkeypatch):
    """Records that are each larger than the room, and many small ones between them, in both directions."""
    monkeypatch.setenv("SUPER_FETCH_BYTES", str(2**20))
    monkeypatch.setenv("SUPER_PUSH_BYTES", str(2**20))
    monkeypatch.setattr(f"{__name__}.SIDES", (1000, 20, 700, 30, 1200, 40, 800))
    written = write(tmp_path, valkey, directory_store)
    assert_restored(valkey, written, restore(written))
