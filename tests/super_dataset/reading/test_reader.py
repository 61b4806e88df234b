"""The retry loop: missing samples arrive later or time out, and the coordinator gets reports."""

import gc
import multiprocessing
import threading
import time

import numpy as np
import pytest

from superdl.super_dataset.reading.reader import BatchReader, ReadSettings
from superdl.super_wire.cache import CacheConnection
from superdl.super_wire.errors import BadSampleError, CacheError, CacheUnreachableError, ReadTimeoutError
from superdl.super_wire.store import DirectoryStore
from tests.fixtures.ports import free_port
from tests.super_dataset.stored_batches import (
    JOB,
    images,
    packed,
    record,
    ref_of,
    reports,
    store,
    stored,
    tombstone,
)


class FakeTime:
    """A clock moved only by sleeping. Each sleep calls the next function of ``during``."""

    def __init__(self, *during):
        self.now_s = 1000.0
        self.slept_s = []
        self.during = list(during)

    def clock(self):
        return self.now_s

    def sleep(self, seconds):
        self.slept_s.append(seconds)
        self.now_s += seconds
        if self.during:
            self.during.pop(0)()


def reader_at(fake, **settings):
    return BatchReader(ReadSettings(**settings), clock=fake.clock, sleep=fake.sleep)


def pixels(read):
    return read.buffer.block.numpy().reshape(len(read.ref), 8, 8, 3)


def test_a_cached_batch_takes_one_attempt_and_one_report(valkey):
    arrays = images(20)
    ref = stored(valkey, arrays, position=3, epoch=2)
    fake = FakeTime()
    reader = reader_at(fake)
    for _ in range(3):
        read = reader.read(ref)
        assert np.array_equal(pixels(read), np.stack(arrays))
        assert (read.attempts, read.hits, read.missing, read.bad) == (1, 20, [], {})
    assert fake.slept_s == []
    left = reports(valkey)
    assert len(left) == 3
    assert (left[0].epoch, left[0].position, left[0].samples, left[0].hits) == (2, 3, 20, 20)
    assert (left[0].done, left[0].attempt, left[0].missed, left[0].corrupt) == (1, 1, (), ())
    assert left[0].size_bytes == 20 * (64 + 192)


def test_requests_in_flight_are_limited(valkey, monkeypatch):
    ref, sent, send = stored(valkey, images(64)), [], CacheConnection.send

    def counted(connection, data):
        sent.append(data.count(b"\r\nGET\r\n"))
        send(connection, data)

    monkeypatch.setattr(CacheConnection, "send", counted)
    reader_at(FakeTime(), in_flight_bytes=10 * 256, record_bytes=256).read(ref)
    assert sum(sent) == 64
    assert max(sent) <= 13  # 10 as predicted; 13 once the 192 bytes of the payload are known


def test_missing_and_corrupt_samples_are_reported_and_requested_again(valkey):
    arrays = images(6)
    good = record(arrays[3])
    ref = stored(valkey, [arrays[0], None, b"garbage", good[:-1] + bytes([good[-1] ^ 1]), None, arrays[5]])
    fake = FakeTime(
        lambda: store(valkey, ref, [None, *arrays[1:4]]),
        lambda: store(valkey, ref, [None] * 4 + [arrays[4]]),
    )
    with valkey.client() as client:
        client.config_resetstat()
        read = reader_at(fake, verify="all").read(ref)
        assert client.info("commandstats")["cmdstat_get"]["calls"] == 6 + 4 + 1
    assert np.array_equal(pixels(read), np.stack(arrays))
    assert (read.attempts, read.hits) == (3, 2)
    assert read.wait_s == pytest.approx(sum(fake.slept_s))
    assert [(r.attempt, r.done, r.missed, r.corrupt, r.hits) for r in reports(valkey)] == [
        (1, 0, (1, 2, 3, 4), (2, 3), 2),
        (2, 0, (4,), (), 2),
        (3, 1, (), (), 2),
    ]


def test_a_missing_pack_is_a_miss_that_is_logged_once(valkey, tmp_path, caplog):
    arrays = images(6)
    pack_store = DirectoryStore.open(tmp_path / "store", create=True)
    refs = [packed(pack_store, ref_of(6, valkey.unix_url, position=n), arrays, packs=3) for n in range(3)]
    fake = FakeTime(*(lambda ref=ref: store(valkey, ref, arrays) for ref in refs))
    reader = reader_at(fake)
    for ref in refs:
        pack_store.remove(ref.places.packs[1])
        read = reader.read(ref)
        assert np.array_equal(pixels(read), np.stack(arrays))
        assert (read.straight, read.attempts) == (4, 2)
    assert [(r.attempt, r.done, r.missed, r.corrupt, r.hits) for r in reports(valkey)] == [
        (1, 0, (1, 4), (), 4),
        (2, 1, (), (), 4),
    ] * 3
    (told,) = (one.getMessage() for one in caplog.records if "from the store" in one.getMessage())
    assert told.startswith(f"2 samples could not be read from the store at {pack_store.address} and ")
    assert "train/0-1.jpg" in told
    assert refs[0].places.packs[1] in told
    assert "No such file" in told


@pytest.mark.parametrize("read_timeout_s", [0.01, 5.0, 120.0])
def test_the_wait_is_bounded_by_time(valkey, read_timeout_s):
    ref = stored(valkey, [*images(2), None, None, None, None])
    fake = FakeTime()
    with pytest.raises(ReadTimeoutError) as caught:
        reader_at(fake, read_timeout_s=read_timeout_s).read(ref)
    # The last attempt starts slightly before the timeout, to leave time for the reply.
    waited_s = sum(fake.slept_s)
    assert waited_s == pytest.approx(read_timeout_s - min(0.25, read_timeout_s / 4))
    assert max(fake.slept_s) <= 1.0
    message = str(caught.value)
    for part in (
        ref.batch_id.hex(),
        "position 0 of epoch 0",
        JOB,
        "4 of 6 samples",
        "train/0-2.jpg, train/0-3.jpg, train/0-4.jpg and 1 more",
        f"after {len(fake.slept_s) + 1} attempts in ",
        valkey.unix_url,
        "Check that the coordinator is running",
    ):
        assert part in message
    last = reports(valkey)[-1]
    assert (last.done, last.missed) == (1, (2, 3, 4, 5))


def test_a_cache_without_memory_is_reported(valkey):
    ref = stored(valkey, [None])
    with valkey.client() as client:
        client.config_set("maxmemory", 1)
    with pytest.raises(ReadTimeoutError, match=r"is out of memory and rejects writes \(OOM\)"):
        reader_at(FakeTime(), read_timeout_s=1.0).read(ref)


@pytest.mark.parametrize("permanent", [True, False])
def test_a_tombstone_ends_the_wait(valkey, permanent):
    ref = stored(valkey, [*images(2), tombstone("train/0-2.jpg", permanent=permanent), None])
    fake = FakeTime()
    with pytest.raises(BadSampleError, match=r"train/0-2\.jpg \(undecodable: cannot identify image file\)"):
        reader_at(fake).read(ref)
    assert fake.slept_s == []
    (report,) = reports(valkey)
    assert (report.done, report.missed) == (1, (3,))


def test_a_cache_restart_during_a_read_only_costs_missing_samples(valkey):
    """The cache dies during the read and comes back empty; the missing samples are produced again."""
    arrays = images(64, 64)
    ref = stored(valkey, arrays)
    looks = []

    def clock():  # called after every receive
        looks.append(None)
        if len(looks) == 12:
            valkey.restart_empty()
        return time.monotonic()

    produced = []

    def sleep(_seconds):
        for report in reports(valkey)[
            -1:
        ]:  # none after the aborted attempt, which had no server to report to
            produced.append(report.missed)
            store(valkey, ref, [a if offset in report.missed else None for offset, a in enumerate(arrays)])

    reader = BatchReader(ReadSettings(in_flight_bytes=40_000), clock=clock, sleep=sleep)
    read = reader.read(ref)
    assert np.array_equal(read.buffer.block.numpy().reshape(64, 64, 64, 3), np.stack(arrays))
    (missed,) = produced
    assert 0 < len(missed) < 64  # those that came before the crash are not requested again
    assert read.hits == 64 - len(missed)
    assert reports(valkey)[-1].done == 1


def test_an_unreachable_cache_is_named(valkey):
    ref = ref_of(3, f"redis://127.0.0.1:{free_port()}")
    fake = FakeTime()
    with pytest.raises(CacheUnreachableError, match=ref.cache) as caught:
        reader_at(fake, read_timeout_s=20.0).read(ref)
    assert sum(fake.slept_s) == pytest.approx(19.75)
    assert f"after {len(fake.slept_s) + 1} attempts in 19.8 s" in str(caught.value)
    assert "refused" in str(caught.value)


def test_a_rejection_is_raised_at_once(valkey, monkeypatch):
    ref = stored(valkey, images(2))
    with valkey.client() as client:
        client.acl_setuser("writer", enabled=True, passwords=["+pass"], keys=["*"], commands=["+set"])
        client.acl_setuser("thief", enabled=True, passwords=["+pass"], keys=["other:*"], commands=["+get"])
    fake = FakeTime()
    for user in ("writer", "thief", "nobody"):
        monkeypatch.setenv("SUPER_CACHE_USERNAME", user)
        monkeypatch.setenv("SUPER_CACHE_PASSWORD", "pass")
        with pytest.raises(CacheError, match=r"NOPERM|WRONGPASS") as caught:
            reader_at(fake).read(ref)
        assert not isinstance(caught.value, CacheUnreachableError)
    assert fake.slept_s == []


def test_an_interrupted_read_does_not_corrupt_the_next_one(valkey):
    """Ctrl-C between replies: the next batch must not get the remaining ones, though they look valid."""
    first, second = (
        np.full((40, 184), n, dtype=np.uint8) for n in (1, 2)
    )  # 256 bytes per reply, 512 per receive
    one, two = stored(valkey, list(first), position=1), stored(valkey, list(second), position=2)
    looks = []

    def clock():  # called three times before the first receive, and after every one
        looks.append(None)
        if len(looks) == 4:
            raise KeyboardInterrupt
        return time.monotonic()

    reader = BatchReader(ReadSettings(record_bytes=248), clock=clock)
    with pytest.raises(KeyboardInterrupt):
        reader.read(one)
    read = reader.read(two)
    assert np.array_equal(read.buffer.block.numpy().reshape(40, 184), second)


def own_id(reader, cache):
    nodes = reader.link().connect(cache, 5.0)
    return nodes.connection(nodes.home).ask(b"CLIENT", b"ID")


def tell_own_ids(reader, cache, pipe):
    pipe.send([own_id(reader, cache), own_id(reader, cache)])
    pipe.close()


def clients(valkey):
    with valkey.client() as client:
        return len(client.client_list()) - 1  # except this one


@pytest.fixture
def reader():
    return BatchReader(ReadSettings(record_bytes=777))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_child_process_opens_its_own_connections(valkey, reader, method):
    mine = own_id(reader, valkey.unix_url)
    context = multiprocessing.get_context(method)
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=tell_own_ids, args=(reader, valkey.unix_url, sending))
    child.start()
    sending.close()
    theirs = receiving.recv()
    child.join()
    assert child.exitcode == 0
    assert theirs[0] == theirs[1] != mine
    assert own_id(reader, valkey.unix_url) == mine


def test_each_thread_has_its_own_connection(valkey, reader):
    mine, theirs = own_id(reader, valkey.unix_url), []
    threads = [
        threading.Thread(target=lambda: theirs.append(own_id(reader, valkey.unix_url))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({mine, *theirs}) == 5
    gc.collect()
    assert clients(valkey) == 1
