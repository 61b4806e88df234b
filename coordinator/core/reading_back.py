"""Now and then a record that was just produced is read back: so a bad path into the cache is found early.

A reader checks what it reads, but a path that spoils bytes on their way in is then found by every reader of
every record. One record of each executor, every few seconds, finds it at the price of one GET. A record that
does not read back is produced again, and the executor that wrote it is set aside where there is another, as
one whose decoder differs is; it works again once a record of it reads back well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core.actions import Drop, ReadBack, Warn
from superdl.coordinator.core.samples import SampleState

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core.events import RecordReadBack
    from superdl.coordinator.core.state import RequestInFlight, State

__all__ = ["choose_to_read_back", "record_read_back"]

_EVERY_S = 5.0
_DOUBTED_EVERY_S = 0.5
_BYTES_MAX = 16 * 2**20


def choose_to_read_back(
    state: State,
    request: RequestInFlight,
    indices: NDArray[np.int64],
    record_bytes: NDArray[np.int64],
    now: float,
) -> None:
    """Have one of the records that an answer brought read back, if it is time to."""
    member = state.fleet.members[request.executor]
    every_s = _DOUBTED_EVERY_S if member.health.spoils else _EVERY_S
    if not indices.size or now < member.read_back_s + every_s:
        return
    member.read_back_s = now
    place = state.events % indices.size  # any would do
    if record_bytes[place] <= _BYTES_MAX:
        state.actions.append(ReadBack(request.samples, int(indices[place]), request.executor))


def record_read_back(state: State, event: RecordReadBack, now: float) -> None:
    """A record was read back: whole, or not as it was written."""
    member = state.fleet.members[event.executor]
    if not event.fault:
        member.health.reads_back()
        return
    others = ", and it is set aside" if len(state.fleet.members) > 1 else ""
    if not member.health.spoils:  # told once, until it is well again
        text = (
            f"a record that the executor {member.name} has just written to the cache does not read back: "
            f"{event.fault}; the sample is produced again{others}: something on the way between functions, "
            "cache and coordinator changes bytes"
        )
        state.actions.append(Warn(text))
    member.health.does_not_read_back(f"its records do not read back: {event.fault}", now)
    samples = state.sets.get(event.samples)
    if samples is None:
        return
    spoilt = samples.among(np.array([event.index]), SampleState.RESIDENT)
    if spoilt.size:
        samples.move(spoilt, SampleState.ABSENT)
        state.actions.append(Drop(event.samples, spoilt))
        job = next((job.name for job in state.jobs.values() if job.dataset == event.samples.dataset), "")
        state.demands.add(now, event.samples, spoilt, job, failed_by=event.executor)
