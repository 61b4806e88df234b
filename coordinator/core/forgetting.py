"""Forgetting what nobody will ask for again: ranks that fell silent, sample sets that hold nothing.

Without it, every epoch of a random recipe would leave the states of a whole catalog behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from superdl.coordinator.core.events import JobClosed
from superdl.coordinator.core.reading import job_closed

if TYPE_CHECKING:
    from superdl.coordinator.core.state import State

__all__ = ["forget_empty_sets", "forget_silent_lanes"]


def forget_silent_lanes(state: State, now: float) -> None:
    """Forget the ranks that have been silent for ``forget_s``."""
    silent = [
        JobClosed(job.name, rank)
        for job in state.jobs.values()
        for rank, lane in job.lanes.items()
        if now - lane.last_seen_s > state.settings.forget_s
    ]
    for event in silent:
        job_closed(state, event, now)


def forget_empty_sets(state: State, now: float) -> None:
    """Forget sample sets that hold nothing and that nobody is at, and datasets that had none at the last
    look either; what is asked for again is made anew.
    """
    awaited = state.awaited.by_set(now)
    for key, samples in list(state.sets.items()):
        if samples.idle and key not in awaited and not state.is_at(key):
            del state.sets[key]
    kept = {key.dataset for key in state.sets}
    kept.update(request.samples.dataset for request in state.requests.values())
    unused = {name for name in state.datasets if name not in kept and not state.wants(name)}
    for dataset in unused & state.unused_datasets:
        del state.datasets[dataset]
        state.unfit.pop(dataset, None)
        state.stalls.works.pop(dataset, None)
    state.unused_datasets = unused
