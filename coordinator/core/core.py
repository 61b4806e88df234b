"""The ``Core``, the entry point to planning and residency."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from superdl.coordinator.core import background, cache, events, ranks, requests, restoring
from superdl.coordinator.core.dispatching import dispatch, expire_tombstones, wake_times_s
from superdl.coordinator.core.lookahead import needed_bytes
from superdl.coordinator.core.ranks import history
from superdl.coordinator.core.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from superdl.coordinator.core.events import Action
    from superdl.coordinator.core.jobs import Job
    from superdl.coordinator.core.samples import Ints, SampleState, SetKey
    from superdl.coordinator.core.settings import CoreSettings

_FORGET_EVERY_S = 30.0

_HANDLERS: dict[type[Any], Callable[[State, Any, float], None]] = {
    events.Audited: cache.audited,
    events.BatchRead: ranks.batch_read,
    events.BatchesRequested: ranks.batches_requested,
    events.CacheEvicted: cache.cache_evicted,
    events.CacheGrew: cache.cache_grew,
    events.CacheReset: cache.cache_reset,
    events.CacheResized: cache.cache_resized,
    events.ExecutorResized: lambda state, event, _: state.fleet.resize(event),
    events.ExecutorsIneligible: ranks.executors_ineligible,
    events.FillUp: background.fill_up,
    events.JobClosed: ranks.job_closed,
    events.JobOpened: ranks.job_opened,
    events.PacksLost: restoring.packs_lost,
    events.RecordReadBack: cache.record_read_back,
    events.RecordsStored: restoring.records_stored,
    events.RequestDone: requests.request_done,
    events.RequestFailed: requests.request_failed,
    events.TeamsChanged: lambda state, event, _: state.teams.change(event.teams),
    events.Tick: lambda *_: None,  # every event triggers the work that is due
}


class Core:
    """Plans prefetching and tracks the cache: an event and the time in, actions out.

    The same events at the same times produce the same actions. Callers must not change ``state``.
    """

    def __init__(self, settings: CoreSettings) -> None:
        self.state = State(settings, budget_bytes=settings.budget_bytes)
        self._forget_at_s = 0.0
        self._now_s = 0.0

    def handle(self, event: events.Event, now: float) -> list[Action]:
        """Handle an event and return the actions to take. ``now`` is monotonic time in seconds."""
        return self.handle_all((event,), now)

    def handle_all(self, arrived: Iterable[events.Event], now: float) -> list[Action]:
        """Handle events that arrived together, and return the actions to take after all of them."""
        state = self.state
        self._now_s = now
        state.ledger.settle(now)
        for event in arrived:
            state.events += not isinstance(event, events.Tick)
            _HANDLERS[type(event)](state, event, now)
        # Any event may cause any action.
        expire_tombstones(state, now)
        ranks.lapse(state, now)
        if now >= self._forget_at_s:
            ranks.remove_unused(state, now)
            self._forget_at_s = now + _FORGET_EVERY_S
        dispatch(state, now)
        actions, state.actions = state.actions, []
        return actions

    @property
    def wake_at_s(self) -> float:
        """Return the time at which a ``Tick`` is due if no event arrives earlier."""
        return min(self._forget_at_s, *wake_times_s(self.state, self._now_s), math.inf)

    def job(self, name: str) -> Job | None:
        """Return the open job with this name, or ``None``."""
        return self.state.jobs.get(name)

    @property
    def jobs(self) -> list[Job]:
        """Return all open jobs."""
        return list(self.state.jobs.values())

    def held(self, dataset: bytes) -> list[tuple[int, Ints]]:
        """Return a dataset's cached and in-flight samples by epoch (0 if epochs share samples)."""
        return [
            (max(key.epoch, 0), samples.held())
            for key, samples in self.state.sets.items()
            if key.dataset == dataset
        ]

    def samples_in(self, state: SampleState) -> int:
        """Return the number of samples in a state."""
        return sum(samples.count(state) for samples in self.state.sets.values())

    @property
    def thrashing(self) -> bool:
        """Return whether needed samples are often dropped for lack of memory."""
        return self.state.thrash.thrashing and self.needed_bytes > self.state.budget_bytes

    @property
    def needed_bytes(self) -> int:
        """Return the smallest budget, in bytes, that avoids dropping recurring samples."""
        return needed_bytes(self.state)

    @property
    def now_s(self) -> float:
        """Return the time of the last event, in seconds."""
        return self._now_s

    @property
    def spent_usd(self) -> float:
        """Return the amount spent, including requests in flight."""
        return self.state.ledger.total_usd + self.state.ledger.committed_usd(self.state.in_flight)

    @property
    def store_trouble(self) -> str:
        """Describe any problems that executors have with the store, or return an empty string."""
        return restoring.store_trouble(self.state)

    def unavailable_for_s(self, key: SetKey) -> float:
        """Return how long some samples have been unavailable from the source, or 0."""
        samples = self.state.sets.get(key)
        return self._now_s - samples.unavailable_since_s if samples and samples.unavailable else 0.0

    def filled(self, job: Job) -> background.Filled:
        """Return the fill progress of a job."""
        return background.filled(self.state, job)

    def lookahead_batches(self, job: Job) -> int:
        """Return the longest look-ahead of a job's ranks, in batches."""
        return max(cursor.lookahead - cursor.watermark for cursor in job.cursors.values())

    def history(self, name: str, rank: int, epoch: int, position: int) -> list[tuple[float, str]]:
        """Return a batch's recent history as times (see :meth:`handle`) and descriptions."""
        return history(self.state, name, rank, epoch, position)
