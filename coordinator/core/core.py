"""The ``Core``, the single entry point to planning and residency."""

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

    from superdl.coordinator.core.events import Action, Prefetch
    from superdl.coordinator.core.jobs import Job
    from superdl.coordinator.core.samples import Ints, SampleState, SetKey
    from superdl.coordinator.core.settings import CoreSettings

_FORGET_EVERY_S = 30.0


_HANDLERS: dict[type[Any], Callable[[State, Any, float], None]] = {
    events.Audited: cache.audited,
    events.BatchRead: ranks.batch_read,
    events.BatchesAsked: ranks.batches_asked,
    events.CacheEvicted: cache.cache_evicted,
    events.CacheGrew: cache.cache_grew,
    events.CacheReset: cache.cache_reset,
    events.CacheResized: cache.cache_resized,
    events.ExecutorResized: lambda state, event, now: state.fleet.executors[
        event.executor
    ].concurrency.resize(event, now),
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
    """Plans prefetching and tracks the cache. Receives an event and the time, and returns actions.

    The same events at the same times result in the same actions. ``state`` is read-only for callers.
    """

    def __init__(self, settings: CoreSettings) -> None:
        self.state = State(settings, budget_bytes=settings.budget_bytes)
        self._forget_at_s = 0.0
        self._now_s = 0.0

    def handle(self, event: events.Event, now: float) -> list[Action]:
        """Handle an event, and return the actions to take. ``now`` is in seconds on a monotonic clock."""
        return self.handle_all((event,), now)

    def handle_all(self, several: Iterable[events.Event], now: float) -> list[Action]:
        """Handle events that arrived together. Return the actions, decided once after the last event."""
        state = self.state
        self._now_s = now
        state.ledger.settle(now)
        for event in several:
            state.events += not isinstance(event, events.Tick)
            _HANDLERS[type(event)](state, event, now)
        # Do everything that is due after each event, because any event may cause any action.
        expire_tombstones(state, now)
        ranks.lapse(state, now)
        if now >= self._forget_at_s:
            ranks.forget_empty_sets(state, now)
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
        """Return a dataset's samples that are cached or in flight, by epoch (0 for every epoch)."""
        return [
            (max(key.epoch, 0), samples.held())
            for key, samples in self.state.sets.items()
            if key.dataset == dataset
        ]

    def samples_in(self, state: SampleState) -> int:
        """Return the number of samples in a state, over all sets."""
        return sum(samples.count(state) for samples in self.state.sets.values())

    @property
    def thrashing(self) -> bool:
        """Return whether many needed samples had been dropped, so that more memory would help."""
        return self.state.thrash.thrashing and self.needed_bytes > self.state.budget_bytes

    @property
    def needed_bytes(self) -> int:
        """Return the smallest budget in bytes with which no recurring sample would have to be dropped."""
        return needed_bytes(self.state)

    @property
    def now_s(self) -> float:
        """Return the time of the last event, in seconds."""
        return self._now_s

    @property
    def spent_usd(self) -> float:
        """Return the money spent, plus the cost of requests in flight."""
        return self.state.ledger.total_usd + self.state.ledger.committed_usd(self.state.in_flight)

    @property
    def store_trouble(self) -> str:
        """Return why an executor cannot read or write the store now, or an empty string if all can."""
        return restoring.trouble(self.state)

    def unavailable_for_s(self, key: SetKey) -> float:
        """Return for how long the source has been unavailable for some samples, or 0 if for none."""
        samples = self.state.sets.get(key)
        return self._now_s - samples.unavailable_since_s if samples and samples.unavailable else 0.0

    def filled(self, job: Job) -> background.Filled:
        """Return the progress of a job that fills the cache or the store."""
        return background.filled(self.state, job)

    def lookahead_batches(self, job: Job) -> int:
        """Return how many batches a job looks ahead now, as the maximum over its ranks."""
        return max(cursor.lookahead - cursor.watermark for cursor in job.cursors.values())

    def basis(self, action: Prefetch) -> str:
        """Describe a request and the state in which it was made, for logs."""
        member, job = self.state.fleet.executors[action.executor], self.job(action.job)
        load = f"{member.in_flight} of {member.concurrency.limit(self._now_s)} in flight at {member.name}"
        race = f", races {action.hedge_of}" if action.hedge_of is not None else ""
        lookahead = (
            f"{self.lookahead_batches(job)} batches ahead, one every {job.interval_s:.3f} s"
            if job
            else "gone"
        )
        samples = f"{action.indices.size} samples of job {action.job} ({lookahead})"
        return f"request {action.request_id} for {samples}; {load}{race}"

    def history(self, name: str, rank: int, epoch: int, position: int) -> list[tuple[float, str]]:
        """Return the recent history of a batch, as times (see :meth:`handle`) and descriptions."""
        return history(self.state, name, rank, epoch, position)
