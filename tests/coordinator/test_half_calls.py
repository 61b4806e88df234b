"""Calls that begin and never go on: whoever makes them, they hold nothing that others need."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from superdl.coordinator.server import listening
from superdl.coordinator.server.tokens import Tokens
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorStub
from tests.coordinator.running import serving
from tests.fixtures.half_calls import HalfCalls

TOKEN = "0123456789abcdef"
RIGHT = {"authorization": f"Bearer {TOKEN}"}
CLOSE_JOB = "/super.v1.Coordinator/CloseJob"
CALLS = 8


@pytest.fixture(autouse=True)
def few_calls(monkeypatch):
    """Fewer at once than are begun."""
    monkeypatch.setattr(listening, "_CALLS_MAX", CALLS // 2)
    monkeypatch.setattr(listening, "_HEALTH_CALLS_MAX", CALLS // 2)


def answer(port):
    """What an honest client hears."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        metadata = tuple(RIGHT.items())
        return CoordinatorStub(channel).CloseJob(pb.CloseJobRequest(), metadata=metadata, timeout=10).closed


@pytest.mark.parametrize(
    "path",
    [CLOSE_JOB, "/no.such/Method", "/grpc.health.v1.Health/Watch"],
)
def test_strangers_are_refused_without_waiting_for_their_messages(serving_loop, path):
    def use(port, _):
        with HalfCalls(port) as strangers:
            for _ in range(3):
                strangers.begin(path, CALLS // 2)
                strangers.until_ended(CALLS // 2)
            assert answer(port)

    serving(serving_loop, use, tokens=Tokens(TOKEN))


def test_health_is_told_without_waiting_for_the_question(serving_loop):
    def use(*ports):
        for port in ports:
            with HalfCalls(port) as strangers:
                for _ in range(3):
                    strangers.begin("/grpc.health.v1.Health/Check", CALLS // 2)
                    strangers.until_ended(CALLS // 2)

    serving(serving_loop, use, tokens=Tokens(TOKEN))


@pytest.mark.parametrize("tokens", [None, Tokens(TOKEN)])
def test_a_call_of_one_who_is_let_in_ends_when_its_message_does_not_come(serving_loop, monkeypatch, tokens):
    monkeypatch.setattr(listening, "_MESSAGE_TIMEOUT_S", 0.3)

    def use(port, _):
        with HalfCalls(port) as broken:
            broken.begin(CLOSE_JOB, CALLS, RIGHT)
            broken.until_ended(CALLS)
            assert answer(port)

    serving(serving_loop, use, tokens=tokens)


def test_a_call_that_ends_without_its_message_is_told(serving_loop):
    def use(port, _):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            said_nothing = channel.stream_unary(CLOSE_JOB)
            with pytest.raises(grpc.RpcError, match="the call ended without its message") as caught:
                said_nothing(iter(()), timeout=10)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert answer(port)

    serving(serving_loop, use)


def test_nobody_watches_so_that_watchers_hold_no_probe_up(serving_loop):
    def use(_, probed):
        with grpc.insecure_channel(f"127.0.0.1:{probed}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watching = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=10) for _ in range(CALLS)]
            for one in watching:
                with pytest.raises(grpc.RpcError) as caught:
                    next(one)
                assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert stub.Check(health_pb2.HealthCheckRequest(service="any"), timeout=10).status == 1

    serving(serving_loop, use)
