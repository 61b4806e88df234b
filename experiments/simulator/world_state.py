"""What the parts of a simulated world share: its clock, chance and cache, and the coordinator that lives."""

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
    """A promise of the core is broken; the message names the seed that replays it."""


class Delivery(NamedTuple):
    """A batch of the pass of that number, at its place in the plan: its samples, and which are padding."""

    number: int
    position: int
    indices: NDArray[np.int64]
    padding: NDArray[np.bool_]


class Watch:
    """Sees all that happens in a world; this one lets it go by. What must hold there is checked by tests."""

    def __init__(self, world: WorldState) -> None:
        """Watch a world from before its first event."""

    def restarted(self) -> None:
        """The coordinator was restarted."""

    def happened(self, event: Event) -> None:
        """The core is about to hear of it."""

    def acted(self, action: Action) -> None:
        """The world is about to carry it out."""

    def settled(self) -> None:
        """All that the core wanted is carried out."""

    def ticked(self) -> None:
        """The core was woken at the time that it had asked for."""

    def waits(self, job: str, rank: int, position: int, waited_s: float) -> None:
        """A reader waits for a batch."""

    def consumed(self, job: str, rank: int, batch: Delivery) -> None:
        """A trainer has consumed a batch."""

    def ended(self) -> None:
        """All jobs are done."""


class WorldState(ABC):
    """Virtual time and what is due in it. What an event does to the core is `World`'s."""

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
        """How often the coordinator was restarted."""
        self.events = 0
        self.under_way = 0
        """Trainers that have something left to do."""
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def after(self, delay_s: float, happens: Callable[[], object]) -> None:
        """Let something happen later; what is due at one time happens in the order of these calls."""
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._numbers), happens))

    def step(self, until_s: float = np.inf) -> bool:
        """Let the next thing happen; False if nothing is due by then."""
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
        """Hand events to the core, all at once, if there is one."""

    def answer(self, event: RequestDone | RequestFailed, life: int) -> None:
        """A function answers the coordinator that asked it, if that still lives."""
        if life == self.life:
            self.post(event)

    @abstractmethod
    def waits(self, job: str, rank: int, position: int, waited_s: float) -> None:
        """A reader waits, within its time limit."""

    def broken(self, what: str) -> InvariantError:
        """The error that tells what is broken, and the seed."""
        return InvariantError(f"seed {self.model.seed} at {self.now_s:.3f} s: {what}")
