"""What the core is told of its executors: how much they take, and what they are of no use for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.coordinator.core.events import ExecutorResized, ExecutorsUnfit
    from superdl.coordinator.core.state import State

__all__ = ["executor_resized", "executors_unfit"]


def executor_resized(state: State, event: ExecutorResized, now: float) -> None:
    """An executor takes another number of requests at once."""
    backlog = event.capacity if event.backlog is None else event.backlog
    state.fleet.members[event.executor].concurrency.resize(
        event.capacity,
        backlog=backlog,
        burst=event.burst,
        per_s=event.per_s,
        queues=event.queues,
        now=now,
    )


def executors_unfit(state: State, event: ExecutorsUnfit, now: float) -> None:
    """Some executors are not to be asked for a dataset, and all others are."""
    if event.executors == state.unfit.get(event.dataset, frozenset()):
        return
    reading = [job for job in state.jobs.values() if job.dataset == event.dataset]
    for job in reading:
        for rank in job.lanes:
            state.rest(job, rank)
    if event.executors:
        state.unfit[event.dataset] = event.executors
    else:
        state.unfit.pop(event.dataset, None)
    for job in reading:
        for lane in job.lanes.values():
            state.wake(job, lane)
