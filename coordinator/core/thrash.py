"""Notices thrash: samples that are dropped for want of room and then produced again."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Thrash"]

_HALF_LIFE_S = 60.0
_SHARE_HIGH = 0.2
_SHARE_LOW = 0.1
_SAMPLES_LEAST = 500.0


@dataclass(slots=True)
class Thrash:
    """How much of what is produced had been dropped before; what is long ago counts less and less."""

    reproduced_samples: int = 0
    """Since the start."""
    thrashing: bool = False
    _produced: float = 0.0
    _reproduced: float = 0.0
    _at_s: float = -math.inf

    def note(self, samples: int, again: int, now: float) -> bool:
        """So many samples are asked for, some of them again; whether that begins to be thrash."""
        fading = 0.5 ** ((now - self._at_s) / _HALF_LIFE_S)
        self._produced = self._produced * fading + samples
        self._reproduced = self._reproduced * fading + again
        self._at_s = now
        self.reproduced_samples += again
        share = self._reproduced / self._produced
        was, enough = self.thrashing, self._produced >= _SAMPLES_LEAST
        self.thrashing = share > (_SHARE_LOW if was else _SHARE_HIGH) and enough
        return self.thrashing and not was
