"""Workers from the coordinator's side: a bad worker costs only the requests that it had."""

import asyncio
import contextlib
from functools import partial

import grpc
import pytest

from superdl.coordinator.core import FailureKind
from superdl.coordinator.executors.connected_workers import Workers
from superdl.coordinator.server.ports import Servicer
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire import coordinator_pb2_grpc as pb_grpc
from superdl.super_wire.protocol import PROTOCOL_VERSION, installed_version
from tests.coordinator.executors.asking import failing

FINGERPRINT, OTHER = "a" * 32, "b" * 32
SAME = {"protocol_version": PROTOCOL_VERSION, "version": installed_version(), "fingerprint": FINGERPRINT}


@contextlib.asynccontextmanager
async def coordinator(tmp_path, **options):
    """A server that workers can connect to."""
    workers, server = Workers(**options), grpc.aio.server()
    address = f"unix:{tmp_path}/c.sock"
    pb_grpc.add_CoordinatorServicer_to_server(Servicer({True: workers}), server)
    server.add_insecure_port(address)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield workers, pb_grpc.CoordinatorStub(channel)
    finally:
        await server.stop(None)


def plain(request, _sees_store):
    return request


async def call_in(stub, **hello):
    """Connect a worker and return its stream after the welcome."""
    stream = stub.Work()
    await stream.write(pb.FromWorker(hello=pb.WorkerHello(**{**SAME, "slots": 1, **hello})))
    assert (await stream.read()).HasField("welcome")
    return stream


async def request_of(stream):
    message = await stream.read()
    assert message.HasField("request")
    return message.request


def answer(request, **outcome):
    return pb.FromWorker(answer=pb.WorkerAnswer(call=request.call, **outcome))


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        ({"protocol_version": 99}, "protocol version"),
        ({"version": "9.9.9"}, "9.9.9"),
        ({"slots": 0}, "slots"),
        ({"slots": 2**31}, "slots"),
        ({"fingerprint": "b" * 32}, "decodes as"),
        ({"fingerprint": "B"}, "32 hex digits"),
        ({"trouble": "no such function"}, "no such function"),
    ],
)
async def test_an_invalid_hello_is_refused(tmp_path, hello, words):
    async with coordinator(tmp_path) as (workers, stub):
        first = asyncio.create_task(workers.first())
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call_in(stub, **hello) if hello.get("fingerprint") != "b" * 32 else None
        assert not first.done()
        await call_in(stub)
        await first
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call_in(stub, **hello)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert words in refused.value.details()
        assert workers.slots == 1


async def test_workers_with_another_decoder_wait_until_the_current_one_is_unneeded(tmp_path, caplog):
    async with coordinator(tmp_path, patience_s=0.0) as (workers, stub):
        first = await call_in(stub, name="first")
        await call_in(stub, name="second", fingerprint=OTHER, slots=4)
        assert (workers.slots, workers.fingerprint) == (1, FINGERPRINT)
        assert [one.waits for one in workers.stats] == [False, True]
        assert "worker second decodes as" in caplog.text
        runs = [asyncio.create_task(workers.run(partial(plain, b"{}"), 30.0)) for _ in range(2)]
        request = await request_of(first)
        assert workers.successor(is_needed=False) == ""  # it is working
        await first.write(answer(request, result=b"done"))
        assert await runs[0] == b"done"
        await first.write(answer(await request_of(first), result=b"done"))
        assert await runs[1] == b"done"
        assert workers.successor(is_needed=True) == ""
        assert workers.successor(is_needed=False) == OTHER
        first.cancel()
        async with asyncio.timeout(20):
            while len(workers.stats) == 2:  # noqa: ASYNC110  # nothing signals it
                await asyncio.sleep(0)
        assert workers.successor(is_needed=True) == OTHER


async def test_the_decoder_of_cached_records_has_time_to_reconnect(tmp_path):
    async with coordinator(tmp_path, patience_s=0.2) as (workers, stub):
        await call_in(stub, fingerprint=OTHER)  # before the cache has reported its own
        workers.use(FINGERPRINT)
        first = asyncio.create_task(workers.first())
        await asyncio.sleep(0)
        assert workers.slots == 0
        assert not first.done()
        await first
        assert (workers.fingerprint, workers.slots) == (OTHER, 1)
        await call_in(stub, name="z")
        assert [one.waits for one in workers.stats] == [False, True]


async def test_store_requests_go_to_workers_that_see_the_store(tmp_path, caplog):
    """A store is identified by its contents, not its path. Other workers get requests that need none."""

    def seen(name, sees_store):
        return f"{name} {sees_store}".encode()

    async with coordinator(tmp_path) as (workers, stub):
        workers.follow_store("/shared/store", lambda: "7" * 32)
        blind = await call_in(stub, name="blind", store="/shared/store", store_id="8" * 32, slots=8)
        alone = asyncio.create_task(workers.run(partial(seen, "alone"), 30.0, of_store=True))
        request = await request_of(blind)
        assert request.request == b"alone False"
        await blind.write(answer(request, result=b"done"))
        await alone
        assert not workers.all_see_store
        sighted = await call_in(stub, name="sighted", store="/shared/store", store_id="7" * 32)
        runs = [
            asyncio.create_task(workers.run(partial(seen, str(number)), 30.0, of_store=True))
            for number in range(3)
        ]
        first = await request_of(sighted)
        decoding = asyncio.create_task(workers.run(partial(seen, "any"), 30.0))
        request = await request_of(blind)
        assert request.request == b"any False"
        await blind.write(answer(request, result=b"done"))
        await decoding
        for number in range(3):
            request = first if number == 0 else await request_of(sighted)
            assert request.request == b"%d True" % number
            await sighted.write(answer(request, result=b"done"))
        await asyncio.gather(*runs)
        await call_in(stub, name="other", store="/shared/store")
        assert "worker other does not see the store /shared/store" in caplog.text


async def test_each_slot_runs_one_request_and_its_first_answer_counts(tmp_path):
    async with coordinator(tmp_path) as (workers, stub):
        first, second = await call_in(stub), await call_in(stub)
        assert workers.slots == 2
        runs = [asyncio.create_task(workers.run(partial(plain, b"%d" % number), 30.0)) for number in range(3)]
        requests = [await request_of(stream) for stream in (first, second)]
        assert not any(run.done() for run in runs)
        await first.write(answer(pb.WorkerRequest(call=10_000), result=b"of no request"))
        await first.write(answer(requests[0], result=b"one"))
        await first.write(answer(requests[0], result=b"another"))
        third = await request_of(first)
        await first.write(answer(third, result=b"three"))
        await second.write(answer(requests[1], result=b"two"))
        by_request = {request.request: b"two" for request in requests[1:]} | {requests[0].request: b"one"}
        assert [await run for run in runs] == [*(by_request[b"%d" % n] for n in range(2)), b"three"]


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        ("crashed", FailureKind.CRASHED),
        ("raised", FailureKind.RAISED),
        ("timed_out", FailureKind.TIMED_OUT),
    ],
)
async def test_each_kind_of_failure_is_reported(tmp_path, failure, error):
    async with coordinator(tmp_path) as (workers, stub):
        stream = await call_in(stub, name="gpu-7")
        run = asyncio.create_task(workers.run(partial(plain, b"{}"), 30.0))
        told = pb.WorkerFailure(kind=failure, message="so\nbe it", ran_s=2.5)
        await stream.write(answer(await request_of(stream), failure=told))
        with failing(error, match="gpu-7: so be it") as raised:
            await run
        assert raised.value.ran_s == 2.5


async def test_a_vanished_or_silent_worker_fails_its_requests(tmp_path):
    async with coordinator(tmp_path, silence_s=1.0) as (workers, stub):
        for vanishes in (True, False):
            stream = await call_in(stub)
            run = asyncio.create_task(workers.run(partial(plain, b"{}"), 30.0))
            await request_of(stream)
            if vanishes:
                stream.cancel()
            with failing(FailureKind.UNAVAILABLE, match="disconnected"):
                await run
        with failing(FailureKind.THROTTLED, match="no worker is connected"):
            await workers.run(partial(plain, b"{}"), 0.05)
        waiting = asyncio.create_task(workers.run(partial(plain, b"{}"), 30.0))
        stream = await call_in(stub)
        await stream.write(answer(await request_of(stream), result=b"done"))
        assert await waiting == b"done"


async def test_a_draining_worker_finishes_its_requests_and_gets_no_more(tmp_path):
    async with coordinator(tmp_path) as (workers, stub):
        stream = await call_in(stub, slots=2)
        run = asyncio.create_task(workers.run(partial(plain, b"{}"), 30.0))
        request = await request_of(stream)
        await stream.write(pb.FromWorker(draining=pb.Draining()))
        await stream.write(pb.FromWorker(heartbeat=pb.Heartbeat()))
        assert (await stream.read()).HasField("heartbeat")
        assert workers.slots == 0
        with failing(FailureKind.THROTTLED):
            await workers.run(partial(plain, b"{}"), 0.05)
        await stream.write(answer(request, result=b"done"))
        assert await run == b"done"


async def test_an_abandoned_request_is_cancelled(tmp_path):
    async with coordinator(tmp_path) as (workers, stub):
        stream = await call_in(stub)
        run = asyncio.create_task(workers.run(partial(plain, b"{}"), 30.0))
        request = await request_of(stream)
        run.cancel()
        assert (await stream.read()).cancel == request.call


async def test_a_connection_without_a_hello_is_closed(tmp_path):
    async with coordinator(tmp_path, silence_s=0.1) as (workers, stub):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Work().read()
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert workers.slots == 0


async def test_a_worker_that_reads_nothing_is_dropped(tmp_path):
    async with coordinator(tmp_path, silence_s=1.0) as (workers, stub):
        await call_in(stub, slots=8)
        large = partial(plain, bytes(2**20))
        runs = [asyncio.create_task(workers.run(large, 30.0)) for _ in range(8)]
        async with asyncio.timeout(20):
            ended = await asyncio.gather(*runs, return_exceptions=True)
        assert {error.kind for error in ended} == {FailureKind.UNAVAILABLE}
        assert workers.slots == 0
