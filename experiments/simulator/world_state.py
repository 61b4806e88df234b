"""State shared by the parts of a simulated world: clock, random numbers, cache, coordinator."""

from __future__ import annotations

import heapq
import itertools
import random
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from superdl.experiments.simulator.cache_model import CacheModel
from superdl.experiments.simulator.store_model import StoreModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from superdl.coordinator.core import Action, Core, Event, RequestDone, RequestFailed
    from superdl.experiments.simulator.world_model import WorldModel

__all__ = ["Delivery", "InvariantError", "Watch", "WorldState"]


class InvariantError(AssertionError):
    """The core broke a promise; the message names the seed that replays it."""


class Delivery(NamedTuple):
    """A batch of the pass ``number`` at its position, its samples, and which are padding."""

    number: int
    position: int
    indices: NDArray[np.int64]
    padding: NDArray[np.bool_]


class Watch:
    """Observes a world's events; this base ignores them, subclasses check invariants."""

    def __init__(self, world: WorldState) -> None:
        """Watch a world from before its first event."""

    def restarted(self) -> None:
        """Handle a restart of the coordinator."""

    def happened(self, event: Event) -> None:
        """Handle an event before the core receives it."""

    def acted(self, action: Action) -> None:
        """Handle an action before the world executes it."""

    def settled(self) -> None:
        """Handle the end of all actions of one step of the core."""

    def ticked(self) -> None:
        """Handle a tick at the time requested by the core."""

    def waits(self, job: str, rank: int, position: int, waited_s: float) -> None:
        """Handle a reader's wait for a batch."""

    def consumed(self, job: str, rank: int, batch: Delivery) -> None:
        """Handle the consumption of a batch by a trainer."""

    def ended(self) -> None:
        """Handle the end of all jobs."""


class WorldState(ABC):
    """Virtual time and its event queue. `World` passes the events to the core."""

    watch: Watch

    def __init__(self, model: WorldModel, core: Core) -> None:
        self.model = model
        self.core = core
        self.rng = random.Random(model.seed + 1)
        self.array_rng = np.random.default_rng(model.seed % 2**63 + 1)
        self.now_s = 0.0
        self.cache = CacheModel(
            lambda key: model.datasets[key.dataset].size,
            self.array_rng,
            budget_bytes=model.settings.budget_bytes,
            refuses=model.cache_refuses,
        )
        self.store = StoreModel(model, self.array_rng, lambda: self.now_s)
        self.coordinator_up = True
        self.cache_was_empty = True
        self.life = 0
        """The number of restarts of the coordinator."""
        self.events = 0
        self.under_way = 0
        """The number of trainers that have work left."""
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def after(self, delay_s: float, happens: Callable[[], object]) -> None:
        """Schedule a call; calls due at the same time run in the order of scheduling."""
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._numbers), happens))

    def step(self, until_s: float = np.inf) -> bool:
        """Run the next call; return False if none is due by ``until_s``."""
        if not self._heap or self._heap[0][0] > until_s:
            return False
        self.events += 1
        if self.events > self.model.events_max:
            raise self.broken("the run does not end")
        time_s, _, happens = heapq.heappop(self._heap)
        self.now_s = max(self.now_s, time_s)
        happens()
        return True

    @abstractmethod
    def post(self, *events: Event) -> None:
        """Pass events to the core, all at once, if the coordinator is up."""

    def answer(self, event: RequestDone | RequestFailed, life: int) -> None:
        """Deliver a function's answer, unless the coordinator has restarted since."""
        if life == self.life:
            self.post(event)

    @abstractmethod
    def waits(self, job: str, rank: int, position: int, waited_s: float) -> None:
        """Report that a reader waits, and fail if it exceeds its time limit."""

    def broken(self, what: str) -> InvariantError:
        """Return an error with the violation and the seed."""
        return InvariantError(f"seed {self.model.seed} at {self.now_s:.3f} s: {what}")
