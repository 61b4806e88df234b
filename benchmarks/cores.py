"""Holds a trainer to some of the machine's cores, and all that serves it to the others."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.errors import BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Cores", "held_to"]


@dataclass(frozen=True, slots=True)
class Cores:
    """The trainer's cores, and the others."""

    trainer: list[int]
    others: list[int]

    @classmethod
    def split(cls, for_trainer: int) -> Cores:
        """This process's cores, so many of them for the trainer.

        Raises:
            BenchmarkError: none is left for the others, or this system holds nobody to cores.

        """
        usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        if len(usable) <= for_trainer:
            raise BenchmarkError(
                f"this benchmark holds the trainer to {for_trainer} of the cores and functions to the "
                f"others, so it needs {for_trainer + 1} at least; {len(usable)} can be had here (it runs on "
                "Linux only)"
            )
        return cls(usable[:for_trainer], usable[for_trainer:])


@contextlib.contextmanager
def held_to(cores: Sequence[int]) -> Iterator[None]:
    """Hold this thread, and what it starts meanwhile, to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
