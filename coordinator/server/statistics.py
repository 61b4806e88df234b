"""Statistics for jobs, the cache and batches, as protocol messages."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import SampleState
from superdl.coordinator.executors.base import executor_class
from superdl.coordinator.server.log_handler import warned_of
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.protocol import installed_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.catalog.dataset import Dataset
    from superdl.coordinator.core import BatchPlace, Core, ExecutorState, Job, SetKey
    from superdl.coordinator.executors.base import Executor
    from superdl.coordinator.server.engine import Engine
    from superdl.coordinator.server.settings import Settings

_DETAIL_BYTES = 64  # the least that a sample's status takes
_SHOWN_OCCURRENCES = 4
_SHOWN_FAILURES = 20


def stats(
    engine: Engine,
    settings: Settings,
    jobs: Sequence[Job],
    executors: Sequence[Executor],
    *,
    with_stalls: bool,
    history: Sequence[pb.JobStats],
) -> pb.JobStatsList:
    """Return the reply to ``GetJobStats``."""
    core, sources = engine.core, engine.datasets
    return pb.JobStatsList(
        jobs=[
            job_stats(core, job, sources[job.dataset].listing.source, with_stalls=with_stalls) for job in jobs
        ],
        cache=cache_stats(engine),
        coordinating=coordinating(settings),
        prices=executor_prices(core),
        executors=executor_stats(core, executors),
        history=history,
        teams=team_stats(core),
        warned=[pb.Warned(**warning._asdict()) for warning in warned_of()[1]],
        workers=[worker for executor in executors for worker in executor.connected],
    )


def job_stats(core: Core, job: Job, source: str, *, with_stalls: bool = False) -> pb.JobStats:
    """Return a job's statistics, with its latest stalls if requested."""
    costs = core.state.ledger.job_costs(job.name)
    counters = asdict(job.counters) | {"usd": costs.usd}
    counters |= {name: usd for name, usd in asdict(costs).items() if name in counters}
    message = pb.JobStats(job=job.name, source=source, lapsed=job.lapsed, team=job.team, **counters)
    if job.cursors:  # otherwise it has closed
        furthest = max(cursor.watermark for cursor in job.cursors.values())
        message.epoch, message.position = job.epoch_and_position(furthest)
        message.lookahead_batches, message.interval_s = core.lookahead_batches(job), job.interval_s
        message.ranks = len(job.cursors)
        message.lapsed_ranks = sum(cursor.lapsed for cursor in job.cursors.values())
    for cause, batches in job.stalls.batches.items():
        message.stall_causes.add(cause=cause, batches=batches, wait_s=job.stalls.wait_us[cause] / 1e6)
    for stall in job.stalls.recent if with_stalls else ():
        message.recent_stalls.add(
            rank=stall.rank,
            epoch=stall.epoch,
            position=stall.position,
            cause=stall.cause,
            wait_s=stall.wait_us / 1e6,
        )
    return message


def coordinating(settings: Settings) -> pb.Coordinating:
    """Describe this coordinator, including some of its non-secret settings."""
    message = pb.Coordinating(
        version=installed_version(),
        clock_s=time.time(),
        cache=settings.cache,
        executors=settings.executors,
        request_timeout_s=settings.request_timeout_s,
        lookahead_batches=settings.lookahead_batches,
    )
    for executor in map(executor_class, settings.executors):
        for name in executor.public_settings:
            setattr(message, name, getattr(settings, name))
    return message


def cache_stats(engine: Engine) -> pb.CacheStats:
    """Return statistics for the cache, the store and all jobs together."""
    core, keeper = engine.core, engine.keeper
    return pb.CacheStats(
        budget_bytes=core.state.budget_bytes,
        resident_bytes=core.state.resident_bytes,
        resident_samples=core.samples_in(SampleState.RESIDENT),
        in_flight_samples=core.samples_in(SampleState.IN_FLIGHT),
        dropped_samples=core.state.dropped_samples,
        reproduced_samples=core.state.thrash.reproduced_samples,
        thrashing=core.thrashing,
        needed_bytes=core.needed_bytes,
        total_requests_in_flight=len(core.state.requests),
        concurrency=core.state.fleet.limit,
        capacity=core.state.fleet.capacity,
        total_usd=core.state.ledger.total_usd,
        usd_per_hour=core.state.ledger.usd_per_hour(engine.now_s()),
        spending=core.state.ledger.spending.value,
        free_bytes=core.state.free_bytes,
        cache_trouble=engine.cache_trouble,
        store=keeper.address,
        store_used_bytes=keeper.room.used_bytes,
        store_room_bytes=keeper.room.bytes,
        store_packs=len(keeper.room.sizes),
        store_trouble=core.store_trouble or keeper.problem,
    )


def executor_stats(core: Core, executors: Sequence[Executor]) -> list[pb.ExecutorStats]:
    """Return the executors' statistics, cheapest first."""
    return [
        pb.ExecutorStats(
            name=member.name,
            capacity=member.concurrency.capacity,
            concurrency=member.concurrency.limit,
            in_flight=member.in_flight,
            requests=member.requests,
            samples=member.samples,
            usd=member.usd,
            trouble=executor.absence or _trouble(core, member),
            ended=[pb.RequestsEnded(outcome=name, requests=count) for name, count in member.outcomes.items()],
        )
        for member, executor in zip(core.state.fleet.executors, executors, strict=True)
    ]


def team_stats(core: Core) -> list[pb.TeamStats]:
    """Return the teams' statistics, if there are several."""
    jobs = Counter(job.team for job in core.jobs)
    return [
        pb.TeamStats(
            name=team.facts.name,
            share=team.facts.share,
            priority=team.facts.priority,
            max_usd=team.facts.max_usd if team.facts.max_usd < math.inf else 0.0,
            jobs=jobs[team.facts.name],
            in_flight=team.in_flight,
            requests=team.requests,
            usd=team.usd,
            stopped=core.state.turn(team.facts.name) is None,
        )
        for team in (core.state.teams if core.state.teams.several else ())
    ]


def _trouble(core: Core, member: ExecutorState) -> str:
    several = len(core.state.fleet.executors) > 1
    reasons = []
    if times := member.concurrency.throttled_lately(core.now_s):
        reasons.append(f"throttled {times:,} times in the last minute")
    # A single executor is never set aside.
    if member.breaker.reason and (several or times or member.breaker.corrupts):
        reasons.append(member.breaker.reason)
    return ": ".join(reasons)


def executor_prices(core: Core) -> list[pb.ExecutorPrices]:
    """Return the prices of the executors that decode, cheapest first."""
    units = [field.name for field in pb.ExecutorPrices.DESCRIPTOR.fields if field.name != "name"]
    return [
        pb.ExecutorPrices(name=facts.name, **{unit: getattr(facts.prices, unit) for unit in units})
        for facts in core.state.settings.executors
        if facts.decodes
    ]


def filling(core: Core, job: Job, dataset: Dataset) -> pb.Filling:
    """Return the progress of a filling job, with its first few failures."""
    progress = core.filled(job)
    reply = pb.Filling(
        there=progress.present, failed=progress.failed, size_bytes=progress.size_bytes, ended=progress.ended
    )
    key, state = job.samples_of(0), core.state
    failed = np.flatnonzero(state.states(key, np.arange(job.plan.size)) == SampleState.FAILED)
    shown = failed[:_SHOWN_FAILURES]
    for index, name in zip(shown.tolist(), dataset.catalog.names_at(shown), strict=True):
        reason = state.failures.get((key, index), "it failed earlier, for the reason in its tombstone")
        reply.failures.add(key=name.decode(), state="failed", message=reason)
    return reply


def batch_status(
    engine: Engine,
    occurrences: list[BatchPlace],
    batch: bytes,
    room_bytes: int,
    *,
    with_events: bool,
) -> pb.BatchStatus:
    """Return a batch's status, with its history if requested, and with its samples if they fit."""
    status, core = pb.BatchStatus(batch_id=batch[:ID_BYTES]), engine.core
    current = [occurrence for occurrence in occurrences if core.job(occurrence.job)]
    job = core.job(current[-1].job) if current else None
    if job is None:
        return status
    latest, now = current[-1], engine.now_s()
    indices = job.plan.batch(latest.epoch, latest.position, latest.rank).indices
    key = job.samples_of(latest.epoch)
    counts = np.bincount(core.state.states(key, indices), minlength=len(SampleState))
    status.known = True
    status.samples = indices.size
    status.resident = int(counts[SampleState.RESIDENT])
    status.in_flight = int(counts[SampleState.IN_FLIGHT])
    status.failed = int(counts[SampleState.FAILED])
    for number, occurrence in enumerate(reversed(current)):
        message = pb.Occurrence(
            job=occurrence.job, epoch=occurrence.epoch, position=occurrence.position, rank=occurrence.rank
        )
        status.occurrences.insert(0, message)
        if not with_events or number >= _SHOWN_OCCURRENCES or status.ByteSize() > room_bytes // 2:
            continue
        for at_s, text in core.history(
            occurrence.job, occurrence.rank, occurrence.epoch, occurrence.position
        ):
            status.events.add(occurrence=message, seconds_ago=now - at_s, what=text)
    if indices.size * _DETAIL_BYTES + status.ByteSize() <= room_bytes:
        status.details.extend(_details(core, engine.datasets[job.dataset], key, latest.epoch, indices))
        if status.ByteSize() > room_bytes:
            del status.details[:]
    return status


def _details(
    core: Core, dataset: Dataset, key: SetKey, epoch: int, indices: NDArray[np.int64]
) -> Iterator[pb.SampleStatus]:
    ids, names = dataset.ids(indices, epoch), dataset.catalog.names_at(indices)
    for number, (index, value) in enumerate(
        zip(indices.tolist(), core.state.states(key, indices), strict=True)
    ):
        state = SampleState(int(value))
        yield pb.SampleStatus(
            sample_id=ids[number * ID_BYTES : (number + 1) * ID_BYTES],
            key=names[number].decode(),
            state=state.name.lower(),
            message=core.state.failures.get((key, index), "") if state is SampleState.FAILED else "",
        )
