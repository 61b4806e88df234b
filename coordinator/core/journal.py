"""What happened lately, for people who ask about one batch: short notes, kept while there is room.

Notes are of lanes (a page was given out, batches were looked at, a reader missed or read one) and of requests
(their samples say which batches they were for). Nothing is decided by them.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from superdl.coordinator.core.samples import SetKey

__all__ = ["Kind", "LaneNote", "RequestNote", "RequestNotes", "history"]

NOTES_PER_LANE = 256
_REQUESTS = 4096


class Kind(enum.Enum):
    """What can happen to the batches of a lane, in words; ``{}`` is the note's number."""

    PLANNED = "the sampler was told of it"
    LOOKED = "looked ahead to it, with its neighbours: {} samples were absent"
    MISSED = "a reader missed {} of its samples"
    READ = "read, {} samples at the first attempt"


class LaneNote(NamedTuple):
    """Something happened to the batches from ``start`` to before ``stop``, in absolute positions."""

    at_s: float
    kind: Kind
    start: int
    stop: int
    number: int = 0


@dataclass(slots=True)
class RequestNote:
    """A request, and once it has ended, how."""

    number: int
    samples: SetKey
    indices: NDArray[np.int64]
    job: str
    made_s: float
    hedge_of: int | None
    ended_s: float | None = None
    ending: str = ""


class RequestNotes:
    """The newest requests."""

    def __init__(self) -> None:
        self._notes: deque[RequestNote] = deque(maxlen=_REQUESTS)
        self._open: dict[int, RequestNote] = {}

    def made(self, note: RequestNote) -> None:
        """A request was made."""
        self._notes.append(note)
        self._open[note.number] = note

    def ended(self, number: int, now: float, ending: str) -> None:
        """A request was answered, or came to nothing."""
        note = self._open.pop(number, None)
        if note is not None:
            note.ended_s, note.ending = now, ending

    def of(self, samples: SetKey, indices: NDArray[np.int64]) -> Iterator[tuple[RequestNote, int]]:
        """The requests that name some of these samples, oldest first, and how many they name."""
        notes = [note for note in self._notes if note.samples == samples]
        if not notes:
            return
        named = np.isin(np.concatenate([note.indices for note in notes]), indices)
        begins = np.cumsum([0, *(note.indices.size for note in notes[:-1])])
        for note, count in zip(notes, np.add.reduceat(named.astype(np.int64), begins).tolist(), strict=True):
            if count:
                yield note, count


def history(
    lane_notes: Iterable[LaneNote], requests: Iterable[tuple[RequestNote, int]], place: int
) -> list[tuple[float, str]]:
    """What happened to the batch at an absolute position: times and words, oldest first."""
    told = [
        (note.at_s, note.kind.value.format(note.number))
        for note in lane_notes
        if note.start <= place < note.stop
    ]
    for note, named in requests:
        why = f", racing request {note.hedge_of}" if note.hedge_of is not None else ""
        told.append(
            (note.made_s, f"request {note.number} for {named} of its samples, on account of {note.job}{why}")
        )
        if note.ended_s is not None:
            told.append((note.ended_s, f"request {note.number} ended: {note.ending}"))
    return sorted(told, key=lambda entry: entry[0])
