"""Every input of a coordinator has a bound: what goes beyond is refused, and others are served on."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import grpc
import pytest

from superdl.coordinator.catalog import list_source
from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.server import listening, service
from superdl.coordinator.server.listening import listen
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.coordinator_pb2_grpc import CoordinatorServicer
from superdl.super_wire.errors import ConfigError, CoordinatorError, SourceError
from superdl.super_wire.recipe import Recipe
from tests.coordinator.running import registration
from tests.fixtures.valkey import free_port

PLAIN = Recipe.image(resize=8, crop=8)
ENOUGH_S = 20.0


def test_listings_under_way_are_few_and_those_that_wait_are_bounded(serving_loop, source):
    go, running, most = threading.Event(), set(), []

    def lister(*arguments):
        running.add(threading.get_ident())
        most.append(len(running))
        assert go.wait(ENOUGH_S)
        running.discard(threading.get_ident())
        return list_source(*arguments)

    async def work():
        datasets = DatasetRegistry(max_age_s=300.0, lister=lister)
        try:
            made = [datasets.register(f"file://{source}/./{n * '/'}", PLAIN, "", "run") for n in range(64)]
            with pytest.raises(CoordinatorError, match="listing 64 sources already"):
                datasets.register("file:///one/more", PLAIN, "", "run")
            assert datasets.register(f"file://{source}/./", PLAIN, "", "run") is made[0]
            go.set()
            for dataset in made:
                await datasets.wait(dataset, listed=2**62, wait_s=ENOUGH_S)
            assert all(dataset.ready for dataset in made)
            assert datasets.register(f"file://{source}", PLAIN, "", "run") not in made
        finally:
            go.set()
            await datasets.close()

    serving_loop.run(work())
    assert max(most) <= 8


def test_a_poll_too_many_is_answered_at_once(run, source, monkeypatch):
    monkeypatch.setattr(service, "_MAX_POLLS", 0)

    async def work(coordinator):
        answer = await coordinator.call("RegisterDataset", registration(source=f"file://{source}"))
        while not answer.ready:  # it would wait for ENOUGH_S
            request = pb.GetDatasetRequest(dataset_id=answer.dataset_id, listed=2**60, wait_s=ENOUGH_S)
            answer = await asyncio.wait_for(coordinator.call("GetDataset", request), ENOUGH_S / 2)

    run(work)


def test_ranks_are_bounded_over_all_jobs(run, source, monkeypatch):
    monkeypatch.setattr(service, "_MAX_RANKS", 3)

    async def work(coordinator):
        dataset = await coordinator.register(source)
        for rank in (0, 1):
            await coordinator.open(dataset, "one", replicas=2, rank=rank, batch_size=1)
        await coordinator.open(dataset, "two")
        with pytest.raises(CoordinatorError, match="its 3 ranks, over all jobs"):
            await coordinator.open(dataset, "three")
        await coordinator.open(dataset, "two")  # who is known stays so
        assert len((await coordinator.page("two")).batches) == 3

    run(work)


@pytest.mark.parametrize(
    ("method", "request_", "reason"),
    [
        ("GetBatchStatus", pb.GetBatchStatusRequest(batch_ids=[b"x" * 17]), "a batch id has 16 bytes"),
        ("GetBatchStatus", pb.GetBatchStatusRequest(batch_ids=[b"x" * 16] * 4097), "at most 4096 batches"),
        ("GetJobStats", pb.GetJobStatsRequest(jobs=["j"] * 1025), "at most 1024 jobs"),
    ],
)
def test_what_one_call_may_ask_for_is_bounded(run, method, request_, reason):
    async def work(coordinator):
        with pytest.raises(ConfigError, match=reason):
            await coordinator.call(method, request_)

    run(work)


async def listed(coordinator, source):
    """Register and wait for what the listing says."""
    answer = await coordinator.call("RegisterDataset", registration(source=source))
    while not answer.ready:
        request = pb.GetDatasetRequest(dataset_id=answer.dataset_id, wait_s=ENOUGH_S)
        answer = await coordinator.call("GetDataset", request)


def test_an_error_fits_into_a_header_in_any_alphabet(run):
    async def work(coordinator):
        with pytest.raises(SourceError, match="unknown scheme"):
            await listed(coordinator, "x://" + "\U0001f600" * 60_000)

    run(work)


def test_connections_are_bounded(serving_loop, monkeypatch):
    monkeypatch.setattr(listening, "_CONNECTIONS_MAX", 2)
    port = free_port()

    def call(**options):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            channel.unary_unary("/super.v1.Coordinator/None")(b"", timeout=ENOUGH_S, **options)

    def use():
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2)]
            assert all(one.recv(1) for one in idle)
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.RpcError) as caught:
            call(wait_for_ready=True)  # until the two are gone
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    async def work():
        server, _ = await listen(f"127.0.0.1:{port}", CoordinatorServicer())
        try:
            await asyncio.to_thread(use)
        finally:
            await server.stop(0)

    serving_loop.run(work())
