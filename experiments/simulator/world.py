"""A deterministic world around the real core: virtual clock, event heap, cache, functions, jobs, faults.

All of it comes from one seed. The core is the production code, driven through its one door. What must hold
is in :mod:`superdl.experiments.simulator.checks`.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import (
    EVERY_EPOCH,
    Audit,
    Audited,
    CacheEvicted,
    CacheGrew,
    CacheReset,
    CacheResized,
    Core,
    Drop,
    ExecutorResized,
    ExecutorsIneligible,
    Prefetch,
    ReadBack,
    RecordReadBack,
    RequestDone,
    RequestFailed,
    SetKey,
    Tick,
    Warn,
    WriteTombstones,
    footprint,
)
from superdl.experiments.simulator.cache_model import CacheModel
from superdl.experiments.simulator.checks import Checks
from superdl.experiments.simulator.executor_model import ExecutorModel
from superdl.experiments.simulator.trainer_model import TrainerModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.core import Action, Event
    from superdl.experiments.simulator.world_model import JobScript, WorldModel

__all__ = ["World"]

_AUDIT_S = 0.001
_RETRY_S = 0.5
_UPKEEP_S = 1.0
_OUTAGE_S = 1.0
_HEADROOM = 1.2


class World:
    """One run.

    Args:
        model: what it is made of.
        make_core: a seam for planted bugs.
        checked: whether every promise is checked after every event.
        log: whether to keep what was requested, a line for each request, in ``log``.
    """

    def __init__(
        self,
        model: WorldModel,
        make_core: Callable[[WorldModel], Core] | None = None,
        *,
        checked: bool = True,
        log: bool = True,
    ) -> None:
        self.model = model
        self.rng = random.Random(model.seed + 1)
        self.array_rng = np.random.default_rng(model.seed % 2**63 + 1)
        self.now_s = 0.0
        self.ended_s = 0.0
        self.cache = CacheModel(lambda key: model.datasets[key.dataset].size)
        self.coordinator_up = True
        self.cache_was_empty = True
        self.budget_bytes = model.settings.budget_bytes
        """What the cache's memory allows now."""
        self.life = 0
        self.events = 0
        self.requests = 0
        self.requested_samples = 0
        self.asked: Counter[str] = Counter()
        """Requests by the job that they were made for."""
        self.checked = checked
        self.log: list[str] | None = [] if log else None
        self._make_core = make_core or (lambda model: Core(model.settings))
        self.core = self._make_core(model)
        self.checks = Checks(self)
        self.executors = [ExecutorModel(self, functions) for functions in model.fleet]
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._wake_at_s = np.inf
        self._evicted = False
        self.trainers = {
            script.name: [TrainerModel(self, script, rank) for rank in range(script.plan.replicas)]
            for script in model.jobs
        }
        self._followers = {script.follows: script.name for script in model.jobs if script.follows}
        self._under_way = sum(map(len, self.trainers.values()))

    def run(self) -> World:
        """Run to the end.

        Raises:
            InvariantError: a promise is broken on the way.
        """
        model = self.model
        self._leave_over()
        self._tell_size()
        for script in model.jobs:
            for trainer in self.trainers[script.name]:
                self.after(script.starts_s, trainer.start)
        self.after(_UPKEEP_S, self._upkeep)
        rare: tuple[tuple[Callable[[], None], Sequence[float]], ...] = (
            (self._flush, model.faults.flushes_s),
            (self._outage, model.faults.outages_s),
            (self._evict, model.faults.evictions_s),
            (self._kill_coordinator, model.faults.coordinator_deaths_s),
            *((partial(self._resize, share), (time_s,)) for time_s, share in model.faults.resizes),
        )
        for happens, times_s in rare:
            for time_s in times_s:
                self.after(time_s, happens)
        while self._under_way and self.now_s < model.until_s:
            if not self._heap:
                raise self.checks.broken("nothing happens any more, and jobs are not done")
            self._step()
        if self._under_way:
            self.now_s = model.until_s
        self.ended_s = self.now_s
        for executor in self.executors:
            executor.usage.change(0, self.now_s)
        if not self._under_way and self.checked:
            self._see_it_end()
        return self

    def after(self, delay_s: float, happens: Callable[[], None]) -> None:
        """Let something happen later; what is due at one time happens in the order of these calls."""
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._numbers), happens))

    def post(self, event: Event) -> None:
        """Hand an event to the core, if there is one, carry out what it wants and see that all is well."""
        if not self.coordinator_up:
            return
        if self.checked:
            self.checks.happened(event)
        for action in self.core.handle(event, self.now_s):
            if self.checked:
                self.checks.acted(action)
            self._carry_out(action)
        if self.checked:
            self.checks.settled()
        wake_at_s = self.core.wake_at_s
        if wake_at_s < self._wake_at_s:
            self._wake_at_s = wake_at_s
            self.after(max(wake_at_s - self.now_s, 0.0), partial(self._tick, wake_at_s))

    def answer(self, event: RequestDone | RequestFailed, life: int) -> None:
        """A function answers the coordinator that asked it, if that still lives."""
        if life == self.life:
            self.post(event)

    def push(
        self, key: SetKey, indices: NDArray[np.int64], sizes: NDArray[np.int64], *, corrupt: list[int]
    ) -> None:
        """A function writes records; over maxmemory the server evicts at random."""
        self.cache.store(key, indices, sizes, corrupt=corrupt)
        while self.cache.used_bytes > self.budget_bytes * _HEADROOM and not self.model.faults.resizes:
            self._evicted = True
            if not self.cache.evict(self.array_rng, 0.5):
                break

    def is_random(self, dataset: bytes) -> bool:
        """Whether the recipe of a dataset is random."""
        return self.model.datasets[dataset].random

    def record_bytes(self, dataset: bytes, indices: NDArray[np.int64]) -> int:
        """Bytes of these records together."""
        return int(self.model.datasets[dataset].record_bytes[indices].sum())

    def script(self, job: str) -> JobScript:
        """The script of a job."""
        return self.trainers[job][0].script

    def follower(self, job: str, rank: int) -> TrainerModel | None:
        """The rank that does a pass after each pass of this one."""
        name = self._followers.get(job)
        return None if name is None else self.trainers[name][rank]

    def ended(self) -> None:
        """A trainer has done all that it had to do."""
        self._under_way -= 1

    def check_read_timeout(self, trainer: TrainerModel, position: int, waited_s: float) -> None:
        """A reader waits, within its time limit."""
        if waited_s >= self.model.read_timeout_s:
            where = f"{trainer.script.name}/{trainer.rank}"
            raise self.checks.broken(f"{where} has waited {waited_s:.0f} s for batch {position}")
        if self.checked:
            self.checks.waits(trainer, position, waited_s)

    def _see_it_end(self) -> None:
        """Long after the last job: what was under way has ended, and what was read is looked at."""
        end_s = self.now_s + 3 * self.model.settings.forget_s
        while self._heap and self._heap[0][0] <= end_s:
            self._step()
        self.checks.quiet()
        for script in self.model.jobs:
            self.checks.delivered_exactly_once(script, self.trainers[script.name])

    def _step(self) -> None:
        self.events += 1
        if self.events > self.model.events_max:
            raise self.checks.broken("the run does not end")
        time_s, _, happens = heapq.heappop(self._heap)
        self.now_s = max(self.now_s, time_s)
        happens()

    def _tick(self, wake_at_s: float) -> None:
        if wake_at_s != self._wake_at_s:
            return  # the core has asked for another time since
        self._wake_at_s = np.inf
        self.post(Tick())
        if self.coordinator_up and self.checked:
            again = [it for it in self.core.handle(Tick(), self.now_s) if not isinstance(it, Warn)]
            self.checks.require(not again, f"a second tick at the same time has the core act again: {again}")

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Prefetch):
            self.requests += 1
            self.requested_samples += action.indices.size
            self.asked[action.job] += 1
            if self.log is not None:
                self.log.append(f"{self.now_s:.6f} {action.samples} {action.indices.tolist()}")
            self.executors[action.executor].submit(action)
        elif isinstance(action, Drop):
            self.cache.drop(action.samples, action.indices)
        elif isinstance(action, Audit):
            self.after(_AUDIT_S, partial(self._audit, action, self.life))
        elif isinstance(action, ReadBack):
            self.after(_AUDIT_S, partial(self._read_back, action, self.life))
        elif isinstance(action, WriteTombstones):
            self.cache.write_tombstones(action.samples, action.indices, self.now_s, ttl_s=action.expires_in_s)

    def _tell_size(self) -> None:
        for number, functions in enumerate(self.model.fleet):
            backlog = None if functions.queues else 0
            self.post(
                ExecutorResized(
                    functions.capacity, functions.burst, functions.per_s, backlog=backlog, executor=number
                )
            )
        for dataset, unfit in self.model.unfit.items():
            self.post(ExecutorsIneligible(dataset, unfit))

    def _audit(self, action: Audit, life: int) -> None:
        if life != self.life:
            return
        if self.cache.up:
            found = self.cache.look(action.samples, action.indices, self.now_s)
            if action.whole:
                found[self.cache.spoilt(action.samples, action.indices)] = 0
            self.post(Audited(action.audit_id, found))
        else:
            self.after(_RETRY_S, partial(self._audit, action, life))

    def _read_back(self, action: ReadBack, life: int) -> None:
        index = np.array([action.index])
        if (
            life != self.life
            or not self.cache.up
            or self.cache.look(action.samples, index, self.now_s)[0] <= 0
        ):
            return
        fault = "spoilt" if self.cache.spoilt(action.samples, index)[0] else ""
        self.post(RecordReadBack(action.samples, action.index, action.executor, fault))

    def _upkeep(self) -> None:
        if self._under_way:
            if self.coordinator_up and self.cache.up:
                headroom = self.budget_bytes * (_HEADROOM - 1)
                if self.model.faults.resizes:  # else it says the same each time
                    self.post(CacheResized(self.budget_bytes))
                if self._evicted:
                    self._evicted = False
                    self.post(CacheEvicted())
                self.post(CacheGrew(int(self.cache.used_bytes - self.core.state.resident_bytes - headroom)))
            self.after(_UPKEEP_S, self._upkeep)

    def _leave_over(self) -> None:
        """What an earlier coordinator left in the cache, up to the budget."""
        if not self.model.left_over:
            return
        for data in self.model.datasets.values():
            for script in self.model.jobs:
                key = SetKey(script.dataset, script.passes[0][0] if data.random else EVERY_EPOCH)
                if script.dataset != data.name:
                    continue
                left = np.flatnonzero(self.array_rng.random(data.size) < self.model.left_over)
                self.cache_was_empty = self.cache_was_empty and not left.size
                free_bytes = self.model.settings.budget_bytes - self.cache.used_bytes
                fitting = np.cumsum(data.record_bytes[left]) < free_bytes
                self.cache.store(key, left[fitting], data.record_bytes[left[fitting]], corrupt=[])

    def _flush(self) -> None:
        self.cache.flush()
        self.after(0.3, self._notice_loss)

    def _notice_loss(self) -> None:
        if self.cache.up:
            self.post(CacheReset())
        else:
            self.after(_RETRY_S, self._notice_loss)

    def _outage(self) -> None:
        self.cache.flush()
        self.cache.up = False
        self.after(_OUTAGE_S, self._come_back)

    def _come_back(self) -> None:
        self.cache.up = True
        self.after(0.2, self._notice_loss)

    def refused(self, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of some more records a server without eviction refuses for want of memory."""
        room_bytes = self.budget_bytes * _HEADROOM - self.cache.used_bytes
        refused: NDArray[np.bool_] = np.cumsum(footprint(sizes)) > room_bytes
        return refused & bool(self.model.faults.resizes)

    def _resize(self, share: float) -> None:
        self.budget_bytes = int(self.model.settings.budget_bytes * share)

    def _evict(self) -> None:
        self.cache.evict(self.array_rng, 0.3)
        self._evicted = True

    def _kill_coordinator(self) -> None:
        if self.coordinator_up:
            self.coordinator_up = False
            self.after(1.0, self._restart_coordinator)

    def _restart_coordinator(self) -> None:
        self.life += 1
        self.coordinator_up = True
        self.cache_was_empty = not self.cache.used_bytes
        self.core = self._make_core(self.model)
        self.checks.forget_all()
        self._wake_at_s = np.inf
        self._tell_size()
