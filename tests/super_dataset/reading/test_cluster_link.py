"""Reading from a real cluster: moving slots, failing nodes, reports."""

import os
import signal

import numpy as np
import pytest

from superdl.super_dataset.reading.reader import BatchReader, ReadSettings
from superdl.super_wire.cache import key_slot
from superdl.super_wire.errors import CacheUnreachableError
from superdl.super_wire.keys import cache_key, report_stream
from superdl.super_wire.read_reports import ReadReport
from tests.fixtures.valkey_cluster import MASTERS
from tests.super_dataset.stored_batches import JOB, bound_to, id_at, images, record, ref_of

COUNT = 90


def batch(cluster, arrays, url=None, **fields):
    """A batch with each record at its slot's node; ``None`` is left missing."""
    ref = ref_of(len(arrays), url or cluster.url, **fields)
    put(cluster, ref, arrays)
    return ref


def put(cluster, ref, arrays):
    cluster.set(
        {
            cache_key(id_at(ref, offset)): bound_to(
                id_at(ref, offset), array if isinstance(array, bytes) else record(array)
            )
            for offset, array in enumerate(arrays)
            if array is not None
        }
    )


def slots_of(ref):
    return [key_slot(cache_key(id_at(ref, offset))) for offset in range(len(ref))]


def at_node(cluster, ref, number):
    """The offsets of a batch's samples on one node."""
    return [offset for offset, slot in enumerate(slots_of(ref)) if cluster.owners[slot] == number]


def payloads(read):
    return [bytes(read.buffer.payload(offset)) for offset in range(len(read.ref))]


def as_bytes(arrays):
    return [array.tobytes() for array in arrays]


def counts(cluster, name):
    """An error counter from each node's INFO, such as the number of ``MOVED`` replies."""
    found = []
    for node in cluster.nodes:
        with node.client() as client:
            found.append(client.info("errorstats").get(f"errorstat_{name}", {"count": 0})["count"])
    return found


def reports(cluster, job=JOB):
    with cluster.node_of(report_stream(job)).client() as client:
        return [ReadReport.from_fields(fields) for _, fields in client.xrange(report_stream(job))]


@pytest.mark.parametrize("way", ["url", "unix"])
@pytest.mark.parametrize("in_flight_bytes", [1, 2000, 2**24])
def test_every_sample_is_read_from_its_node(shared_cluster, way, in_flight_bytes):
    arrays = images(COUNT, seed=1)
    url = {"url": shared_cluster.url, "unix": shared_cluster.nodes[1].unix_url}[way]
    ref = batch(shared_cluster, arrays, url)
    assert all(at_node(shared_cluster, ref, number) for number in range(MASTERS))
    before = counts(shared_cluster, "MOVED")
    reader = BatchReader(ReadSettings(verify="all", in_flight_bytes=in_flight_bytes))
    for _ in range(2):
        read = reader.read(ref)
        assert (read.attempts, read.hits) == (1, COUNT)
        assert np.array_equal(read.buffer.block.numpy().reshape(COUNT, 8, 8, 3), np.stack(arrays))
    assert counts(shared_cluster, "MOVED") == before


def test_migrating_slots_are_requested_from_both_nodes(shared_cluster):
    arrays = images(COUNT, seed=4)
    ref = batch(shared_cluster, arrays, position=4)
    reader = BatchReader(ReadSettings(verify="all"))
    reader.read(ref)
    moving = [(offset, slots_of(ref)[offset]) for offset in at_node(shared_cluster, ref, 1)[:8]]
    gone = moving[:5]
    for offset, slot in moving:
        shared_cluster.begin_move(slot, 2)
        if (offset, slot) in gone:
            shared_cluster.move_keys(slot, 2)
    before = counts(shared_cluster, "ASK"), counts(shared_cluster, "MOVED")
    for _ in range(2):
        read = reader.read(ref)
        assert (read.attempts, read.hits, payloads(read)) == (1, COUNT, as_bytes(arrays))
    assert counts(shared_cluster, "ASK")[1] - before[0][1] == 2 * len(gone)  # ASK must not change the map
    assert counts(shared_cluster, "MOVED") == before[1]
    for _, slot in moving:
        shared_cluster.move_keys(slot, 2)
        shared_cluster.end_move(slot, 2)
    assert payloads(reader.read(ref)) == as_bytes(arrays)
    for _, slot in moving:
        shared_cluster.move(slot, 1)


def test_reports_follow_a_moved_stream(shared_cluster):
    arrays = images(8)
    ref = batch(shared_cluster, arrays, position=6)
    reader = BatchReader(ReadSettings())
    with shared_cluster.node_of(report_stream(JOB)).client() as client:
        client.delete(report_stream(JOB))
    reader.read(ref)
    assert len(reports(shared_cluster)) == 1
    slot = key_slot(report_stream(JOB))
    home = shared_cluster.owners[slot]
    shared_cluster.move(slot, (home + 1) % MASTERS)
    for _ in range(4):  # report 1 is refused, read 2 notices, report 3 arrives
        reader.read(batch(shared_cluster, images(COUNT), position=7))
    assert len(reports(shared_cluster)) == 3
    shared_cluster.move(slot, home)


def test_a_hanging_node_does_not_block_the_others(shared_cluster):
    ref = batch(shared_cluster, images(COUNT))
    hanging = shared_cluster.nodes[1]
    lost = at_node(shared_cluster, ref, 1)
    reader = BatchReader(ReadSettings(read_timeout_s=1.0))
    reader.read(ref)
    os.kill(hanging.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(CacheUnreachableError, match=f"{len(lost)} of {COUNT} samples"):
            reader.read(ref)
    finally:
        os.kill(hanging.process.pid, signal.SIGCONT)
    assert reader.read(ref).hits == COUNT


def test_a_failover_is_followed_at_the_next_attempt(valkey_cluster):
    arrays = images(COUNT, seed=11)
    ref = batch(valkey_cluster, arrays)
    reader = BatchReader(ReadSettings(verify="all"))
    reader.read(ref)
    replica = valkey_cluster.add_replica(0)  # of the node in the readers' address
    valkey_cluster.nodes[0].kill()
    with replica.client() as client:
        client.execute_command("CLUSTER FAILOVER TAKEOVER")
        while client.execute_command("ROLE")[0] != b"master":
            pass
    with valkey_cluster.nodes[1].client() as client:  # the reader gets the slot map from this node
        while f"127.0.0.1', {replica.port}" not in str(client.execute_command("CLUSTER SLOTS")):
            pass
    read = reader.read(ref)
    assert (read.attempts, read.hits, payloads(read)) == (2, COUNT, as_bytes(arrays))
