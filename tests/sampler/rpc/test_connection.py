"""One connection per process and address, open only while it is of use."""

from __future__ import annotations

import threading

import pytest

from superdl.sampler.rpc.client import RUNNING, Client
from superdl.sampler.rpc.connection import CallCutError, checked_address, connection_to
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import host_and_port
from tests.sampler.relay import Relay

REQUEST = pb.GetJobStatsRequest()


@pytest.fixture
def relay(coordinator):
    running = Relay(coordinator.address)
    yield running
    running.close()


def test_a_call_without_a_holder_closes_behind_itself(relay):
    for count in (1, 2):
        connection_to(relay.address).call("GetJobStats", REQUEST, 10.0)
        relay.wait_for(lambda count=count: (relay.opened, relay.open) == (count, 0))


def test_holders_and_threads_share_one(relay):
    clients = [Client(relay.address) for _ in range(6)]
    barrier = threading.Barrier(len(clients))

    def talk(client):
        barrier.wait(30)
        with client.hold():
            for _ in range(20):
                client.call("GetJobStats", REQUEST, RUNNING)

    with clients[0].hold():
        threads = [threading.Thread(target=talk, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert (relay.opened, relay.open) == (1, 1)
    relay.wait_for(lambda: not relay.open)


def test_cut_ends_calls_at_once_and_the_next_one_is_answered(relay, coordinator):
    coordinator.gate.clear()
    coordinator.jobs["j"] = 1
    connection = connection_to(relay.address)
    failures = []

    def wait_for_a_page():
        try:
            connection.call("NextBatches", pb.NextBatchesRequest(job="j", count=1), 60.0)
        except CallCutError as error:
            failures.append(error)

    with connection.hold():
        thread = threading.Thread(target=wait_for_a_page)
        thread.start()
        coordinator.wait_for(lambda: coordinator.count("NextBatches"))
        connection.cut()
        thread.join(30)
        assert not thread.is_alive()
        assert len(failures) == 1
        connection.call("GetJobStats", REQUEST, 10.0)
        assert relay.most_open == 1  # of grpc's own, which a channel of the same arguments may take over


@pytest.mark.parametrize(
    ("written", "taken", "host", "port"),
    [
        ("localhost:50051", "localhost:50051", "localhost", 50051),
        ("[2001:db8::1]:65535", "[2001:db8::1]:65535", "2001:db8::1", 65535),
        ("unix:/tmp/c.sock", "unix:/tmp/c.sock", "", 0),
        ("unix:///tmp/c.sock", "unix:/tmp/c.sock", "", 0),
    ],
)
def test_hosts_and_sockets_are_taken_and_taken_apart(written, taken, host, port):
    assert checked_address(written, "coordinator=") == taken
    assert host_and_port(taken) == (host, port)


@pytest.mark.parametrize(
    "written",
    [
        *("", "localhost", "localhost:", "localhost:0", "localhost:65536", "a b:1", "::1:50051"),
        *("http://a:1", "unix:", "unix:relative.sock", "unix:/", "unix://relative", 50051, None),
    ],
)
def test_other_forms_are_refused_with_the_origin(written):
    with pytest.raises(ConfigError, match="SUPER_COORDINATOR") as caught:
        checked_address(written, "SUPER_COORDINATOR")
    assert repr(written) in str(caught.value)


@pytest.mark.parametrize(
    "written",
    [
        *("user:SECRET@host:50051", "http://SECRET@host:1", "host:1?token=SECRET"),
        *("user:SEC@RET:SECRET@host:1", "https://h/?X-Amz-Signature=SECRET&at=a@b", "unix:SECRET@relative"),
    ],
)
def test_credentials_in_an_address_are_not_repeated(written):
    with pytest.raises(ConfigError, match=r"\*\*\*") as caught:
        checked_address(written, "coordinator=")
    assert "SEC" not in str(caught.value)
