"""Metrics: what a scrape reports, a limited number of labels, and lines for CloudWatch."""

import asyncio
import io
import json
import random
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from superdl.coordinator.cache.info import CacheLoad
from superdl.coordinator.core import BatchRead, JobClosed, JobOpened, Team
from superdl.coordinator.server.metrics import JOBS_NAMED, METRICS, OTHER, EmfLines, Metrics
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.request import Outcome
from tests.coordinator.core.driver import Driver
from tests.coordinator.running import REPORT


def metrics_of(coordinator):
    workers = [pb.WorkerStats(waits=False), pb.WorkerStats(waits=True), pb.WorkerStats(waits=True)]
    executor = SimpleNamespace(absence="", connected=workers, slot_failures={"crashed": 2})
    return Metrics(coordinator.engine, [executor])


def parsed(text):
    """Return values by name and labels, in order. The OpenMetrics parser is strict."""
    order = {metric.name: metric.labels for metric in METRICS}
    values = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = sample.labels
            names = order.get(sample.name) or sorted(labels)
            values[sample.name, *(labels[name] for name in names)] = sample.value
    return values


def scrape(metrics):
    return parsed(metrics.look()())


def open_like(coordinator, name):
    """Return the event for another job of the same plan. Its name is untrusted."""
    job, engine = coordinator.engine.core.job("job"), coordinator.engine
    facts = engine.core.state.datasets[job.dataset]
    return JobOpened(name, facts, job.plan, 0, 0, 0, frozenset())


def read(name, position, hits=4):
    return BatchRead(name, replace(REPORT, position=position, hits=hits))


@pytest.mark.coordinator(teams=(Team("vision", share=3.0),))
async def test_a_scrape_reports_readers_functions_cache_and_calls(coordinator, source):
    metrics = metrics_of(coordinator)
    coordinator.executor.outcomes = {"cat/0.jpg": Outcome.TOMBSTONE}
    await coordinator.open(await coordinator.register(source))
    await coordinator.page()
    await coordinator.until(lambda: not coordinator.engine.core.state.requests)
    coordinator.engine.post(read("job", 0, hits=3))
    metrics.called("/super.v1.Coordinator/OpenJob", 0.002)
    values = scrape(metrics)
    assert values["super_batches_read_total", "job"] == 1
    assert values["super_samples_read_total", "job", "cache"] == 3
    assert values["super_samples_read_total", "job", "missed"] == 1
    assert values["super_stalls_total", "job", "unknown"] == 1
    assert values["super_wait_seconds_total", "job", "unknown"] == 5e-6
    assert values["super_samples_made_total", "job", "decoded"] == 9
    assert values["super_samples_made_total", "job", "failed"] == 1
    assert values["super_function_seconds_total", "job", "decode"] == pytest.approx(20e-5)
    name = coordinator.engine.core.state.fleet.executors[0].name
    assert values["super_requests_total", name, "answered"] >= 1
    assert [values["super_workers", name, state] for state in ("working", "waiting")] == [1, 2]
    assert values["super_slot_failures_total", name, "crashed"] == 2
    assert values["super_concurrency_wanted", name] == values["super_concurrency_had", name] == 2
    assert values["super_cache_samples", "resident"] == 9
    assert values["super_cache_trouble",] == 0.0
    assert ("super_usd_total", "earlier") not in values, "spending before a restart is in other series"
    assert values["super_jobs", "reading"] == values["super_ranks", "reading"] == 1
    assert values["super_call_seconds_bucket", "0.0025", "OpenJob"] == 1
    assert (values["super_team_share", "vision"], values["super_team_share", "-"]) == (3, 1)
    assert values["super_team_requests_total", "-"] >= 1
    names = {name for name, *_ in values}
    assert {metric.name + "_count" * (metric.kind == "histogram") for metric in METRICS} <= names


def totals(values, name, *labels):
    """Return the sum of a counter over the rows of all jobs."""
    return sum(value for key, value in values.items() if key[0] == name and key[2:] == labels)


HOSTILE = 'a"} 1\n# EOF\n\\super_evil{x="' + "x" * 300
NAMES = [HOSTILE, OTHER, *(f"job-{number}" for number in range(JOBS_NAMED + 5))]


async def test_the_fifty_busiest_jobs_have_rows_that_grow_by_exactly_what_they_do(coordinator, source):
    metrics, engine, chance = metrics_of(coordinator), coordinator.engine, random.Random(7)
    await coordinator.open(await coordinator.register(source))
    await coordinator.page()
    engine.post_all(open_like(coordinator, name) for name in NAMES)
    engine.post_all(read(name, 0) for name in NAMES[: JOBS_NAMED + 1])
    before = scrape(metrics)
    batches = {key[1]: value for key, value in before.items() if key[0] == "super_batches_read_total"}
    assert batches == dict.fromkeys(NAMES[: JOBS_NAMED + 1], 1), "an idle job has no row, OTHER always has"
    assert batches[HOSTILE] == 1
    # Unnamed jobs that become the busiest count as others. Named ones keep their rows.
    engine.post_all(read(name, position) for name in NAMES[JOBS_NAMED + 1 :] for position in range(3))
    later = scrape(metrics)
    assert {key[1] for key in later if key[0] == "super_batches_read_total"} == set(batches)
    read_batches, grown, before = 0, 0.0, later
    places = dict.fromkeys(NAMES, 3)
    for _ in range(60):
        for name in chance.sample(NAMES, 20):
            if engine.core.job(name) is None:
                engine.post(open_like(coordinator, name))
                places[name] = 0
            if places[name] < 200:
                engine.post(read(name, places[name] % 3))
                places[name] += 1
                read_batches += 1
            if chance.random() < 0.3:
                engine.post(JobClosed(name, 0))
                if chance.random() < 0.5:
                    engine.post(open_like(coordinator, name))
        values = scrape(metrics)
        rows = {key: value for key, value in values.items() if key[0].endswith("_total")}
        growth = {key: value - before.get(key, 0) for key, value in rows.items()}
        assert not [key for key, value in growth.items() if value < 0]
        # As rate() and increase() see it: each batch counts exactly once, even when its job closes.
        grown += totals(growth, "super_batches_read_total")
        assert grown == read_batches
        assert len([key for key in rows if key[0] == "super_retries_total"]) <= JOBS_NAMED + 1
        before = values


def test_a_cloudwatch_line_covers_the_time_since_the_last_one():
    driver = Driver(size=64, capacity=2)
    driver.now_s = time.monotonic() - 60.0
    driver.open()
    driver.ask(0, 8)
    out = io.StringIO()
    engine = SimpleNamespace(core=driver.core, cache_load=CacheLoad(0.25, 0.5, 3))
    lines = EmfLines(engine, "a-stack", out)
    driver.read(0, missed=(0, 1))
    driver.answer_all()
    driver.read(0, hits=6, wait_us=30_000_000, missed=())
    asyncio.run(lines.write())
    engine.cache_load = CacheLoad(0.25, 0.5, 7)
    asyncio.run(lines.write())
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert first["WaitingPercent"] == pytest.approx(50.0, rel=0.05)
    assert second["WaitingPercent"] == 0.0
    assert (first["Throttles"], first["Thrashing"], first["SpendingLimited"]) == (0, 0, 0)
    (described,) = first["_aws"]["CloudWatchMetrics"]
    assert (described["Namespace"], described["Dimensions"]) == ("SUPER", [["Coordinator"]])
    assert (first["FullestNodePercent"], first["BusiestNodePercent"]) == (25.0, 50.0)
    assert (first["EvictedKeys"], second["EvictedKeys"]) == (3, 4)
    assert first["Coordinator"] == "a-stack"
    names = [metric["Name"] for metric in described["Metrics"]]
    assert set(names) == set(first) - {"_aws", "Coordinator"}
    assert abs(first["_aws"]["Timestamp"] / 1000 - time.time()) < 60
