"""Records reach the nodes of a real cluster that have their slots, while slots move and nodes die."""

from __future__ import annotations

import signal

import pytest

from superdl.lambda_prefetch import cache_connection, cache_nodes
from superdl.lambda_prefetch.cache_nodes import CacheNodes
from superdl.super_wire.address import Credentials
from superdl.super_wire.cluster import key_slot
from superdl.super_wire.errors import CacheError, CacheUnreachableError, ConfigError
from superdl.super_wire.keys import cache_key

NOBODY = Credentials()
HEADER = b"h" * 64


def a_key(number):
    return cache_key(number.to_bytes(16, "big"))


def records(numbers, payload=b"x"):
    return [(a_key(number), HEADER, memoryview(payload)) for number in numbers]


def keys_at(cluster, node):
    with cluster.nodes[node].client() as client:
        return set(client.keys())


def numbers_of(cluster, node, count):
    """Numbers whose keys the node has."""
    found = (number for number in range(100_000) if cluster.node_of(a_key(number)) is cluster.nodes[node])
    return [next(found) for _ in range(count)]


@pytest.fixture
def nodes(valkey_cluster):
    opened = CacheNodes(valkey_cluster.url, NOBODY)
    yield opened
    opened.close()


def test_a_single_node_gets_everything(either):
    nodes = CacheNodes(either.unix_url, NOBODY)
    assert nodes.store(records(range(50))) == [""] * 50
    with either.client() as client:
        assert client.dbsize() == 50
        assert len(client.client_list()) == 2
    nodes.close()


def test_a_user_that_may_not_ask_for_slots_still_stores_at_a_single_node(valkey):
    with valkey.client() as client:
        client.execute_command("ACL", "SETUSER", "fn", "on", ">word", "+@connection", "+set", "~super:r1:*")
    nodes = CacheNodes(valkey.url, Credentials("fn", "word"))
    assert nodes.store(records([1])) == [""]
    nodes.close()


@pytest.mark.parametrize("url", ["", "redis://", "unix://", "http://127.0.0.1", "redis://h:1/x"])
def test_what_is_no_address(url):
    with pytest.raises(ConfigError, match="address"):
        CacheNodes(url, NOBODY)


def test_credentials_in_an_address_are_refused_and_not_repeated():
    with pytest.raises(ConfigError, match="SUPER_CACHE_PASSWORD") as caught:
        CacheNodes("redis://:hunter2@127.0.0.1:6379", NOBODY)
    assert "hunter2" not in str(caught.value)


def test_each_record_goes_to_the_node_of_its_slot(valkey_cluster, nodes):
    assert nodes.store(records(range(300), b"y" * 5000)) == [""] * 300
    for node in range(3):
        mine = {a_key(n) for n in range(300) if valkey_cluster.owners[key_slot(a_key(n))] == node}
        assert keys_at(valkey_cluster, node) == mine
        with valkey_cluster.nodes[node].client() as client:
            assert client.get(next(iter(mine))) == HEADER + b"y" * 5000


def test_a_slot_that_has_moved_is_followed_and_remembered(valkey_cluster, nodes):
    (number,) = numbers_of(valkey_cluster, 0, 1)
    valkey_cluster.move(key_slot(a_key(number)), 1)
    assert nodes.store(records([number, *range(100)])) == [""] * 101
    assert a_key(number) in keys_at(valkey_cluster, 1)
    assert nodes.node_of(a_key(number)).port == valkey_cluster.nodes[1].port


def test_a_slot_on_its_way_is_asked_for(valkey_cluster, nodes):
    (number,) = numbers_of(valkey_cluster, 0, 1)
    slot = key_slot(a_key(number))
    valkey_cluster.begin_move(slot, 2)
    assert nodes.store(records([number, *range(100)])) == [""] * 101
    assert a_key(number) in keys_at(valkey_cluster, 2)
    assert nodes.node_of(a_key(number)).port == valkey_cluster.nodes[0].port  # still
    valkey_cluster.end_move(slot, 2)


def test_redirections_without_end_are_given_up(valkey_cluster, nodes):
    (number,) = numbers_of(valkey_cluster, 0, 1)
    slot = key_slot(a_key(number))
    # The source says ask the target, which knows of nothing: each sends to the other.
    with valkey_cluster.nodes[0].client() as client:
        client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", valkey_cluster.ids[1])
    other, stored = nodes.store(records([number, *numbers_of(valkey_cluster, 1, 1)]))
    assert other.startswith(("ASK", "MOVED"))
    assert stored == ""


def test_a_node_that_is_down_fails_its_own_records_alone_and_is_not_tried_for_ever(valkey_cluster, nodes):
    nodes.store(records(range(300)))
    valkey_cluster.nodes[1].kill()
    for _ in range(2):
        answers = nodes.store(records(range(200), b"z"))
        for number, answer in enumerate(answers):
            owner = valkey_cluster.owners[key_slot(a_key(number))]
            assert bool(answer) == (owner == 1), (number, answer)
            assert not answer or str(valkey_cluster.nodes[1].port) in answer or "CLUSTERDOWN" in answer
    valkey_cluster.nodes[1].start()
    valkey_cluster.wait_until_ready()
    nodes.renew()
    assert nodes.store(records(range(200))) == [""] * 200


def test_a_node_that_was_restarted_is_met_again_at_once(valkey_cluster, nodes):
    nodes.store(records(range(100)))
    valkey_cluster.nodes[2].restart_empty()
    valkey_cluster.wait_until_ready()
    assert nodes.store(records(range(100))) == [""] * 100
    assert keys_at(valkey_cluster, 2)


@pytest.mark.slow
def test_a_node_that_hangs_holds_up_no_other(valkey_cluster, nodes, monkeypatch):
    nodes.store(records(range(100)))
    for module in (cache_connection, cache_nodes):
        monkeypatch.setattr(module, "EXCHANGE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(cache_connection, "_CONNECT_TIMEOUT_S", 0.3)
    monkeypatch.setattr(cache_nodes, "_MAP_TIMEOUT_S", 0.3)
    monkeypatch.setattr(cache_nodes, "_GRACE_S", 0.3)
    process = valkey_cluster.nodes[0].process
    process.send_signal(signal.SIGSTOP)
    try:
        answers = nodes.store(records(range(100)))
        assert [bool(answer) for answer in answers] == [
            valkey_cluster.owners[key_slot(a_key(n))] == 0 for n in range(100)
        ]
    finally:
        process.send_signal(signal.SIGCONT)


def test_a_cluster_that_is_gone_is_unreachable(valkey_cluster, nodes):
    nodes.store(records(range(100)))
    for node in valkey_cluster.nodes:
        node.kill()
    assert all(nodes.store(records(range(100))))
    with pytest.raises(CacheUnreachableError):
        nodes.store(records(range(100)))


def test_a_user_needs_few_permissions(valkey_cluster):
    rights = [f"+{command}" for command in ["set", "ping", "cluster|slots", "asking"]]
    for node in valkey_cluster.nodes:
        with node.client() as client:
            client.execute_command("ACL", "SETUSER", "fn", "on", ">word", "%W~super:r1:*", *rights)
    (number,) = numbers_of(valkey_cluster, 0, 1)
    valkey_cluster.begin_move(key_slot(a_key(number)), 1)
    nodes = CacheNodes(valkey_cluster.url, Credentials("fn", "word"))
    assert nodes.store(records([number, *range(100)])) == [""] * 101
    nodes.close()


def test_a_cluster_takes_no_database(valkey_cluster):
    with pytest.raises(CacheError, match="SELECT"):
        CacheNodes(valkey_cluster.url + "/3", NOBODY)
