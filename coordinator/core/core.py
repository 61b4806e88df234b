"""``Core``: the one door to planning and residency. An event and the time go in, a list of actions comes out.

The core does no I/O, has no clock and no randomness of its own: the runtime around it (or a simulator) gives
it all of that. The same events at the same times give the same actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.core import auditing, events, forgetting, reading, results
from coordinator.core.dispatching import dispatch, expire_tombstones
from coordinator.core.samples import SampleState
from coordinator.core.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from coordinator.core.actions import Action
    from coordinator.core.jobs import Job
    from coordinator.core.samples import SetKey
    from coordinator.core.settings import CoreSettings

__all__ = ["Core"]

_FORGET_EVERY_S = 30.0


def _tick(state: State, event: events.Tick, now: float) -> None:
    """Time itself changes nothing; what is due is found with every event."""


_HANDLERS: dict[type[Any], Callable[[State, Any, float], None]] = {
    events.Audited: auditing.audited,
    events.BatchRead: reading.batch_read,
    events.BatchesAsked: reading.batches_asked,
    events.CacheGrew: auditing.cache_grew,
    events.CacheReset: auditing.cache_reset,
    events.DatasetAdded: reading.dataset_added,
    events.ExecutorResized: results.executor_resized,
    events.JobClosed: reading.job_closed,
    events.JobOpened: reading.job_opened,
    events.RequestDone: results.request_done,
    events.RequestFailed: results.request_failed,
    events.Tick: _tick,
}


class Core:
    """Plans prefetching and keeps account of what the cache holds."""

    def __init__(self, settings: CoreSettings) -> None:
        self._state = State(settings, budget_bytes=settings.budget_bytes)
        self._forget_at_s = 0.0
        self._now_s = 0.0

    def handle(self, event: events.Event, now: float) -> list[Action]:
        """Take in one event and say what is to be done.

        Args:
            event: what happened.
            now: the time in seconds, on any clock that does not go back.
        """
        state = self._state
        self._now_s = now
        state.events += not isinstance(event, events.Tick)
        _HANDLERS[type(event)](state, event, now)
        expire_tombstones(state, now)
        if now >= self._forget_at_s:
            forgetting.forget_silent_lanes(state, now)
            forgetting.forget_empty_sets(state, now)
            self._forget_at_s = now + _FORGET_EVERY_S
        dispatch(state, now)
        actions, state.actions = state.actions, []
        return actions

    @property
    def wake_at_s(self) -> float:
        """When a ``Tick`` is wanted if nothing happens before."""
        state = self._state
        times = [self._forget_at_s]
        if state.expiries:
            times.append(state.expiries[0][0])
        if state.demands.next_due_s is not None:
            times.append(state.demands.next_due_s)
        if state.demands.waiting or state.crowding.lanes:
            for searchable_s in (
                state.crowding.over_at_s(state.events),
                state.awaited.next_expiry_s(self._now_s),
            ):
                if searchable_s is not None and searchable_s > self._now_s:
                    times.append(searchable_s)  # noqa: PERF401  # a comprehension hides what this is about
        return min(times)

    def job(self, name: str) -> Job | None:
        """The open job of that name."""
        return self._state.jobs.get(name)

    @property
    def jobs(self) -> list[Job]:
        """All open jobs."""
        return list(self._state.jobs.values())

    def states(self, key: SetKey, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The :class:`SampleState` of each of ``indices``, as uint8 of the same shape."""
        states: NDArray[np.uint8] = self._state.set_of(key).state[indices]
        return states

    def failure(self, key: SetKey, index: int) -> str:
        """Why a sample is in state FAILED, as far as it is known."""
        return self._state.failures.get((key, index), "")

    @property
    def budget_bytes(self) -> int:
        """Cache memory for records."""
        return self._state.budget_bytes

    @property
    def resident_bytes(self) -> int:
        """Cache memory that records take, as accounted."""
        return self._state.resident_bytes

    @property
    def dropped_samples(self) -> int:
        """Samples dropped under pressure so far."""
        return self._state.dropped_samples

    def samples_in(self, state: SampleState) -> int:
        """Number of samples in a state, over all sets."""
        return sum(samples.count(state) for samples in self._state.sets.values())

    def problems(self) -> Iterator[str]:
        """Invariants that do not hold: nothing, unless there is a bug. For tests and the simulator."""
        state = self._state
        for samples in state.sets.values():
            yield from samples.problems()
        if state.resident_bytes != sum(samples.resident_bytes for samples in state.sets.values()):
            yield f"{state.resident_bytes} bytes are resident, but not in the sample sets"
        if state.reserved_bytes != sum(request.reserved_bytes for request in state.requests.values()):
            yield f"{state.reserved_bytes} bytes are reserved, but not by the requests in flight"
        for expected, holders in (
            (SampleState.IN_FLIGHT, state.requests.values()),
            (SampleState.CHECKING, state.audits.values()),
        ):
            held = sum(holder.indices.size for holder in holders)
            if held != (counted := self.samples_in(expected)):
                yield f"{counted} samples are {expected.name}, {held} are being waited for"
        lanes = sum(len(job.lanes) for job in state.jobs.values())
        if not lanes == state.lanes == state.lanes_of.total():
            yield f"{lanes} lanes are open, {state.lanes} and {state.lanes_of.total()} are counted"
        for job in state.jobs.values():
            for lane in job.lanes.values():
                if not lane.low <= lane.frontier:
                    yield f"{job.name}/{lane.rank}: frontier {lane.frontier} is behind {lane.low}"
