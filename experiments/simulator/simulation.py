"""The virtual time, core, cache and store that all parts of a simulated world share."""

from __future__ import annotations

import heapq
import itertools
import random
from abc import ABC, abstractmethod
from functools import partial
from time import thread_time
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import Core, Tick
from superdl.experiments.simulator.cache_model import CacheModel, StoreModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.coordinator.core import Action, BatchRead, Event, RequestDone, RequestFailed
    from superdl.experiments.simulator.world_model import BatchModel, WorldModel

_REPORT_DELAY_S = 0.001


class InvariantError(AssertionError):
    """The core broke an invariant. The message includes the seed that reproduces it."""


class Simulation(ABC):
    """Virtual time, the core, and models of the cache and the store."""

    def __init__(self, model: WorldModel) -> None:
        self.model = model
        self.core = self.make_core()
        self.rng = random.Random(model.seed + 1)
        self.array_rng = np.random.default_rng(model.seed % 2**63 + 1)
        self.now_s = 0.0
        self._calls: list[tuple[float, int, Callable[[], object]]] = []  # a heap
        self._numbers = itertools.count()
        self.cache = self.make_cache()
        self.store = self.make_store()
        self.coordinator_up = True
        self.cache_was_empty = True
        self.wakes_at_s = np.inf
        # Real CPU seconds of the core, in total and for the longest step.
        self.core_cpu_s = self.core_longest_s = 0.0
        self.under_way = 0  # trainers with work left

    def make_core(self) -> Core:
        """Return a fresh core."""
        return Core(self.model.settings)

    def make_cache(self) -> CacheModel:
        """Return an empty cache."""
        return CacheModel(self.model, self.array_rng)

    def make_store(self) -> StoreModel:
        """Return a store with the records of earlier coordinators."""
        return StoreModel(self.model, self.array_rng)

    def after(self, delay_s: float, call: Callable[[], object]) -> None:
        """Schedule a call after ``delay_s``. Calls due at the same time run in the order scheduled."""
        # Numbers break ties, because functions cannot be compared.
        heapq.heappush(self._calls, (self.now_s + delay_s, next(self._numbers), call))

    def step(self, until_s: float = np.inf) -> bool:
        """Run the next call, or return False if none is due by ``until_s``."""
        if not self._calls or self._calls[0][0] > until_s:
            return False
        time_s, _, call = heapq.heappop(self._calls)
        self.now_s = max(self.now_s, time_s)
        call()
        return True

    def post(self, *events: Event) -> None:
        """Pass events to the core together, and execute the actions it returns."""
        # CPU time does not depend on the load of this machine.
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

    def report(self, event: BatchRead) -> None:
        """Send a read report to the core."""
        self.after(_REPORT_DELAY_S, partial(self.post, event))

    def answer(self, event: RequestDone | RequestFailed) -> None:
        """Pass a request's result or failure to the core."""
        self.post(event)

    def waits(self, job: str, rank: int, position: int, waited_s: float) -> None:
        """Raise InvariantError if a reader has waited longer than its time limit."""
        if waited_s >= self.model.read_timeout_s:
            raise self.broken(f"{job}/{rank} has waited {waited_s:.0f} s for batch {position}")

    @abstractmethod
    def consumed(self, job: str, rank: int, batch: BatchModel) -> None:
        """Handle a batch that a trainer has consumed."""

    def broken(self, reason: str) -> InvariantError:
        """Return an error with the reason and the seed."""
        return InvariantError(f"seed {self.model.seed} at {self.now_s:.3f} s: {reason}")

    @abstractmethod
    def act(self, action: Action) -> None:
        """Execute an action of the core."""

    def _tick(self, wake_at_s: float) -> None:
        if wake_at_s != self.wakes_at_s:
            return  # the core has since requested an earlier time
        self.wakes_at_s = np.inf
        self.post(Tick())
