"""Asking a real cache, and a real cluster, which samples it has, by headers alone."""

from __future__ import annotations

from contextlib import closing

import pytest

from superdl.super_wire.cache import key_slot
from superdl.super_wire.errors import CacheError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.keys import cache_key, cache_keys, report_stream
from superdl.super_wire.read_report import ReadReport
from superdl.warm.headers import HeaderLink
from tests.super_dataset.stored_batches import JOB, id_at, images, record, ref_of, tombstone

REPORT = ReadReport(0, 0, 3, 10, 9, 0, 0, 0, 0, 1, 0, missed=(4,))


@pytest.fixture
def link(valkey):
    opened = HeaderLink(valkey.unix_url)
    yield opened
    opened.close()


def test_everything_is_told_apart(valkey, link):
    ref = ref_of(7, valkey.unix_url)
    keys = cache_keys(ref.sample_ids)
    whole = record(images(1)[0], id_at(ref, 0))
    with valkey.client() as client:
        client.set(keys[0], whole)
        client.set(keys[1], tombstone("train/0-1.jpg", id_at(ref, 1)))
        client.set(keys[2], b"short")
        client.set(keys[3], b"x" * 200)
        client.rpush(keys[4], "a list")
        client.set(keys[6], whole)  # another sample's
        before = client.info("stats")["total_net_output_bytes"]
    seen = link.look(ref.sample_ids, [0, 1, 2, 3, 4, 5, 6])
    assert seen.present == {0: len(whole)}
    assert seen.tombstones == [1]
    assert sorted(seen.absent) == [2, 3, 4, 5, 6]
    assert sorted(seen.corrupt) == [2, 3, 4, 6]
    assert not seen.trouble
    with valkey.client() as client:
        assert client.info("stats")["total_net_output_bytes"] - before < 12_000  # what INFO takes
    stone = link.tombstone(ref.sample_ids[ID_BYTES : 2 * ID_BYTES])
    assert stone.reason == "undecodable"
    assert link.tombstone(ref.sample_ids[:ID_BYTES]) is None
    assert link.tombstone(bytes(ID_BYTES)) is None


def test_a_cache_that_goes_away_and_comes_back_is_trouble_and_then_none(valkey, link):
    ref = ref_of(2, valkey.unix_url)
    assert link.look(ref.sample_ids, [0, 1]).absent == [0, 1]
    valkey.kill()
    seen = link.look(ref.sample_ids, [0, 1])
    assert "is not to be reached" in seen.trouble or "closed" in seen.trouble
    assert not seen.absent
    link.report(JOB, REPORT)  # lost, which is no harm
    assert link.tombstone(ref.sample_ids[:ID_BYTES]) is None
    valkey.start()
    assert link.look(ref.sample_ids, [0, 1]).absent == [0, 1]


def test_what_is_not_allowed_names_the_right(valkey, link):
    with valkey.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-getrange", "-xadd")
    with pytest.raises(CacheError, match=r"superdl warm needs GETRANGE on super:r1:\*"):
        link.look(bytes(ID_BYTES), [0])
    with pytest.raises(CacheError, match=r"XADD on super:n1:\*"):
        link.report(JOB, REPORT)


def test_all_nodes_of_a_cluster_are_asked_and_moved_slots_are_followed(shared_cluster):
    ref = ref_of(30, shared_cluster.url)
    keys = cache_keys(ref.sample_ids)
    shared_cluster.set({keys[at]: record(images(1)[0], id_at(ref, at)) for at in range(20)})
    slot = key_slot(cache_key(ref.sample_ids[:ID_BYTES]))
    home = shared_cluster.owners[slot]
    with closing(HeaderLink(shared_cluster.url)) as link:
        try:
            for _ in range(2):
                seen = link.look(ref.sample_ids, range(30))
                assert sorted(seen.present) == list(range(20))
                assert sorted(seen.absent) == list(range(20, 30))
                shared_cluster.move(slot, (home + 1) % 3)
        finally:
            shared_cluster.move(slot, home)
        link.report(JOB, REPORT)
    with shared_cluster.node_of(report_stream(JOB)).client() as client:
        ((_, entry),) = client.xrange(report_stream(JOB))
        client.delete(report_stream(JOB))
    assert ReadReport.from_fields(entry) == REPORT
