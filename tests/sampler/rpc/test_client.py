"""Calls to a coordinator: limited retries, typed errors, and one connection while it is needed."""

import threading
from dataclasses import replace

import grpc
import pytest

from superdl.sampler.rpc.client import RUNNING, Client, Patience, startup_patience
from superdl.sampler.rpc.connection import MAX_MESSAGE_BYTES, checked_address
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import (
    CacheUnreachableError,
    ConfigError,
    CoordinatorError,
    CoordinatorUnreachableError,
    EmbeddedError,
    ProtocolMismatchError,
    SourceForbiddenError,
)
from superdl.super_wire.protocol import host_and_port
from tests.fixtures.ports import free_port
from tests.sampler.relay import Relay
from tests.sampler.stand_ins import BoundDataset

QUICK = Patience(attempts=4, total_s=20.0, deadline_s=5.0, backoff_s=0.001)
REQUEST = pb.GetJobStatsRequest()


def call(address, patience=QUICK, **how):
    return Client(address).call("GetJobStats", REQUEST, patience, **how)


def test_transient_failures_are_retried(coordinator):
    named = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED", "UNKNOWN", "INTERNAL")
    coordinator.script.failures["GetJobStats"] = [grpc.StatusCode[name] for name in named]
    assert call(coordinator.address, replace(QUICK, attempts=7)).cache.budget_bytes == 77
    assert coordinator.count("GetJobStats") == 7


def test_an_oversized_message_fails_at_once(coordinator):
    request = pb.GetJobStatsRequest(jobs=["j" * (MAX_MESSAGE_BYTES + 1)])
    with pytest.raises(CoordinatorError, match="RESOURCE_EXHAUSTED: .*larger than max"):
        Client(coordinator.address).call("GetJobStats", request, QUICK)


def test_creating_a_job_waits_a_limited_time_for_the_coordinator(monkeypatch, caplog):
    monkeypatch.setenv("SUPER_CONNECT_TIMEOUT_S", "2.5")
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(CoordinatorUnreachableError, match="SUPER_CONNECT_TIMEOUT_S"):
        call(address, startup_patience())
    assert f"for the coordinator at {address}" in caplog.text
    monkeypatch.setenv("SUPER_CONNECT_TIMEOUT_S", "soon")
    with pytest.raises(ConfigError, match="SUPER_CONNECT_TIMEOUT_S"):
        startup_patience()


def test_an_error_of_the_coordinator_is_raised_at_once(coordinator):
    coordinator.script.failures["GetJobStats"] = [SourceForbiddenError("not yours")]
    with pytest.raises(SourceForbiddenError, match="not yours"):
        call(coordinator.address)
    assert coordinator.count("GetJobStats") == 1


def test_calls_are_retried_while_the_coordinator_lacks_its_cache(coordinator):
    """The coordinator reconnects to its cache. A lasting error is raised with its own type."""
    lost = CacheUnreachableError("connection reset by peer")
    coordinator.script.failures["GetJobStats"] = [lost, lost]
    assert call(coordinator.address).cache.budget_bytes == 77
    coordinator.script.failures["GetJobStats"] = [lost] * 9
    with pytest.raises(CacheUnreachableError, match="connection reset by peer"):
        call(coordinator.address)
    assert coordinator.count("GetJobStats") == 3 + QUICK.attempts


def test_a_coordinator_that_ignores_classes_is_rejected(coordinator):
    """Labels would silently have the numbers of the listing's own classes."""
    client = Client(coordinator.address)
    assert client.register(BoundDataset(given_classes=("cat", "dog")), "run")[0].ready
    with pytest.raises(ProtocolMismatchError, match="does not support classes="):
        client.register(BoundDataset(given_classes=("dog", "cat")), "run")


def test_a_known_reason_replaces_the_general_error():
    reason = EmbeddedError("the cache server ended")
    client = Client(f"127.0.0.1:{free_port()}", explain=lambda: reason)
    with pytest.raises(EmbeddedError, match="the cache server ended"):
        client.call("GetJobStats", REQUEST, QUICK)


@pytest.fixture
def relay(coordinator):
    running = Relay(coordinator.address)
    yield running
    running.close()


def test_holders_and_threads_share_one_connection(relay):
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


@pytest.mark.parametrize(
    ("written", "taken", "host", "port"),
    [
        ("localhost:50051", "localhost:50051", "localhost", 50051),
        ("[2001:db8::1]:65535", "[2001:db8::1]:65535", "2001:db8::1", 65535),
        ("unix:/tmp/c.sock", "unix:/tmp/c.sock", "", 0),
        ("unix:///tmp/c.sock", "unix:/tmp/c.sock", "", 0),
    ],
)
def test_addresses_are_parsed(written, taken, host, port):
    assert checked_address(written, "coordinator=") == taken
    assert host_and_port(taken) == (host, port)


@pytest.mark.parametrize(
    "written",
    [
        *("", "localhost", "localhost:", "localhost:0", "localhost:65536", "a b:1", "::1:50051"),
        *("http://a:1", "unix:", "unix:relative.sock", "unix:/", "unix://relative", 50051, None),
    ],
)
def test_invalid_addresses_are_rejected_with_their_origin(written):
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
