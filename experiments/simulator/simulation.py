"""What all parts of a simulated world share: virtual time, the core, cache and store."""

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

    from superdl.coordinator.core import Action, Event, RequestDone, RequestFailed
    from superdl.experiments.simulator.world_model import BatchModel, WorldModel


class InvariantError(AssertionError):
    """The core broke a promise. The message contains the seed that reproduces it."""


class Simulation(ABC):
    """Virtual time, the core, and the models of cache and store.

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
        self.store = StoreModel(model, self.array_rng, lambda: self.now_s)
        self.coordinator_up = True
        self.cache_was_empty = True
        self.life = 0  # restarts of the coordinator
        self.wakes_at_s = np.inf
        # CPU seconds of this machine spent in the core, in total and for the longest step.
        self.core_cpu_s = self.core_longest_s = 0.0
        self.under_way = 0  # trainers that have work left

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

    @abstractmethod
    def consumed(self, job: str, rank: int, batch: BatchModel) -> None:
        """Take note that a trainer has consumed a batch."""

    def broken(self, what: str) -> InvariantError:
        """Return an error with the violation and the seed."""
        return InvariantError(f"seed {self.model.seed} at {self.now_s:.3f} s: {what}")

    @abstractmethod
    def act(self, action: Action) -> None:
        """Execute an action of the core."""

    def _tick(self, wake_at_s: float) -> None:
        if wake_at_s != self.wakes_at_s:
            return  # the core has requested another time since
        self.wakes_at_s = np.inf
        self.post(Tick())
