"""A deterministic world around the real core, driven by one seed and a virtual clock."""

from __future__ import annotations

import heapq
import itertools
import random
from functools import partial
from time import thread_time
from typing import TYPE_CHECKING, Self

import numpy as np

from superdl.coordinator.core import (
    EVERY_EPOCH,
    Audit,
    Audited,
    CacheEvicted,
    CacheGrew,
    CacheResized,
    Core,
    Drop,
    ExecutorResized,
    Prefetch,
    ReadBack,
    RecordReadBack,
    SetKey,
    Tick,
    WriteTombstones,
)
from superdl.experiments.simulator.cache_model import HEADROOM, CacheModel, StoreModel
from superdl.experiments.simulator.executor_model import ExecutorModel
from superdl.experiments.simulator.trainer_model import TrainerModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.coordinator.core import Action, Event, RequestDone, RequestFailed
    from superdl.experiments.simulator.trainer_model import BatchModel
    from superdl.experiments.simulator.world_model import WorldModel

_AUDIT_S = 0.001
_RETRY_S = 0.5
_UPKEEP_S = 1.0


class InvariantError(AssertionError):
    """The core broke a promise. The message contains the seed that reproduces it."""


class World:
    """One simulation: virtual time, the core, and models of all around it.

    Args:
        model: the parts of the world.
        make_core: a seam for planted bugs.
    """

    def __init__(self, model: WorldModel, make_core: Callable[[WorldModel], Core] | None = None) -> None:
        self.model = model
        self.make_core = make_core or (lambda model: Core(model.settings))
        self.core = self.make_core(model)
        self.rng = random.Random(model.seed + 1)
        self.array_rng = np.random.default_rng(model.seed % 2**63 + 1)
        self.now_s = 0.0
        self._calls: list[tuple[float, int, Callable[[], object]]] = []  # a heap
        self._numbers = itertools.count()
        self.cache = CacheModel(model, self.array_rng)
        self.store = StoreModel(self)
        self.coordinator_up = True
        self.cache_was_empty = True
        self.life = 0  # restarts of the coordinator
        self.wakes_at_s = np.inf
        # CPU seconds of this machine spent in the core, in total and for the longest step.
        self.core_cpu_s = self.core_longest_s = 0.0
        self.executors = [ExecutorModel(self, functions) for functions in model.fleet]
        self.trainers = {
            script.name: [TrainerModel(self, script, rank) for rank in range(script.plan.replicas)]
            for script in model.jobs
        }
        self.under_way = sum(map(len, self.trainers.values()))  # trainers that have work left

    def run(self) -> Self:
        """Run until all jobs are done, or until ``model.until_s``.

        Raises:
            InvariantError: the run does not end.
        """
        self.begin()
        while self.under_way and self.now_s < self.model.until_s:
            if not self.step():
                raise self.broken("nothing happens any more, but jobs are not done")
        if self.under_way:
            self.now_s = self.model.until_s
        return self

    def begin(self) -> None:
        """Schedule everything that exists at the start."""
        self._leave_over()
        self.report_size()
        for script in self.model.jobs:
            for trainer in self.trainers[script.name]:
                self.after(script.starts_s, trainer.start)
        self.after(_UPKEEP_S, self._upkeep)

    def after(self, delay_s: float, happens: Callable[[], object]) -> None:
        """Schedule a call. Calls due at the same time run in the order in which they were scheduled."""
        # The number breaks ties, and keeps the heap from comparing functions.
        heapq.heappush(self._calls, (self.now_s + delay_s, next(self._numbers), happens))

    def step(self, until_s: float = np.inf) -> bool:
        """Run the next call, or return False if none is due by ``until_s``."""
        if not self._calls or self._calls[0][0] > until_s:
            return False
        time_s, number, happens = heapq.heappop(self._calls)
        if number > self.model.events_max:
            raise self.broken("the run does not end")
        self.now_s = max(self.now_s, time_s)
        happens()
        return True

    def post(self, *events: Event) -> None:
        """Pass events to the core, all at once, if the coordinator is up, and execute its actions."""
        if not self.coordinator_up:
            return
        # CPU time, so that a busy machine does not distort the figure.
        began_s = thread_time()
        actions = self.core.handle_all(events, self.now_s)
        took_s = thread_time() - began_s
        self.core_cpu_s += took_s
        self.core_longest_s = max(self.core_longest_s, took_s)
        for action in actions:
            self.act(action)
        wake_at_s = self.core.wake_at_s
        if wake_at_s < self.wakes_at_s:
            self.wakes_at_s = wake_at_s
            self.after(max(wake_at_s - self.now_s, 0.0), partial(self._tick, wake_at_s))

    def answer(self, event: RequestDone | RequestFailed, life: int) -> None:
        """Deliver a function's answer, unless the coordinator has restarted since."""
        if life == self.life:
            self.post(event)

    def waits(self, job: str, rank: int, position: int, waited_s: float) -> None:
        """Fail if a reader exceeds its time limit."""
        if waited_s >= self.model.read_timeout_s:
            raise self.broken(f"{job}/{rank} has waited {waited_s:.0f} s for batch {position}")

    def consumed(self, job: str, rank: int, batch: BatchModel) -> None:
        """Note that a trainer has consumed a batch. Nothing depends on it but the tests' checks."""

    def broken(self, what: str) -> InvariantError:
        """Return an error with the violation and the seed."""
        return InvariantError(f"seed {self.model.seed} at {self.now_s:.3f} s: {what}")

    def act(self, action: Action) -> None:
        """Execute an action of the core."""
        match action:
            case Prefetch():
                self.executors[action.executor].submit(action)
            case Drop():
                self.cache.drop(action.samples, action.indices)
            case Audit():
                self.after(_AUDIT_S, partial(self._audit, action, self.life))
            case ReadBack():
                self.after(_AUDIT_S, partial(self._read_back, action, self.life))
            case WriteTombstones(samples=samples, indices=indices, expires_in_s=ttl_s):
                self.cache.write_tombstones(samples, indices, self.now_s, ttl_s=ttl_s)

    def _tick(self, wake_at_s: float) -> None:
        if wake_at_s != self.wakes_at_s:
            return  # the core has requested another time since
        self.wakes_at_s = np.inf
        self.post(Tick())

    def report_size(self) -> None:
        """Report the limits of all executors to the core."""
        for number, functions in enumerate(self.model.fleet):
            limits = functions.capacity, functions.burst, functions.per_s
            backlog = None if functions.queues else 0
            self.post(ExecutorResized(*limits, backlog=backlog, executor=number))

    def _audit(self, action: Audit, life: int) -> None:
        if life != self.life:  # the coordinator has restarted since the request
            return
        if not self.cache.up:
            self.after(_RETRY_S, partial(self._audit, action, life))
            return
        audited = self.cache.audit(action.samples, action.indices, self.now_s, whole=action.whole)
        self.post(Audited(action.audit_id, *audited))

    def _read_back(self, action: ReadBack, life: int) -> None:
        index = np.array([action.index])
        up = life == self.life and self.cache.up
        if up and self.cache.look(action.samples, index, self.now_s)[0] > 0:
            fault = "spoilt" if self.cache.spoilt(action.samples, index)[0] else ""
            self.post(RecordReadBack(action.samples, action.index, action.executor, fault))

    def _upkeep(self) -> None:
        if not self.under_way:
            return
        if self.coordinator_up and self.cache.up:
            if self.cache.refuses:  # else its size never changes
                self.post(CacheResized(self.cache.budget_bytes))
            if self.cache.evicted:
                self.cache.evicted = False
                self.post(CacheEvicted())
            headroom_bytes = self.cache.budget_bytes * (HEADROOM - 1)
            self.post(CacheGrew(int(self.cache.used_bytes - self.core.state.resident_bytes - headroom_bytes)))
        self.after(_UPKEEP_S, self._upkeep)

    def _leave_over(self) -> None:
        """Fill the cache with the records of an earlier coordinator, up to the budget."""
        if not self.model.left_over:
            return
        for data in self.model.datasets.values():
            for script in self.model.jobs:
                if script.dataset != data.name:
                    continue
                key = SetKey(script.dataset, script.passes[0][0] if data.random else EVERY_EPOCH)
                indices = np.flatnonzero(self.array_rng.random(data.size) < self.model.left_over)
                self.cache_was_empty = self.cache_was_empty and not indices.size
                free_bytes = self.model.settings.budget_bytes - self.cache.used_bytes
                indices = indices[np.cumsum(data.record_bytes[indices]) < free_bytes]
                self.cache.store(key, indices, data.record_bytes[indices])
