"""Run a coordinator in the test's event loop: real cache, real gRPC, scripted functions."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import redis

from superdl.coordinator.cache.cache import Cache
from superdl.coordinator.cache.streams import ReportReader
from superdl.coordinator.catalog import list_source
from superdl.coordinator.catalog.dataset import Dataset
from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.core import BatchRead, CoreSettings, ExecutorResized
from superdl.coordinator.executors.base import Executor
from superdl.coordinator.executors.eligibility import Eligibility
from superdl.coordinator.executors.manager import ExecutorManager
from superdl.coordinator.executors.messages import read_result
from superdl.coordinator.server.engine import Engine
from superdl.coordinator.server.grpc_server import Health, listen, listen_for_health
from superdl.coordinator.server.service import CoordinatorService
from superdl.coordinator.server.settings import Settings
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire import coordinator_pb2_grpc as pb_grpc
from superdl.super_wire.cancelling import HeldTasks, cancel_and_wait
from superdl.super_wire.errors import SuperError, error_from_name
from superdl.super_wire.ids import split_ids
from superdl.super_wire.keys import cache_key
from superdl.super_wire.protocol import ERROR_METADATA_KEY, PROTOCOL_VERSION
from superdl.super_wire.read_reports import ReadReport
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.record import Tombstone, pack, pack_tombstone
from superdl.super_wire.request import Outcome, PrefetchResult
from tests.fixtures.ports import free_port
from tests.simulation.invariants import problems

if TYPE_CHECKING:
    from collections.abc import Callable


SIDE = 4
RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
RECORD_BYTES = 64 + SIDE * SIDE * 3
ENOUGH_S = 20.0


def record_of(key, sample_id):
    """Return the record that a :class:`ScriptedExecutor` makes for a key."""
    header, payload = pack(np.full((SIDE, SIDE, 3), sum(key.encode()) % 256, dtype=np.uint8), sample_id)
    return header + bytes(payload)


def registration(**changes):
    """Return a registration request, by default for a directory that does not exist."""
    facts = {
        "protocol_version": PROTOCOL_VERSION,
        "source": "file:///nowhere",
        "recipe": RECIPE.json,
        "key_list": "",
        "run_id": "run",
    } | changes
    return pb.RegisterDatasetRequest(**facts)


class ScriptedExecutor(Executor):
    """Functions that write real records. ``outcomes`` overrides outcomes by key, ``before`` may raise."""

    name = "scripted"
    remote = False
    region = ""
    fingerprint = "5c" * 16
    scaling = ExecutorResized(0)

    def __init__(self, cache, capacity=2):
        self.scaling = ExecutorResized(capacity)
        self.requests = []
        self.outcomes = {}
        self.before = None
        self.edit = lambda result: result
        self._cache = cache

    @property
    def keys_asked(self):
        return [key for request in self.requests for key in request.keys]

    async def start(self):
        """Do nothing: scripted functions need no start."""

    async def invoke(self, request, *, timeout_s):
        self.requests.append(request)
        assert timeout_s > 0
        if self.before is not None:
            await self.before(request)
        outcomes = [self.outcomes.get(key, Outcome.CACHED) for key in request.keys]
        records = {}
        for key, sample_id, outcome in zip(request.keys, split_ids(request.ids), outcomes, strict=True):
            if outcome is Outcome.CACHED:
                records[cache_key(sample_id)] = record_of(key, sample_id)
            elif outcome is Outcome.TOMBSTONE:
                tombstone = Tombstone(key, "undecodable", f"{key} is no image", permanent=True)
                records[cache_key(sample_id)] = pack_tombstone(tombstone, sample_id)
        if records:
            await asyncio.sleep(0)
            with redis.Redis.from_url(
                self._cache
            ) as client:  # asyncio's client leaks a connection if cancelled
                client.mset(records)
        count = len(request.keys)
        result = self.edit(
            PrefetchResult(
                request_id=request.request_id,
                function_version="scripted",
                cold_start=False,
                outcomes=tuple(outcomes),
                fetch_us=10 * count,
                decode_us=20 * count,
                push_us=30 * count,
                source_requests=count,
                source_bytes=100 * count,
                record_bytes=tuple(RECORD_BYTES * (outcome is Outcome.CACHED) for outcome in outcomes),
                messages={
                    str(place): f"{key} is no image"
                    for place, (key, outcome) in enumerate(zip(request.keys, outcomes, strict=True))
                    if outcome is not Outcome.CACHED
                },
            )
        )
        return read_result(json.dumps(result.to_mapping()), request, "a function")

    async def close(self):
        """Do nothing: scripted functions hold no resources."""


@dataclass
class Running:
    """The parts of a running coordinator, with shortcuts to call it."""

    address: str
    cache: Cache
    executor: ScriptedExecutor
    engine: Engine
    datasets: DatasetRegistry
    reports: ReportReader
    stub: Any
    channel: grpc.aio.Channel
    loop: asyncio.Runner | None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, method, request):
        """Make an RPC. Raise a refusal as the error that it names."""
        try:
            return await getattr(self.stub, method)(request, timeout=ENOUGH_S)
        except grpc.aio.AioRpcError as error:
            named = dict(error.trailing_metadata() or ()).get(ERROR_METADATA_KEY)
            if named is None:
                raise
            refusal = error_from_name(str(named), error.details() or "")
            refusal.__cause__ = error
            raise refusal from error

    async def register(self, source, run_id="run", recipe=RECIPE):
        """Register a directory and wait until it is listed."""
        answer = await self.call(
            "RegisterDataset",
            pb.RegisterDatasetRequest(
                protocol_version=PROTOCOL_VERSION,
                source=f"file://{source}",
                recipe=recipe.json,
                run_id=run_id,
            ),
        )
        while not answer.ready:
            request = pb.GetDatasetRequest(
                dataset_id=answer.dataset_id, listed=answer.listed, wait_s=ENOUGH_S
            )
            answer = await self.call("GetDataset", request)
        return answer

    async def open(self, dataset, job="job", **changes):
        """Open a job, by default unshuffled with batches of 4 samples."""
        facts = {
            "batch_size": 4,
            "replicas": 1,
            "rank": 0,
            "seed": 0,
            "shuffle": False,
        } | changes
        return await self.call("OpenJob", pb.OpenJobRequest(dataset_id=dataset.dataset_id, job=job, **facts))

    async def page(self, job="job", **changes):
        """Request a page of the plan, by default all of the first epoch."""
        facts = {"rank": 0, "epoch": 0, "position": 0, "count": 1000, "yielded": 0} | changes
        return await self.call("NextBatches", pb.NextBatchesRequest(job=job, **facts))

    def look(self):
        """Wake up callers of :meth:`until` to check their conditions again."""
        self._changed.set()

    async def until(self, condition):
        """Wait, for a bounded time, until a condition that depends on engine events holds."""
        async with asyncio.timeout(ENOUGH_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def running(
    valkey,
    loop=None,
    *,
    budget_bytes=2**24,
    cache_was_empty=True,
    cache_type=Cache,
    lister=list_source,
    tokens=None,
    **core,
):
    """Run a coordinator on a unix socket next to the server's own."""
    async with contextlib.AsyncExitStack() as stack:
        cache = cache_type(valkey.unix_url, owner="test")
        stack.push_async_callback(cache.close)
        executor = ScriptedExecutor(valkey.unix_url)
        manager = await manager_of(executor)
        stack.push_async_callback(manager.close)
        datasets = DatasetRegistry(max_age_s=300.0, lister=lister)
        stack.push_async_callback(datasets.close)
        settings = CoreSettings(budget_bytes=budget_bytes, **core)
        engine = ObservedEngine(settings, cache, manager.executors, datasets)
        stack.push_async_callback(engine.close)
        manager.report_changes(engine.post)
        reports = ReportReader(cache.nodes, engine.post_all)
        eligibility = Eligibility(manager.executors, cache.address)
        stack.push_async_callback(eligibility.close)
        service = CoordinatorService(
            engine,
            reports,
            eligibility,
            facts_of=partial(Dataset.facts, known_absent=cache_was_empty),
            settings=Settings(),
            tokens=tokens,
        )
        address = f"unix:{valkey.directory}/c.sock"
        server = await listen(address, service)
        stack.push_async_callback(server.stop, 0)
        reading = asyncio.create_task(follow(reports))
        stack.push_async_callback(cancel_and_wait, reading)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        stub = pb_grpc.CoordinatorStub(channel)
        made = Running(address, cache, executor, engine, datasets, reports, stub, channel, loop)
        engine.tell = made.look
        yield made
        left = list(problems(engine.core))
        assert not left, left
        assert engine.failed.cancelled() or not engine.failed.done(), engine.failed


async def manager_of(*executors):
    """Return a working manager of executors that need no start."""
    manager = ExecutorManager([partial(_itself, executor) for executor in executors])
    await manager.start()
    await manager.agree(_agree)
    return manager


def _itself(executor):
    return executor


async def _agree(_fingerprint):
    """Agree to any decoder's fingerprint."""


class ObservedEngine(Engine):
    """An engine that signals each handled event and ended action, so that tests need not poll."""

    tell: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._tasks = ObservedTasks(self)

    def post_all(self, events):
        super().post_all(events)
        self.tell()


class ObservedTasks(HeldTasks):
    """Tasks that signal through their engine when one has ended."""

    def __init__(self, engine):
        super().__init__("engine", engine._fail)
        self._engine = engine

    def _ended(self, task):
        super()._ended(task)
        self._engine.tell()


async def follow(stream):
    """Read a stream as the coordinator does, tolerating any failure of its cache."""
    while True:
        try:
            await stream.read_once()
        except SuperError:
            await asyncio.sleep(0.02)


class ClosesJobs(pb_grpc.CoordinatorServicer):
    """A service with one method; the others are unimplemented."""

    async def CloseJob(self, request, context):
        return pb.CloseJobReply(closed=True)


def serving(loop, use, **guards):
    """Listen, and call ``use(port, health port)`` in a thread meanwhile."""

    async def work():
        port, probed = free_port(), free_port()
        health = guards.setdefault("health", Health())
        server = await listen(f"127.0.0.1:{port}", ClosesJobs(), **guards)
        second = await listen_for_health(f"127.0.0.1:{probed}", health)
        try:
            await asyncio.to_thread(use, port, probed)
        finally:
            await second.stop(0)
            await server.stop(0)

    loop.run(work())


REPORT = ReadReport(
    rank=0, epoch=0, position=0, samples=4, hits=4, wait_us=5, read_us=7, check_us=1, size_bytes=9, attempt=1,
    done=1,
)  # fmt: skip


def report(position=0, hits=4, straight=0):
    """Return fields of a report that a batch of four was read, as a reader appends it."""
    return replace(REPORT, position=position, hits=hits, straight=straight).to_fields()


def missed(offsets, position=0):
    """Return fields of a report that a reader of job ``job`` is missing these samples of a batch."""
    hits = 4 - len(offsets)
    return BatchRead("job", replace(REPORT, position=position, hits=hits, done=0, missed=tuple(offsets)))
