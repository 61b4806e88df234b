"""Notices thrash: samples that are dropped for want of room and then produced again.

What would end it is :mod:`superdl.coordinator.core.needing`'s. Only what recurs is counted: a random recipe
has fresh samples in each epoch, and jobs that share those drift apart, which no memory short of all would
end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["Thrash"]

_HALF_LIFE_S = 60.0
_SHARE_HIGH = 0.02
_SHARE_LOW = 0.01
_SAMPLES_LEAST = 500.0


@dataclass(slots=True)
class _Fading:
    """What jobs came to need of a dataset lately, and how much of it had been dropped before."""

    needed: float = 0.0
    again: float = 0.0
    at_s: float = -math.inf
    thrashing: bool = False

    def note(self, needed: int, again: int, now: float) -> bool:
        """Whether that begins to be thrash."""
        fading = 0.5 ** ((now - self.at_s) / _HALF_LIFE_S)
        self.needed, self.again = self.needed * fading + needed, self.again * fading + again
        self.at_s = now
        enough = self.needed >= _SAMPLES_LEAST
        begins = not self.thrashing and again > 0 and enough and self.again > _SHARE_HIGH * self.needed
        self.thrashing = begins or (self.thrashing and enough and self.again > _SHARE_LOW * self.needed)
        return begins


@dataclass(slots=True)
class Thrash:
    """How much of what jobs come to need had been dropped before; what is long ago counts less and less."""

    reproduced_samples: int = 0
    """Since the start, those of random recipes included."""
    _datasets: dict[bytes, _Fading] = field(default_factory=dict)

    def needed(self, dataset: bytes, samples: int, now: float) -> None:
        """A job has come to samples of a dataset, whether or not they are there."""
        self._datasets.setdefault(dataset, _Fading()).note(samples, 0, now)

    def produced_again(self, dataset: bytes, samples: int, now: float) -> bool:
        """Samples are asked for that were dropped before; whether that begins to be thrash."""
        return self._datasets.setdefault(dataset, _Fading()).note(0, samples, now)

    def forget(self) -> None:
        """Other jobs are there than were: whether those thrash is to be seen."""
        self._datasets.clear()

    @property
    def thrashing(self) -> bool:
        """Whether any dataset's samples are dropped and produced again."""
        return any(dataset.thrashing for dataset in self._datasets.values())
