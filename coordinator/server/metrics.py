"""The coordinator's metrics: definitions, values for scrapes, and log lines for CloudWatch."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import defaultdict
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TextIO, TypeAlias

import numpy as np

from superdl.coordinator.core import Cause, FailureKind, Spending
from superdl.coordinator.server.log_handler import PARTS, warned_of
from superdl.coordinator.server.statistics import cache_stats, executor_stats, team_stats
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import installed_version
from superdl.super_wire.stall_causes import WAITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray
    from prometheus_client.core import Metric as Family

    from superdl.coordinator.core import ClosedJobs, Job
    from superdl.coordinator.executors.base import Executor
    from superdl.coordinator.server.engine import Engine

_Row: TypeAlias = "tuple[str, tuple[str, ...], float]"

# Labels are few: samples have none, and only the busiest jobs have names.
JOBS_NAMED = 50
OTHER = "other"
CALL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
EMF_PAUSE_S = 60.0


class Metric(NamedTuple):
    """A metric's name, labels and help text. ``kind`` is counter, gauge or histogram."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str
    # Its fields in the statistics: one of an executor, a team or the cache, or counters of a job, each after
    # the value of the second label and a colon if there is one.
    fields: tuple[str, ...] = ()


# Name, kind, labels = fields | help. Prometheus reserves the label "job" for its targets.
_LIST = """
super_batches_read_total counter job_name = batches_read | Batches that readers have received.
super_samples_read_total counter job_name place = cache:cache_hits store:samples_straight \
missed:cache_misses | Samples by where first found: cache, store, missed.
super_read_bytes_total counter job_name = read_bytes | Bytes that readers read from the cache.
super_read_seconds_total counter job_name = read_s | Seconds that readers spent receiving batches.
super_wait_seconds_total counter job_name cause | Seconds that readers waited for samples.
super_stalls_total counter job_name cause | Batches that readers had to wait for.
super_samples_made_total counter job_name way = decoded:samples_produced restored:samples_restored \
reused:samples_reused failed:samples_failed | Samples decoded, restored, resident when planned, or failed.
super_retries_total counter job_name = retries | Samples that were requested again.
super_hedges_total counter job_name = hedges | Second requests that raced a straggler.
super_function_seconds_total counter job_name part = fetch:fetch_s decode:decode_s push:push_s \
| Function seconds: fetch, decode, push.
super_source_requests_total counter job_name = source_requests \
| Requests to the source, such as GETs of a bucket.
super_source_bytes_total counter job_name = source_bytes | Bytes that functions fetched from the source.
super_record_bytes_total counter job_name = record_bytes | Bytes that functions pushed into the cache.
super_lookahead_batches gauge job_name | Batches that a named job currently looks ahead.
super_lookahead_seconds gauge job_name | The same in seconds, at the job's pace.
super_job_usd gauge job_name | A job's share of spending, which changes as others read.
super_jobs gauge state | Jobs that are reading, or have lapsed (gone silent).
super_ranks gauge state | Ranks of open jobs, likewise.
super_requests_total counter executor outcome | Finished requests: answered, or by kind of failure.
super_requests_in_flight gauge executor = in_flight | Requests in progress, or waiting for a function.
super_concurrency_wanted gauge executor = capacity | Concurrent requests that the settings allow.
super_concurrency_had gauge executor = concurrency | Concurrent requests that the executor accepts now.
super_executor_trouble gauge executor = trouble | 1 while `superdl stats` reports trouble with it.
super_executor_samples_total counter executor = samples | Samples that an executor produced.
super_executor_usd_total counter executor = usd | Dollars billed for its requests.
super_cold_starts_total counter executor | Answers from functions that had to start.
super_cold_start_seconds_total counter executor | Seconds until those functions started.
super_workers gauge executor state | Connected workers: working, or waiting with another decoder.
super_slot_failures_total counter executor kind | Failures of workers' slots: crashed, timed_out, restarted.
super_team_share gauge team = share | A team's share of requests and cache; no team is "-".
super_team_requests_in_flight gauge team = in_flight | Requests in progress for a team's jobs.
super_team_requests_total counter team = requests | Requests made for a team's jobs.
super_team_usd_total counter team = usd | Dollars spent on a team's requests, including before restarts.
super_team_stopped gauge team = stopped | 1 while a team may spend no more, else 0.
super_cache_budget_bytes gauge = budget_bytes | Memory of the cache for records.
super_cache_resident_bytes gauge = resident_bytes | Memory that records take.
super_cache_free_bytes gauge = free_bytes | Memory that is free; below 0 under pressure.
super_cache_needed_bytes gauge = needed_bytes | The budget with which nothing would be dropped.
super_cache_trouble gauge = cache_trouble | 1 while the cache does not respond.
super_cache_fullest_node_ratio gauge | Share of its memory that the fullest node uses.
super_cache_busiest_node_ratio gauge | Share of a core that the busiest node's main thread uses.
super_cache_evicted_keys_total counter | Keys that nodes evicted by themselves.
super_cache_samples gauge state | Samples that are resident, or in flight.
super_cache_dropped_samples_total counter = dropped_samples | Samples dropped to make room.
super_cache_reproduced_samples_total counter = reproduced_samples | Of those, samples produced again.
super_cache_thrashing gauge = thrashing | 1 while samples are dropped and soon produced again.
super_store_used_bytes gauge = store_used_bytes | Bytes of all packs in the store.
super_store_room_bytes gauge = store_room_bytes | Maximum bytes of packs; 0 means no limit.
super_store_packs gauge = store_packs | Packs in the store.
super_store_trouble gauge = store_trouble | 1 while `superdl stats` reports trouble with the store.
super_usd_total counter kind | Dollars spent since the start, by purpose.
super_usd_per_hour gauge = usd_per_hour | Spending in the last minute, in dollars per hour.
super_spending_limited gauge | 1 near a spending cap, 2 at the cap, else 0.
super_listings gauge | Sources that are being listed.
super_listing_samples gauge | Samples that those listings have found so far.
super_warnings_total counter part | Warnings and errors by part, whether logged or only counted.
super_call_seconds histogram method | Seconds to answer a call; GetDataset waits.
super_build_info gauge version | Always 1; the label is SUPER's version.
"""


def _parsed(line: str) -> Metric:
    head, _, text = line.partition(" | ")
    declared, _, fields = head.partition(" = ")
    name, kind, *labels = declared.split()
    return Metric(name, kind, tuple(labels), text, tuple(fields.split()))


METRICS = tuple(map(_parsed, _LIST.strip().splitlines()))

# The counters of a job: the metric, its second label if there is one, and the job's attribute.
_COUNTERS = [
    (metric.name, tuple(filter(None, [label])), attrgetter(f"counters.{counter}"))
    for metric in METRICS
    if metric.labels[:1] == ("job_name",)
    for label, _, counter in (field.rpartition(":") for field in metric.fields)
]
_ROW = [(name, labels) for name, labels, _ in _COUNTERS]
_ROW += [(f"super_{name}_total", (wait,)) for name in ("stalls", "wait_seconds") for wait in WAITS]
_ZEROS = np.zeros(len(_ROW))
_OUTCOMES = ("answered", *(kind.name.lower() for kind in FailureKind))


def _row_of(account: Job | ClosedJobs) -> NDArray[np.float64]:
    stalls, counts = account.stalls, [count_of(account) for _, _, count_of in _COUNTERS]
    batches = (stalls.batches[Cause(wait)] for wait in WAITS)
    waits_s = (stalls.wait_us[Cause(wait)] / 1e6 for wait in WAITS)
    return np.array([*counts, *batches, *waits_s], np.float64)


class Metrics:
    """A collector for ``prometheus_client``. Raises ``ConfigError`` if the package is missing."""

    def __init__(self, engine: Engine, executors: Sequence[Executor]) -> None:
        try:
            from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
        except ImportError as error:
            raise ConfigError("metrics need an optional package: pip install 'superdl[metrics]'") from error
        self._engine, self._executors = engine, executors
        self._named: frozenset[str] = frozenset()
        # The jobs that were open at the last scrape, and their rows.
        self._seen: dict[str, tuple[Job, NDArray[np.float64]]] = {}
        self._rows: dict[str, NDArray[np.float64]] = {}
        self._in_rows = self._others = _ZEROS
        self._usd: dict[str, float] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        call_metric = {metric.name: metric for metric in METRICS}["super_call_seconds"]
        self._calls = Histogram(
            call_metric.name, call_metric.help, call_metric.labels, buckets=CALL_S, registry=self._registry
        )

    def called(self, method: str, took_s: float) -> None:
        """Record the duration of a call to one of the service's methods."""
        self._calls.labels(method.rpartition("/")[2]).observe(took_s)

    def look(self) -> Callable[[], bytes]:
        """Take a snapshot of all metrics. The returned function renders it as text, in any thread."""
        from prometheus_client.openmetrics.exposition import generate_latest

        families: list[Family] = list(self._registry.collect())
        snapshot = type("Snapshot", (), {"collect": lambda _: families})()
        return lambda: generate_latest(snapshot)  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[Family]:
        """Yield all metric families for the registry."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        teams = (_fields(stats, ("team",), (stats.name or "-",)) for stats in team_stats(self._engine.core))
        values: defaultdict[str, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
        for name, labels, value in chain(self._of_jobs(), self._of_executors(), *teams, self._of_the_rest()):
            values[name].append((labels, value))
        for metric in METRICS:
            kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
            if metric.kind in kinds:
                family = kinds[metric.kind](metric.name, metric.help, labels=metric.labels)
                for labels, value in values[metric.name]:
                    family.add_metric(labels, value)
                yield family

    def _of_jobs(self) -> Iterator[_Row]:
        core = self._engine.core
        jobs = core.jobs
        # A job keeps its name until it closes or lapses.
        jobs.sort(key=lambda job: (job.lapsed, job.name not in self._named, -job.counters.batches_read))
        named = [job for job in jobs if job.name != OTHER][:JOBS_NAMED]
        self._named = frozenset(job.name for job in named)
        before, self._seen = self._seen, {}
        total = _row_of(core.state.closed)
        for job in jobs:
            counts = _row_of(job)
            total += counts
            seen_job, seen = before.get(job.name, (None, _ZEROS))
            row, self._seen[job.name] = self._rows.pop(job.name, _ZEROS), (job, counts)
            if job.name in self._named:
                growth = counts - seen if seen_job is job else counts
                self._rows[job.name] = row + growth
                self._in_rows = self._in_rows + growth
                ahead = core.lookahead_batches(job)
                yield "super_lookahead_batches", (job.name,), ahead
                yield "super_lookahead_seconds", (job.name,), ahead * job.interval_s
                yield "super_job_usd", (job.name,), core.state.ledger.job_costs(job.name).usd
        while len(self._rows) > JOBS_NAMED:  # the first has been closed the longest
            del self._rows[next(iter(self._rows))]
        # A named job's counts never move to OTHER, where they would look like a burst of work. Sums in
        # a different order differ in the last digit, and a counter must never fall.
        self._others = np.maximum(self._others, total - self._in_rows)
        for job_name, row in (*self._rows.items(), (OTHER, self._others)):
            for (name, labels), value in zip(_ROW, row.tolist(), strict=True):
                yield name, (job_name, *labels), value
        yield from _states("super_jobs", [job.lapsed for job in jobs])
        yield from _states("super_ranks", [cursor.lapsed for job in jobs for cursor in job.cursors.values()])

    def _of_executors(self) -> Iterator[_Row]:
        core = self._engine.core
        members = core.state.fleet.executors
        for stats, member, executor in zip(
            executor_stats(core, self._executors), members, self._executors, strict=True
        ):
            # A store-only executor may have the name of one that decodes.
            name = (stats.name if member.decodes else f"{stats.name} (store)",)
            for outcome in _OUTCOMES:
                yield "super_requests_total", (*name, outcome), member.outcomes[outcome]
            yield from _fields(stats, ("executor",), name)
            yield "super_cold_starts_total", name, member.cold_starts
            yield "super_cold_start_seconds_total", name, member.cold_s
            waiting = sum(worker.waits for worker in executor.connected)
            yield "super_workers", (*name, "working"), len(executor.connected) - waiting
            yield "super_workers", (*name, "waiting"), waiting
            for kind, count in executor.slot_failures.items():
                yield "super_slot_failures_total", (*name, kind), count

    def _of_the_rest(self) -> Iterator[_Row]:
        engine = self._engine
        stats = cache_stats(engine)
        yield from _fields(stats, (), ())
        yield "super_cache_fullest_node_ratio", (), engine.cache_load.fullest_share
        yield "super_cache_busiest_node_ratio", (), engine.cache_load.busiest_share
        yield "super_cache_evicted_keys_total", (), engine.cache_load.evicted_keys
        yield "super_cache_samples", ("resident",), stats.resident_samples
        yield "super_cache_samples", ("in_flight",), stats.in_flight_samples
        costs = engine.core.state.ledger.spent()
        for kind in costs.__slots__:
            if kind == "earlier_usd":  # counted by series before the restart
                continue
            # Sums in a different order may fall in the last digit.
            usd = self._usd[kind] = max(getattr(costs, kind), self._usd.get(kind, 0.0))
            yield "super_usd_total", (kind.removesuffix("_usd"),), usd
        yield "super_spending_limited", (), list(Spending).index(Spending(stats.spending))
        listings = {
            id(dataset.listing): dataset.listing for dataset in engine.datasets if not dataset.listing.ended
        }
        yield "super_listings", (), len(listings)
        yield "super_listing_samples", (), math.fsum(listing.listed for listing in listings.values())
        warnings, _ = warned_of()
        for part in PARTS:
            yield "super_warnings_total", (part,), warnings[part]
        yield "super_build_info", (installed_version(),), 1


def _fields(stats: object, labels: tuple[str, ...], values: tuple[str, ...]) -> Iterator[_Row]:
    """Yield the metrics that are fields of ``stats``. A non-empty string counts as 1."""
    for metric in METRICS:
        if metric.fields and metric.labels == labels:
            value = getattr(stats, metric.fields[0])
            yield metric.name, values, bool(value) if isinstance(value, str) else value


def _states(name: str, lapsed: list[bool]) -> Iterator[_Row]:
    yield name, ("reading",), len(lapsed) - sum(lapsed)
    yield name, ("lapsed",), sum(lapsed)


class EmfLines:
    """Writes metrics for alarms in the CloudWatch embedded metric format. ``owner`` is their dimension."""

    def __init__(self, engine: Engine, owner: str, stream: TextIO | None = None) -> None:
        self._engine, self._owner, self._stream = engine, owner, stream or sys.stdout
        self._waited_us: dict[str, int] = {}
        self._evicted_keys = 0
        self._written_s = engine.core.now_s

    async def write(self) -> None:
        """Write a line that covers the time since the previous line."""
        core, load, now_s = self._engine.core, self._engine.cache_load, time.monotonic()
        passed_s, self._written_s = now_s - self._written_s, now_s
        waited_us = {job.name: sum(job.stalls.wait_us.values()) for job in core.jobs}
        more_us = sum(max(0, us - self._waited_us.get(name, 0)) for name, us in waited_us.items())
        self._waited_us = waited_us
        evicted_keys, self._evicted_keys = load.evicted_keys - self._evicted_keys, load.evicted_keys
        ranks = sum(not cursor.lapsed for cursor in core.state.cursors)
        executors = core.state.fleet.executors
        values = {
            "WaitingPercent": 100 * more_us / 1e6 / (ranks * passed_s) if ranks and passed_s > 0 else 0.0,
            "FullestNodePercent": 100 * load.fullest_share,
            "BusiestNodePercent": 100 * load.busiest_share,
            "EvictedKeys": evicted_keys,
            "Thrashing": int(core.thrashing),
            "Throttles": sum(executor.concurrency.throttled_lately(now_s) for executor in executors),
            "SpendingLimited": list(Spending).index(core.state.ledger.spending),
        }
        metrics = [
            {"Name": name, "Unit": "Percent" if name.endswith("Percent") else "Count"} for name in values
        ]
        # CloudWatch extracts metrics from log lines in this format, without an agent, permission or call:
        # https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html
        described = {"Namespace": "SUPER", "Dimensions": [["Coordinator"]], "Metrics": metrics}
        about = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [described]}
        self._stream.write(json.dumps({"_aws": about, "Coordinator": self._owner, **values}) + "\n")
        self._stream.flush()
