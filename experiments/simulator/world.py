"""A simulation with executors and trainers, determined by one seed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Self

import numpy as np

from superdl.coordinator.core import (
    EVERY_EPOCH,
    Audit,
    Audited,
    CacheEvicted,
    CacheGrew,
    Drop,
    ExecutorResized,
    Prefetch,
    SetKey,
    WriteTombstones,
)
from superdl.experiments.simulator.cache_model import HEADROOM
from superdl.experiments.simulator.executor_model import ExecutorModel
from superdl.experiments.simulator.simulation import Simulation
from superdl.experiments.simulator.trainer_model import TrainerModel

if TYPE_CHECKING:
    from superdl.coordinator.core import Action
    from superdl.experiments.simulator.world_model import BatchModel, FunctionsModel, WorldModel

_AUDIT_S = 0.001
_UPKEEP_S = 1.0


class World(Simulation):
    """A simulation with its executors and trainers. Requests that take too long are the only failures."""

    def __init__(self, model: WorldModel) -> None:
        super().__init__(model)
        self.executors = [self.make_executor(functions) for functions in model.fleet]
        self.trainers = {
            script.name: [TrainerModel(self, script, rank) for rank in range(script.plan.replicas)]
            for script in model.jobs
        }
        self.under_way = sum(map(len, self.trainers.values()))

    def make_executor(self, functions: FunctionsModel) -> ExecutorModel:
        """Return an executor for these simulated functions."""
        return ExecutorModel(self, functions)

    def run(self) -> Self:
        """Run until all jobs are done, or until ``model.until_s``.

        Raises:
            InvariantError: no events are left, but some jobs have not finished.
        """
        self.begin()
        while self.under_way and self.now_s < self.model.until_s:
            if not self.step():
                raise self.broken("deadlock: no events left, but some jobs have not finished")
        if self.under_way:
            self.now_s = self.model.until_s
        return self

    def begin(self) -> None:
        """Fill the cache, and schedule the start of all jobs."""
        self._fill_cache()
        self.report_size()
        for script in self.model.jobs:
            for trainer in self.trainers[script.name]:
                self.after(script.starts_s, trainer.start)
        self.after(_UPKEEP_S, self._upkeep)

    def consumed(self, job: str, rank: int, batch: BatchModel) -> None:
        """Do nothing. Tests override this."""

    def act(self, action: Action) -> None:
        """Execute an action of the core."""
        match action:
            case Prefetch():
                self.executors[action.executor].submit(action)
            case Drop():
                self.cache.drop(action.samples, action.indices)
            case Audit():
                self.after(_AUDIT_S, partial(self.audit, action))
            case WriteTombstones(samples=samples, indices=indices, expires_in_s=ttl_s):
                self.cache.write_tombstones(samples, indices, self.now_s, ttl_s=ttl_s)

    def report_size(self) -> None:
        """Report the limits of all executors."""
        for number, functions in enumerate(self.model.fleet):
            backlog = None if functions.queues else 0
            self.post(ExecutorResized(functions.capacity, backlog, number))

    def audit(self, action: Audit) -> None:
        """Report which of the audited samples are in the cache."""
        audited = self.cache.audit(action.samples, action.indices, self.now_s)
        self.post(Audited(action.audit_id, *audited))

    def report_cache(self) -> None:
        """Report evictions and memory use."""
        if self.cache.evicted:
            self.cache.evicted = False
            self.post(CacheEvicted())
        headroom_bytes = self.cache.budget_bytes * (HEADROOM - 1)
        self.post(CacheGrew(int(self.cache.used_bytes - self.core.state.resident_bytes - headroom_bytes)))

    def _upkeep(self) -> None:
        if self.under_way:
            self.report_cache()
            self.after(_UPKEEP_S, self._upkeep)

    def _fill_cache(self) -> None:
        """Fill the cache with records from an earlier coordinator, up to the budget."""
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
