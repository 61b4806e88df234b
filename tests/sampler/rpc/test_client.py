"""Calls to a coordinator: bounded tries, failures by type, one connection that is open only while of use."""

import threading
from dataclasses import replace

import grpc
import pytest

from superdl.sampler.rpc.client import RUNNING, CallStoppedError, Client, Patience, startup_patience
from superdl.sampler.rpc.connection import MAX_MESSAGE_BYTES, CallCutError, checked_address, connection_to
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import (
    CacheUnreachableError,
    ConfigError,
    CoordinatorError,
    CoordinatorUnreachableError,
    EmbeddedError,
    SourceForbiddenError,
)
from superdl.super_wire.protocol import host_and_port
from tests.fixtures.ports import free_port
from tests.sampler.relay import Relay

QUICK = Patience(attempts=4, total_s=20.0, deadline_s=5.0, backoff_s=0.001)
REQUEST = pb.GetJobStatsRequest()


def call(address, patience=QUICK, **how):
    return Client(address).call("GetJobStats", REQUEST, patience, **how)


def test_passing_failures_are_tried_again(coordinator):
    named = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED", "UNKNOWN", "INTERNAL")
    coordinator.script.failures["GetJobStats"] = [grpc.StatusCode[name] for name in named]
    assert call(coordinator.address, replace(QUICK, attempts=7)).cache.budget_bytes == 77
    assert coordinator.count("GetJobStats") == 7


def test_a_message_that_is_too_large_is_told_at_once(coordinator):
    request = pb.GetJobStatsRequest(jobs=["j" * (MAX_MESSAGE_BYTES + 1)])
    with pytest.raises(CoordinatorError, match="RESOURCE_EXHAUSTED: .*larger than max"):
        Client(coordinator.address).call("GetJobStats", request, QUICK)


def test_time_is_bounded_too():
    patience = Patience(attempts=10**9, total_s=0.2, deadline_s=5.0, backoff_s=0.05, backoff_max_s=0.05)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(CoordinatorUnreachableError, match=address):
        call(address, patience)  # a billion attempts would outlast pytest's own limit


def test_a_job_says_what_it_waits_for_and_for_how_long(monkeypatch, caplog):
    monkeypatch.setenv("SUPER_CONNECT_TIMEOUT_S", "2.5")
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(CoordinatorUnreachableError, match="SUPER_CONNECT_TIMEOUT_S"):
        call(address, startup_patience())
    assert f"waiting for the coordinator at {address}" in caplog.text
    monkeypatch.setenv("SUPER_CONNECT_TIMEOUT_S", "soon")
    with pytest.raises(ConfigError, match="SUPER_CONNECT_TIMEOUT_S"):
        startup_patience()


def test_a_server_that_says_nothing_is_given_up(coordinator):
    coordinator.gate.clear()
    coordinator.jobs["j"] = 1
    client = Client(coordinator.address)
    with pytest.raises(CoordinatorUnreachableError, match=r"2 attempts.*DEADLINE_EXCEEDED"):
        client.call(
            "NextBatches",
            pb.NextBatchesRequest(job="j", count=1),
            Patience(attempts=2, total_s=9.0, deadline_s=0.2, backoff_s=0.001),
        )


def test_pauses_end_when_stopped():
    stopped = threading.Event()
    patience = Patience(attempts=5, total_s=1000.0, backoff_s=500.0, backoff_max_s=500.0)
    failures = []

    def try_in_vain():
        try:
            call(f"127.0.0.1:{free_port()}", patience, stopped=stopped)
        except CallStoppedError as error:
            failures.append(error)

    thread = threading.Thread(target=try_in_vain)
    thread.start()
    stopped.set()
    thread.join(30)
    assert not thread.is_alive()
    assert len(failures) == 1


def test_a_typed_refusal_is_raised_at_once(coordinator):
    coordinator.script.failures["GetJobStats"] = [SourceForbiddenError("not yours")]
    with pytest.raises(SourceForbiddenError, match="not yours"):
        call(coordinator.address)
    assert coordinator.count("GetJobStats") == 1


def test_a_cache_that_the_coordinator_has_lost_is_waited_for(coordinator):
    """It reconnects: a job that is opened again just then goes on. What stays is told by its own name."""
    lost = CacheUnreachableError("connection reset by peer")
    coordinator.script.failures["GetJobStats"] = [lost, lost]
    assert call(coordinator.address).cache.budget_bytes == 77
    coordinator.script.failures["GetJobStats"] = [lost] * 9
    with pytest.raises(CacheUnreachableError, match="connection reset by peer"):
        call(coordinator.address)
    assert coordinator.count("GetJobStats") == 3 + QUICK.attempts


def test_who_knows_why_nobody_answers_is_asked():
    reason = EmbeddedError("the cache server ended")
    client = Client(f"127.0.0.1:{free_port()}", explain=lambda: reason)
    with pytest.raises(EmbeddedError, match="the cache server ended"):
        client.call("GetJobStats", REQUEST, QUICK)


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
