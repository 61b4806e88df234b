"""One rank of a simulated training run: its sampler, readers and trainer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import (
    EVERY_EPOCH,
    BatchesRequested,
    BatchRead,
    DatasetFacts,
    JobClosed,
    JobOpened,
    SetKey,
)
from superdl.experiments.simulator.world_model import BatchModel
from superdl.super_wire.read_reports import ReadReport

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.experiments.simulator.simulation import Simulation
    from superdl.experiments.simulator.world_model import JobScript

_CALL_RETRY_S = 0.5
_CALL_S = 0.001
_POLL_S = 0.005
_POLL_MAX_S = 1.0
_NOTHING = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class PassMetrics:
    """Metrics of one pass."""

    began_s: float
    ended_s: float = 0.0
    batches: int = 0
    samples: int = 0
    hits: int = 0
    wait_s: float = 0.0  # the trainer waited for a batch
    first_wait_s: float = 0.0


class TrainerModel:
    """A rank that schedules its actions with ``world.after``."""

    def __init__(self, world: Simulation, script: JobScript, rank: int) -> None:
        self.world = world
        self.script = script
        self.rank = rank
        self.done = False
        self.passes: list[PassMetrics] = []
        self._number = -1
        self._epoch = 0
        self._stop = self._requested = self._yielded = self._consumed = 0
        self._page: dict[int, tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]] = {}
        self._sees_store = script.straight and world.model.settings.store
        self._reading: dict[int, BatchModel] = {}
        self._ready: dict[int, BatchModel] = {}
        self._busy = False
        self._requesting = False
        self._idle_since_s = 0.0

    def start(self) -> None:
        """Open the job and begin the first pass."""
        self._epoch = self.script.passes[0][0]
        self._open_job()
        self._begin_pass()
        self.world.after(self.world.model.heartbeat_s, self._heartbeat)

    @property
    def waits_s(self) -> float:
        """The time that the trainer has been waiting for the next batch, in seconds."""
        under_way = self.passes and not self.passes[-1].ended_s and not self._busy
        return self.world.now_s - self._idle_since_s if under_way else 0.0

    def _begin_pass(self) -> None:
        self._number += 1
        if self._number == len(self.script.passes):
            self.done = True
            self.world.under_way -= 1
            if self.script.ending == "close":
                self.world.post(JobClosed(self.script.name, self.rank))
            return
        self._epoch, first, self._stop = self.script.passes[self._number]
        self._requested = self._yielded = self._consumed = first
        self._page.clear()
        self._reading.clear()
        self._ready.clear()
        self._requesting = False
        self._idle_since_s = self.world.now_s
        self.passes.append(PassMetrics(self.world.now_s))
        self._continue()

    def _open_job(self) -> bool:
        """Register this rank. Return False if the coordinator is down."""
        world, script = self.world, self.script
        if not world.coordinator_up:
            return False
        job = world.core.job(script.name)
        plan = script.plan_of(self._epoch)
        if job is None or self.rank not in job.cursors or job.plan != plan:
            data = world.model.datasets[script.dataset]
            record_bytes, was_empty = int(data.record_bytes.mean()), world.cache_was_empty
            described = script.dataset, data.size, data.random, record_bytes, was_empty
            facts = DatasetFacts(*described, data.runs)
            epoch, position, _ = script.passes[max(self._number, 0)]
            unfit = world.model.unfit.get(script.dataset, frozenset())
            opened = JobOpened(script.name, facts, plan, self.rank, epoch, position, unfit, script.team)
            if world.model.settings.store and not data.random:
                world.post(opened, world.store.scanned(data.name))
            else:
                world.post(opened)
        return True

    def _request_page(self, number: int) -> None:
        """Request the next page. Retry while the coordinator is down."""
        if number != self._number or self.done:
            return
        if not self._open_job():
            self.world.after(_CALL_RETRY_S, partial(self._request_page, number))
            return
        self._requesting = False
        start = self._requested
        plan = self.script.plan_of(self._epoch)
        self._requested = min(start + self.script.page, plan.batches_per_epoch)
        span = plan.span(self._epoch, start, self._requested, self.rank)
        for offset in range(len(span)):
            part = slice(*span.offsets[offset : offset + 2])
            indices = span.indices[part]
            self._page[start + offset] = (indices, span.padding[part], self._placed(indices))
        self._report_progress(start)
        self._continue()

    def _placed(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        samples = self.world.core.state.sets.get(SetKey(self.script.dataset, EVERY_EPOCH))
        if samples is None or not self._sees_store:
            return np.zeros(indices.size, dtype=np.bool_)
        return samples.stored(indices)

    def _report_progress(self, start: int) -> None:
        stop, yielded = self._requested, min(self._yielded, self._requested)
        batches = start, stop, yielded
        self.world.post(
            BatchesRequested(self.script.name, self.rank, self._epoch, *batches, self._sees_store)
        )

    def _heartbeat(self) -> None:
        if not self.done:
            if self._open_job():
                self._report_progress(min(self._yielded, self._requested))
            self.world.after(self.world.model.heartbeat_s, self._heartbeat)

    def _continue(self) -> None:
        """Assign batches to idle readers, request a page, and consume the next batch, if possible."""
        script = self.script
        if self._consumed == self._stop and not self._busy:
            self.passes[-1].ended_s = self.world.now_s
            self._begin_pass()
            return
        while len(self._reading) < script.workers and self._yielded < self._stop:
            # Like a DataLoader, prefetch two batches per worker.
            if self._yielded - self._consumed >= 2 * script.workers or self._yielded not in self._page:
                break
            self._read_next()
        # Request the next page when half of this one remains.
        page_is_low = self._requested - self._yielded <= script.page // 2
        is_last = self._requested == script.plan_of(self._epoch).batches_per_epoch
        if page_is_low and not is_last and not self._requesting:
            self._requesting = True
            self.world.after(_CALL_S, partial(self._request_page, self._number))
        if self._consumed in self._ready and not self._busy:
            self._consume()

    def _read_next(self) -> None:
        indices, padding, placed = self._page.pop(self._yielded)
        data, now = self.world.model.datasets[self.script.dataset], self.world.now_s
        key = SetKey(data.name, self._epoch if data.random else EVERY_EPOCH)
        missing = np.arange(indices.size)
        reading = BatchModel(self._number, self._yielded, key, indices, padding, now, missing, placed)
        self._reading[self._yielded] = reading
        self._yielded += 1
        self.world.after(0.0, partial(self._attempt, reading))

    def _attempt(self, reading: BatchModel) -> None:
        if reading.number != self._number or self.done:  # the pass was abandoned meanwhile
            return
        world = self.world
        indices = reading.indices[reading.missing]
        followed = self._sees_store & world.store.good(reading.key, indices)
        delivered, corrupt, pointed = world.cache.read(reading.key, indices, world.now_s, followed)
        if reading.attempts == 0:
            straight = reading.placed & followed
            delivered = delivered | straight
            reading.straight = int(np.count_nonzero(straight | pointed))
            reading.hits = int(np.count_nonzero(delivered))
        corrupt = corrupt & ~delivered
        spoilt = reading.missing[corrupt]
        reading.missing = reading.missing[~delivered]
        reading.attempts += 1
        if not reading.missing.size:
            if self.script.read_s:
                world.after(self.script.read_s, partial(self._finish_reading, reading))
            else:
                self._finish_reading(reading)
            return
        self._report(reading, spoilt, done=False)
        world.waits(self.script.name, self.rank, reading.position, world.now_s - reading.began_s)
        delay_s = min(_POLL_MAX_S, _POLL_S * 2.0 ** (reading.attempts - 1)) * (0.5 + 0.5 * world.rng.random())
        world.after(delay_s, partial(self._attempt, reading))

    def _finish_reading(self, reading: BatchModel) -> None:
        if reading.number != self._number or self.done:
            return
        self._report(reading, _NOTHING, done=True)
        del self._reading[reading.position]
        self._ready[reading.position] = reading
        self._continue()

    def _report(self, reading: BatchModel, spoilt: NDArray[np.int64], *, done: bool) -> None:
        world = self.world
        sizes = world.model.datasets[reading.key.dataset].record_bytes
        report = ReadReport(
            rank=self.rank,
            epoch=self._epoch,
            position=reading.position,
            samples=reading.indices.size,
            hits=reading.hits,
            wait_us=int((world.now_s - reading.began_s - self.script.read_s) * 1e6) if done else 0,
            read_us=int(self.script.read_s * 1e6),
            check_us=0,
            size_bytes=int(sizes[reading.indices].sum()) if done else 0,
            attempt=reading.attempts,
            done=int(done),
            straight=reading.straight if done else 0,
            missed=tuple(reading.missing.tolist()),
            corrupt=tuple(spoilt.tolist()),
        )
        world.report(BatchRead(self.script.name, report))

    def _consume(self) -> None:
        self._busy = True
        metrics, waited_s = self.passes[-1], self.world.now_s - self._idle_since_s
        if not metrics.batches:
            metrics.first_wait_s = waited_s
        metrics.wait_s += waited_s + self.script.handover_s
        step_s = self.script.step_s + self.script.handover_s
        if self.script.pause_s:
            middle = (self.script.passes[self._number][1] + self._stop) // 2
            step_s += self.script.pause_s if self._consumed == middle else 0.0
        self.world.after(step_s, self._finish_step)

    def _finish_step(self) -> None:
        self._busy = False
        self._idle_since_s = self.world.now_s
        batch, metrics = self._ready.pop(self._consumed), self.passes[-1]
        metrics.batches += 1
        metrics.samples += batch.indices.size
        metrics.hits += batch.hits
        self.world.consumed(self.script.name, self.rank, batch)
        self._consumed += 1
        self._continue()
