"""Commands reach the nodes that own their keys, even while slots move and nodes die."""

import contextlib
import signal
import socket
import threading

import pytest

from superdl.super_wire.cache import (
    CacheAddress,
    Command,
    Credentials,
    ErrorReply,
    NodeConnections,
    exchange,
    key_slot,
)
from superdl.super_wire.keys import cache_key
from tests.fixtures.tls_front import TlsFront

NOBODY = Credentials()
HEADER = b"h" * 64


def opened(url, **credentials):
    return NodeConnections(CacheAddress.parse(url), Credentials(**credentials))


def a_key(number):
    return cache_key(number.to_bytes(16, "big"))


def a_set(key, payload):
    """A SET with its payload as a view, as the function sends it."""
    head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b" % (len(key), key, 64 + len(payload), HEADER)
    return Command(key, (head, memoryview(payload), b"\r\n"))


def store(nodes, numbers, payload=b"x", **options):
    """Return an empty string for each acknowledged SET, otherwise the error."""
    answers = exchange(nodes, [a_set(a_key(number), payload) for number in numbers], **options)
    return [
        "" if answer == b"OK" else answer.text if isinstance(answer, ErrorReply) else str(answer)
        for answer in answers
    ]


def keys_at(cluster, node):
    with cluster.nodes[node].client() as client:
        return set(client.keys())


def numbers_of(cluster, node, count):
    """Return numbers whose keys belong to the node."""
    found = (number for number in range(100_000) if cluster.node_of(a_key(number)) is cluster.nodes[node])
    return [next(found) for _ in range(count)]


@pytest.fixture
def nodes(shared_cluster):
    """Connections to a cluster without keys."""
    for node in shared_cluster.nodes:
        with node.client() as client:
            client.flushall()
    made = NodeConnections(CacheAddress.parse(shared_cluster.url), NOBODY)
    yield made
    made.close()


@pytest.fixture
def by_way_of(valkey, certificates):
    """A cache's address and credentials, by transport."""
    with TlsFront(f"{valkey.directory}/redis.sock", certificates) as front:
        yield {
            "unix": (valkey.unix_url, {}),
            "tcp": (valkey.url, {}),
            "tls": (f"rediss://localhost:{front.port}", {"ca_file": certificates.ca_file}),
        }


@pytest.mark.parametrize("way", ["unix", "tcp", "tls"])
def test_records_arrive_unchanged(valkey, by_way_of, way):
    url, credentials = by_way_of[way]
    nodes = opened(url, **credentials)
    payloads = [b"", b"\r\n", b"x" * 5, bytes(range(256)) * 1000, *[b"y" * 50_000] * 600]
    for _ in range(2):
        answers = exchange(nodes, [a_set(b"k%d" % n, payload) for n, payload in enumerate(payloads)])
        assert set(answers) == {b"OK"}
    with valkey.client() as client:
        assert [client.get(f"k{n}") for n in range(len(payloads))] == [HEADER + each for each in payloads]
    nodes.close()


def test_a_refused_command_does_not_affect_others(valkey):
    with valkey.client() as client:
        client.execute_command("ACL", "SETUSER", "fn", "on", ">word", "+@connection", "+set", "~super:r1:*")
    nodes = opened(valkey.url, username="fn", password="word")  # without CLUSTER SLOTS
    refused, stored = exchange(nodes, [a_set(b"other", b"x"), a_set(b"super:r1:1", b"x")])
    assert "NOPERM" in refused.text
    assert stored == b"OK"
    nodes.close()


def test_a_restarted_server_is_reconnected_and_a_dead_one_fails_fast(valkey):
    nodes = opened(valkey.unix_url)
    assert store(nodes, range(3)) == [""] * 3
    valkey.restart_empty()
    assert store(nodes, range(3)) == [""] * 3
    assert not nodes.all_broken
    nodes.renew()
    valkey.kill()
    assert all(valkey.unix_url in why for why in store(nodes, range(3)))
    assert valkey.unix_url in nodes.all_broken
    valkey.start()
    assert all(store(nodes, range(3)))  # not before renew()
    nodes.renew()
    assert store(nodes, range(3)) == [""] * 3
    nodes.close()


def test_a_server_demoted_to_a_replica_is_reconnected(valkey):
    nodes = opened(valkey.url)
    assert store(nodes, [1]) == [""]
    with valkey.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        (why,) = store(nodes, [1])
        assert why.startswith("READONLY")
        assert nodes.was_lost(nodes.home)
        nodes.renew()
        client.execute_command("REPLICAOF", "NO", "ONE")
    assert store(nodes, [1]) == [""]
    nodes.close()


def test_a_silent_cache_fails_after_two_timeouts():
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            for _ in range(2):
                peer, _ = listening.accept()
                with peer, contextlib.suppress(ConnectionError):
                    peer.recv(65536)
                    peer.sendall(b"-ERR This instance has cluster support disabled\r\n")
                    while peer.recv(65536):
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        nodes = opened(f"redis://127.0.0.1:{listening.getsockname()[1]}")
        (why,) = store(nodes, [1], timeout_s=0.2)
        assert "no response for" in why
        assert "no response for" in nodes.all_broken
        nodes.close()
        thread.join(10)


def test_records_follow_their_slots_to_other_nodes(shared_cluster, nodes):
    assert store(nodes, range(300), b"y" * 5000) == [""] * 300
    for node in range(3):
        mine = {a_key(n) for n in range(300) if shared_cluster.owners[key_slot(a_key(n))] == node}
        assert keys_at(shared_cluster, node) == mine
    moved, moving, lost = numbers_of(shared_cluster, 0, 200)[-3:]  # not stored yet
    shared_cluster.move(key_slot(a_key(moved)), 1)
    assert store(nodes, [moved, *range(100)]) == [""] * 101
    assert a_key(moved) in keys_at(shared_cluster, 1)
    assert nodes.node_of(a_key(moved)).port == shared_cluster.nodes[1].port
    slot = key_slot(a_key(moving))
    shared_cluster.begin_move(slot, 2)
    assert store(nodes, [moving, *range(100)]) == [""] * 101
    assert a_key(moving) in keys_at(shared_cluster, 2)
    assert nodes.node_of(a_key(moving)).port == shared_cluster.nodes[0].port
    shared_cluster.end_move(slot, 2)
    # The source redirects to the target, which redirects back, until the exchange gives up.
    with shared_cluster.nodes[0].client() as client:
        slot = key_slot(a_key(lost))
        client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", shared_cluster.ids[1])
    other, stored = store(nodes, [lost, *numbers_of(shared_cluster, 1, 1)])
    assert other.startswith(("ASK", "MOVED"))
    assert stored == ""
    with shared_cluster.nodes[0].client() as client:
        client.execute_command("CLUSTER SETSLOT", slot, "STABLE")


def test_a_dead_node_fails_only_its_own_records(shared_cluster, nodes):
    store(nodes, range(300))
    shared_cluster.nodes[1].kill()
    for _ in range(2):
        answers = store(nodes, range(200), b"z")
        for number, answer in enumerate(answers):
            owner = shared_cluster.owners[key_slot(a_key(number))]
            assert bool(answer) == (owner == 1), (number, answer)
            assert not answer or str(shared_cluster.nodes[1].port) in answer or "CLUSTERDOWN" in answer
    shared_cluster.nodes[1].start()
    shared_cluster.wait_until_ready()
    nodes.renew()
    assert store(nodes, range(200)) == [""] * 200


@pytest.mark.slow
def test_a_hanging_node_does_not_delay_others(shared_cluster, nodes):
    store(nodes, range(100))
    process = shared_cluster.nodes[0].process
    process.send_signal(signal.SIGSTOP)
    try:
        answers = store(nodes, range(100), timeout_s=0.3)
        hanging = [shared_cluster.owners[key_slot(a_key(n))] == 0 for n in range(100)]
        assert [bool(answer) for answer in answers] == hanging
    finally:
        process.send_signal(signal.SIGCONT)
