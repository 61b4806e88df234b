"""Every RPC over real gRPC: its response, and that repeating it is safe."""

import asyncio

import pytest

from superdl.coordinator.core import SampleState
from superdl.coordinator.store.keeper import StoreKeeper
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.errors import ConfigError, UnknownJobError
from superdl.super_wire.keys import report_stream
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import Outcome
from tests.coordinator.running import RECORD_BYTES, report

RANDOM = Recipe([{"op": "random_resized_crop", "size": 4}], augment_seed=1)


async def test_looking_ahead_begins_where_a_rank_begins(coordinator, source):
    dataset = await coordinator.register(source, recipe=RANDOM)  # each epoch has its own samples
    await coordinator.open(dataset, epoch=7, position=2)
    core, executor = coordinator.engine.core, coordinator.executor
    cursor = core.job("job").cursors[0]
    assert (cursor.watermark, cursor.yielded) == (7 * 3 + 2, 7 * 3 + 2)
    await coordinator.until(lambda: len(executor.keys_asked) >= 2)
    assert all(request.epoch >= 7 for request in executor.requests)
    assert (executor.requests[0].epoch, executor.requests[0].keys[0]) == (7, "dog/3.jpg")
    page = await coordinator.page(epoch=7, position=2, yielded=2)
    assert [batch.position for batch in page.batches] == [2]
    assert cursor.watermark == 7 * 3 + 2, "the sampler is at its announced position"
    await coordinator.until(  # do not interrupt a function while it is connected to the cache
        lambda: core.samples_in(SampleState.RESIDENT) and not core.samples_in(SampleState.IN_FLIGHT)
    )


async def test_the_status_of_a_batch_has_its_samples_and_history(coordinator, source):
    coordinator.executor.outcomes = {"cat/1.jpg": Outcome.TOMBSTONE}
    await coordinator.open(await coordinator.register(source))
    counters = coordinator.engine.core.job("job").counters
    await coordinator.until(lambda: counters.samples_produced + counters.samples_failed == 10)
    first, second, _ = (await coordinator.page()).batches
    unknown = b"u" * 16
    request = pb.GetBatchStatusRequest(batch_ids=[second.batch_id, unknown, first.batch_id])
    good, none, bad = (await coordinator.call("GetBatchStatus", request)).statuses
    assert (none.batch_id, none.known, none.samples, len(none.details)) == (unknown, False, 0, 0)
    assert (good.known, good.samples, good.resident, good.failed, good.in_flight) == (True, 4, 4, 0, 0)
    assert list(good.occurrences) == [pb.Occurrence(job="job", epoch=0, position=1, rank=0)]
    assert any("cached" in event.what for event in good.events)
    assert (bad.samples, bad.resident, bad.failed) == (4, 3, 1)
    assert b"".join(detail.sample_id for detail in bad.details) == first.sample_ids
    assert [(sample.key, sample.state, sample.message) for sample in bad.details] == [
        ("cat/0.jpg", "resident", ""),
        ("cat/1.jpg", "failed", "cat/1.jpg is no image"),
        ("cat/2.jpg", "resident", ""),
        ("cat/3.jpg", "resident", ""),
    ]


async def test_a_status_reply_omits_samples_that_do_not_fit(coordinator, source):
    for number in range(3000):
        (source / "cat" / f"{number:05d}-with-a-name-that-takes-some-room.jpg").write_bytes(b"x")
    await coordinator.open(await coordinator.register(source), batch_size=100)
    batches = (await coordinator.page()).batches
    ids = [batch.batch_id for batch in batches] * 100
    answer = await coordinator.call("GetBatchStatus", pb.GetBatchStatusRequest(batch_ids=ids))
    assert [status.batch_id for status in answer.statuses] == ids
    assert all(status.known and status.samples for status in answer.statuses)
    assert len(answer.statuses[0].details) == 100
    assert not answer.statuses[-1].details
    assert answer.ByteSize() < 2 * 2**20


async def test_statistics_count_what_was_read_and_produced(coordinator, valkey, source):
    await coordinator.open(await coordinator.register(source))
    await coordinator.page(yielded=2)
    counters = coordinator.engine.core.job("job").counters
    await coordinator.until(lambda: counters.samples_produced == 10)
    with valkey.client() as client:
        client.xadd(report_stream("job"), report(0))
        client.xadd(report_stream("job"), report(1, hits=3, straight=2))
    await coordinator.until(lambda: counters.batches_read == 2)
    reply = await coordinator.call("GetJobStats", pb.GetJobStatsRequest(jobs=["job"]))
    (stats,) = reply.jobs
    assert stats.source == f"file://{source}"
    assert (stats.epoch, stats.position, stats.batches_read) == (0, 2, 2)
    assert (stats.cache_hits, stats.samples_straight, stats.cache_misses) == (5, 2, 1)
    assert (stats.samples_produced, stats.samples_failed, stats.retries) == (10, 0, 0)
    assert (stats.invocations, stats.requests_in_flight) == (len(coordinator.executor.requests), 0)
    assert (stats.source_bytes, stats.record_bytes) == (1000, 10 * RECORD_BYTES)
    seconds = (stats.fetch_s, stats.decode_s, stats.push_s, stats.read_s, stats.wait_s)
    assert seconds == pytest.approx((1e-4, 2e-4, 3e-4, 14e-6, 10e-6))
    cache = reply.cache
    assert (cache.budget_bytes, cache.resident_samples) == (2**24, 10)
    assert 10 * RECORD_BYTES <= cache.resident_bytes <= 2**24 - cache.free_bytes
    assert [prices.name for prices in reply.prices] == ["local"]
    every = await coordinator.call("GetJobStats", pb.GetJobStatsRequest())
    assert [job.job for job in every.jobs] == ["job"]


async def test_reports_of_a_job_waiting_for_the_store_are_read_while_another_job_opens(
    coordinator, valkey, source, monkeypatch
):
    dataset, looking, going = await coordinator.register(source), asyncio.Event(), asyncio.Event()

    async def opened(keeper, dataset):
        if not looking.is_set():
            looking.set()
            await going.wait()

    monkeypatch.setattr(StoreKeeper, "opened", opened)
    first = asyncio.create_task(coordinator.open(dataset))
    await looking.wait()
    await coordinator.open(dataset, "another")
    going.set()
    await first
    with valkey.client() as client:
        client.xadd(report_stream("job"), report())
    await coordinator.until(lambda: coordinator.engine.core.job("job").counters.batches_read == 1)


async def test_a_job_closes_with_its_last_rank_and_closing_twice_is_safe(coordinator, valkey, source):
    dataset = await coordinator.register(source)
    for rank in range(2):
        await coordinator.open(dataset, replicas=2, rank=rank)
    with valkey.client() as client:
        client.xadd(report_stream("job"), report())
    close = [pb.CloseJobRequest(job="job", rank=rank) for rank in range(2)]
    assert (await coordinator.call("CloseJob", close[0])).closed
    assert (await coordinator.page(rank=1)).batches
    assert (await coordinator.call("CloseJob", close[1])).closed
    assert not (await coordinator.call("CloseJob", close[1])).closed
    with valkey.client() as client:
        assert not client.exists(report_stream("job"))
    with pytest.raises(UnknownJobError, match="the job 'job' is not open: open it"):
        await coordinator.page()
    await coordinator.open(dataset)
    assert (await coordinator.page()).batches


async def test_a_dataset_has_the_open_jobs_of_its_run(coordinator, source):
    dataset = await coordinator.register(source)
    registered = coordinator.datasets.get(dataset.dataset_id)
    for job in ("one", "two"):
        await coordinator.open(dataset, job)
    assert registered.jobs == {"one", "two"}
    await coordinator.call("CloseJob", pb.CloseJobRequest(job="one", rank=0))
    await coordinator.open(dataset, "three")
    assert registered.jobs == {"two", "three"}


async def test_a_filling_job_waits_for_its_request_and_reports_progress(coordinator, source):
    async def fill(job="fill", **bounds):
        return await coordinator.call("FillUp", pb.FillUpRequest(job=job, **bounds))

    dataset = await coordinator.register(source)
    await coordinator.open(dataset, "fill", fills=True)
    assert coordinator.executor.requests == []
    coordinator.executor.outcomes = {"cat/1.jpg": Outcome.TOMBSTONE}
    await fill()
    core = coordinator.engine.core
    await coordinator.until(lambda: core.filled(core.job("fill")).ended == "all")
    progress = await fill()
    assert (progress.there, progress.failed, progress.ended) == (9, 1, "all")
    assert progress.size_bytes >= 9 * RECORD_BYTES
    assert [(sample.key, sample.message) for sample in progress.failures] == [
        ("cat/1.jpg", "cat/1.jpg is no image")
    ]
    with pytest.raises(ConfigError, match="no store to fill: start it with --store"):
        await fill(to_store=True)
    with pytest.raises(UnknownJobError):
        await fill("nobody")
    await coordinator.open(dataset, "read")
    with pytest.raises(ConfigError, match="the job 'read' is for reading: open another one with fills"):
        await fill("read")
    with pytest.raises(ConfigError, match="open with a different plan, dataset or purpose"):
        await coordinator.open(dataset, "read", fills=True)
    with pytest.raises(ConfigError, match="one rank, all samples"):
        await coordinator.open(dataset, "ranks", replicas=2, fills=True)
