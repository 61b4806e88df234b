"""One rank of a simulated training run: a sampler that asks for pages, readers, a trainer that consumes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from coordinator.core import SetKey
from coordinator.core.events import BatchesAsked, BatchRead, DatasetAdded, JobClosed, JobOpened

if TYPE_CHECKING:
    from experiments.simulator.scenario import JobScript
    from experiments.simulator.world import World

__all__ = ["Delivery", "Trainer"]

_CALL_RETRY_S = 0.5
_HEARTBEAT_S = 5.0
_REPORT_DELAY_S = 0.001


@dataclass
class _Reading:
    """A batch that a reader works on; what it has got it keeps."""

    position: int
    key: SetKey
    indices: np.ndarray
    padding: np.ndarray
    began_s: float
    missing: np.ndarray
    hits: int = 0
    attempts: int = 0


@dataclass(frozen=True)
class Delivery:
    """A batch that the trainer has consumed."""

    number: int
    epoch: int
    position: int
    indices: np.ndarray
    padding: np.ndarray


@dataclass
class Trainer:
    """A rank. Everything it does happens by ``world.after``."""

    world: World
    script: JobScript
    rank: int
    done: bool = False
    deliveries: list[Delivery] = field(default_factory=list)
    finished_passes: list[int] = field(default_factory=list)
    _number: int = -1
    _epoch: int = 0
    _stop: int = 0
    _asked: int = 0
    _yielded: int = 0
    _consumed: int = 0
    _page: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    _reading: dict[int, _Reading] = field(default_factory=dict)
    _ready: dict[int, _Reading] = field(default_factory=dict)
    _busy: bool = False
    _asking: bool = False

    def start(self) -> None:
        """Open the job and begin the first pass."""
        self._open_job()
        self._begin_pass()
        self.world.after(_HEARTBEAT_S, self._heartbeat)

    def _begin_pass(self) -> None:
        self._number += 1
        if self._number == len(self.script.passes):
            self._end()
            return
        self._epoch, first, self._stop = self.script.passes[self._number]
        self._asked = self._yielded = self._consumed = first
        self._page.clear()
        self._reading.clear()
        self._ready.clear()
        self._asking = False
        self._go_on()

    def _end(self) -> None:
        self.done = True
        if self.script.ending == "close":
            self.world.post(JobClosed(self.script.name, self.rank))

    def _open_job(self) -> bool:
        """Make the coordinator know this rank; ``False`` while there is none."""
        world, script = self.world, self.script
        if not world.coordinator_up:
            return False
        job = world.core.job(script.name)
        if job is None or self.rank not in job.lanes:
            data = world.scenario.datasets[script.dataset]
            world.post(
                DatasetAdded(
                    script.dataset,
                    data.size,
                    data.random,
                    int(data.record_bytes.mean()),
                    known_absent=world.cache_was_empty,
                )
            )
            world.post(JobOpened(script.name, script.dataset, script.plan, self.rank))
        return True

    def _ask(self, number: int) -> None:
        """NextBatches: the next page, tried again while the coordinator is down."""
        if number != self._number or self.done:
            return
        if not self._open_job():
            self.world.after(_CALL_RETRY_S, lambda: self._ask(number))
            return
        self._asking = False
        start = self._asked
        self._asked = min(start + self.script.page, self.script.plan.batches_per_epoch)
        span = self.script.plan.span(self._epoch, start, self._asked, self.rank)
        for offset in range(len(span)):
            batch = span.batch(offset)
            self._page[start + offset] = (batch.indices, batch.padding)
        self._tell(start)
        self._go_on()

    def _tell(self, start: int) -> None:
        name = self.script.name
        self.world.post(
            BatchesAsked(name, self.rank, self._epoch, start, self._asked, min(self._yielded, self._asked))
        )

    def _heartbeat(self) -> None:
        if not self.done:
            if self._open_job():
                self._tell(min(self._yielded, self._asked))
            self.world.after(_HEARTBEAT_S, self._heartbeat)

    def _go_on(self) -> None:
        """Yield batches to idle readers, and consume what is next."""
        if self._consumed == self._stop and not self._busy:
            if self._stop == self.script.plan.batches_per_epoch:
                self.finished_passes.append(self._number)
            self._begin_pass()
            return
        while len(self._reading) < self.script.workers and self._yielded < self._stop:
            if self._yielded - self._consumed >= 2 * self.script.workers:
                break
            if self._yielded not in self._page:
                break
            self._read_next()
        page_is_low = self._asked - self._yielded <= self.script.page // 2
        if page_is_low and self._asked < self.script.plan.batches_per_epoch and not self._asking:
            self._asking = True
            number = self._number
            self.world.after(0.001, lambda: self._ask(number))
        if self._consumed in self._ready and not self._busy:
            self._consume()

    def _read_next(self) -> None:
        indices, padding = self._page.pop(self._yielded)
        job_key = SetKey(
            self.script.dataset, self._epoch if self.world.is_random(self.script.dataset) else -1
        )
        reading = _Reading(
            self._yielded, job_key, indices, padding, self.world.now_s, np.arange(indices.size)
        )
        self._reading[self._yielded] = reading
        self._yielded += 1
        number = self._number
        self.world.after(0.0, lambda: self._attempt(reading, number))

    def _attempt(self, reading: _Reading, number: int) -> None:
        if number != self._number or self.done:
            return
        world = self.world
        wanted = reading.indices[reading.missing]
        if world.cache.up:
            found = world.cache.look(reading.key, wanted, world.now_s)
            corrupt = world.cache.corrupt[reading.key][wanted] & (found > 0)
        else:
            found, corrupt = np.zeros(wanted.size, dtype=np.int64), np.zeros(wanted.size, dtype=np.bool_)
        got = (found != 0) & ~corrupt
        if reading.attempts == 0:
            reading.hits = int(got.sum())
        spoilt = reading.missing[corrupt]
        reading.missing = reading.missing[~got]
        reading.attempts += 1
        done = not reading.missing.size
        self._report(reading, spoilt, done=done)
        if done:
            del self._reading[reading.position]
            self._ready[reading.position] = reading
            self._go_on()
            return
        world.check_patience(self, reading.position, world.now_s - reading.began_s)
        delay_s = min(1.0, 0.005 * 2.0 ** (reading.attempts - 1)) * (0.5 + 0.5 * world.rng.random())
        world.after(delay_s, lambda: self._attempt(reading, number))

    def _report(self, reading: _Reading, spoilt: np.ndarray, *, done: bool) -> None:
        world = self.world
        if not world.cache.up or world.rng.random() < world.scenario.faults.lost_report:
            return
        event = BatchRead(
            job=self.script.name,
            rank=self.rank,
            epoch=self._epoch,
            position=reading.position,
            samples=reading.indices.size,
            hits=reading.hits,
            missed=reading.missing.copy(),
            corrupt=spoilt,
            done=done,
            read_us=100,
            wait_us=0,
        )
        world.after(_REPORT_DELAY_S, lambda: world.post(event))

    def _consume(self) -> None:
        self._busy = True
        middle = (self.script.passes[self._number][1] + self._stop) // 2
        pause_s = self.script.pause_s if self._consumed == middle else 0.0
        self.world.after(self.script.step_s + pause_s, self._consumed_one)

    def _consumed_one(self) -> None:
        self._busy = False
        batch = self._ready.pop(self._consumed)
        self.deliveries.append(
            Delivery(self._number, self._epoch, self._consumed, batch.indices, batch.padding)
        )
        self._consumed += 1
        self._go_on()
