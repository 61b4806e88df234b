"""One connection per process and address, open only while it is of use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from superdl.sampler.rpc.client import RUNNING, Client
from superdl.sampler.rpc.connection import CallCutError, connection_to
from superdl.super_wire import coordinator_pb2 as pb
from tests.sampler.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUEST = pb.GetJobStatsRequest()


@pytest.fixture
def relay(coordinator) -> Iterator[Relay]:
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
