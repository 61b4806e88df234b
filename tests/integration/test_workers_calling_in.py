"""Workers that connect to the coordinator: an epoch stays exact whatever happens to either side."""

import signal
import threading
import time
from pathlib import Path

import grpc
import pytest

from superdl.lambda_prefetch.decoder_fingerprint import decoder_fingerprint
from superdl.sampler.rpc.connection import CallFailedError, connection_to
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorStub
from superdl.super_wire.protocol import PROTOCOL_VERSION, installed_version
from tests.coordinator.executors.functions import FINGERPRINT, MODULE
from tests.fixtures.cut_network import Cut, CutNetwork
from tests.fixtures.stack import Stack
from tests.fixtures.stand_in_workers import stand_ins
from tests.fixtures.workers import WorkerProcess, until, workers
from tests.integration.delivery import assert_exactly_once, collect, reading, settled_stats

PYTHONPATH = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
TOKEN = {"SUPER_TOKEN": "a-token-of-more-than-16"}


@pytest.fixture
def stack(photos):
    stack = Stack(arguments=("--executor", "workers", "--request-samples", "4"))
    yield stack
    stack.close()


def stats_of(stack):
    return connection_to(stack.address).call("GetJobStats", pb.GetJobStatsRequest(), 10.0)


def lines(stack, words):
    return stack.log.read_text().count(words)


def test_a_worker_is_killed_and_then_the_coordinator(photos, expected, stack):
    with workers(stack.address, 2, slots=2) as (first, second):
        stack.start()  # workers and coordinator wait for each other
        with reading(photos, stack.address, read_timeout=60) as (_, loader):
            read = []
            for number, batch in enumerate(loader):
                read.append(batch)
                if number == 0:
                    first.send(signal.SIGKILL)
                if number == 15:
                    stack.kill_coordinator()
                    stack.start_coordinator()
            assert_exactly_once(collect(read), expected)
        second.send(signal.SIGTERM)
        assert second.ended() == 0


@pytest.mark.slow
def test_a_worker_behind_a_cut_network_loses_its_requests_and_calls_again(photos, expected):
    stack = Stack(arguments=("--executor", "workers", "--request-samples", "4"), tcp=True)
    between = CutNetwork(stack.address)
    try:
        with workers(between.address, 1, slots=2):
            stack.start()
            between.cut(Cut.SILENT)
            with (
                reading(photos, stack.address, read_timeout=60) as (_, loader),
                workers(stack.address, 1, slots=2),
            ):
                assert_exactly_once(collect(loader), expected)
            until(lambda: lines(stack, "has sent nothing for 15 s") == 1)
            between.mend(losing=True)
            until(lambda: lines(stack, " connected (slots") == 3)
    finally:
        stack.close()
        between.close()


@pytest.mark.slow
def test_a_stopped_worker_loses_its_requests_within_20_s(photos, expected, stack):
    with workers(stack.address, 1, slots=2) as (stopped,):
        stack.start()
        stopped.send(signal.SIGSTOP)
        began_s = time.monotonic()
        with (
            reading(photos, stack.address, read_timeout=60) as (_, loader),
            workers(stack.address, 1, slots=2),
        ):
            assert_exactly_once(collect(loader), expected)
        assert time.monotonic() - began_s < 20 + 10  # 20 s, and 10 s for the epoch
        until(lambda: lines(stack, "has sent nothing for 15 s") == 1)
        stopped.send(signal.SIGCONT)
        stopped.send(signal.SIGTERM)
        assert stopped.ended() == 0


def test_two_hundred_at_once(photos, expected, stack):
    with stand_ins(stack.address, 200):
        stack.start()
        until(lambda: sum(executor.capacity for executor in stats_of(stack).executors) == 200)
        with reading(photos, stack.address) as (sampler, loader):
            assert_exactly_once(collect(loader), expected)
            stats = settled_stats(sampler)
        assert stats.capacity == len(stats.workers) == 200
    until(lambda: lines(stack, "disconnected (unanswered") == 200)


def test_one_out_of_memory_costs_a_request(photos, expected, stack, tmp_path):
    function = ("--function", f"{MODULE}:out_of_memory_once")
    environment = PYTHONPATH | {"OUT_OF_MEMORY": str(tmp_path / "marker")}
    worker = WorkerProcess(stack.address, *function, environment=environment, slots=2)
    try:
        stack.start()
        with reading(photos, stack.address) as (_, loader):
            assert_exactly_once(collect(loader), expected)
        assert lines(stack, "killed by SIGKILL") == 1
        until(lambda: [(one.crashed, one.restarted) for one in stats_of(stack).workers] == [(1, 1)])
    finally:
        worker.close()


def test_the_end_of_a_run_ends_its_coordinator_and_workers_with_its_code(shared_stack):
    """A trainer's launcher calls this. A coordinator not tied to a run refuses."""
    with pytest.raises(CallFailedError, match="--ends-with-run"):
        connection_to(shared_stack.address).call("EndRun", pb.EndRunRequest(exit_code=7), 10.0)
    stack = Stack(arguments=("--executor", "workers", "--ends-with-run"))
    try:
        with workers(stack.address, 2) as both:
            stack.start()
            until(lambda: lines(stack, " connected (slots") == 2)
            connection_to(stack.address).call("EndRun", pb.EndRunRequest(exit_code=7), 10.0)
            assert goodbye_to_a_late_one(stack.address) == 7
            stack.process.communicate(timeout=20)
            assert [stack.process.returncode, *(one.ended() for one in both)] == [7, 7, 7]
    finally:
        stack.close()


def goodbye_to_a_late_one(address):
    """The exit code sent to a worker that connects now."""
    hello = pb.WorkerHello(
        protocol_version=PROTOCOL_VERSION,
        version=installed_version(),
        fingerprint=decoder_fingerprint(),
        slots=1,
    )
    over = threading.Event()

    def says():
        yield pb.FromWorker(hello=hello)
        over.wait()

    with grpc.insecure_channel(address) as channel:
        said = (message for message in CoordinatorStub(channel).Work(says()) if message.HasField("goodbye"))
        try:
            return next(said).goodbye.exit_code
        finally:
            over.set()


def test_a_worker_without_the_token_is_refused():
    stack = Stack(arguments=("--executor", "workers"), environment=TOKEN, tcp=True)
    try:
        with workers(stack.address, 1, environment=TOKEN):
            stack.start()
            strangers = [{"SUPER_TOKEN": "another-token-of-22-chars"}, {}]
            for stranger in [WorkerProcess(stack.address, environment=variables) for variables in strangers]:
                assert stranger.ended() == 1
                assert "token" in stranger.log.read_text()
                stranger.close()
    finally:
        stack.close()


@pytest.mark.slow
def test_a_decoder_takes_the_place_of_another_once_no_job_needs_that(photos, expected):
    """The cache has records of a third decoder, for which no worker connects."""
    stack, key = Stack(arguments=("--executor", "workers")), "super:golden"
    stack.valkey.start()
    try:
        with stack.valkey.client() as client, workers(stack.address, 1, slots=2):
            client.set(key, "c" * 32)
            client.set("super:r1:" + "0" * 32, b"a record of that decoder")
            stack.start_coordinator(timeout_s=180)
            assert client.get(key) == decoder_fingerprint().encode()
            with reading(photos, stack.address, read_timeout=120) as (_, loader):
                batches = iter(loader)
                read = [next(batches)]
                other = ("--function", f"{MODULE}:of_another_decoder")
                newer = WorkerProcess(stack.address, *other, environment=PYTHONPATH)
                until(lambda: lines(stack, "and has to wait:"), 90)
                read += batches
                assert_exactly_once(collect(read), expected)
                assert client.get(key) == decoder_fingerprint().encode()
            until(lambda: client.get(key) == FINGERPRINT.encode(), 180)
            assert client.keys("super:r1:*") == []
            with reading(photos, stack.address, read_timeout=120) as (_, loader):
                assert_exactly_once(collect(loader), expected)
            newer.close()
    finally:
        stack.close()
