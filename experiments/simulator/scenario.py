"""What one simulated run is made of: data, jobs, executor, faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from coordinator.core import CoreSettings, Plan

__all__ = ["DatasetModel", "Faults", "JobScript", "Scenario"]


@dataclass(frozen=True)
class DatasetModel:
    """A catalog under a recipe: what its records are like and which of its samples are bad."""

    name: bytes
    random: bool
    record_bytes: np.ndarray
    undecodable: frozenset[int]
    """A function writes a permanent tombstone for these."""
    poisonous: frozenset[int]
    """A function that touches these crashes."""

    @property
    def size(self) -> int:
        """Samples in the catalog."""
        return self.record_bytes.size

    @property
    def uniform(self) -> bool:
        """Whether all records are of one length."""
        return bool((self.record_bytes == self.record_bytes[0]).all())


@dataclass(frozen=True)
class JobScript:
    """A training run: its plan, its pace, and what it does out of the ordinary."""

    name: str
    dataset: bytes
    plan: Plan
    starts_s: float
    step_s: float
    workers: int
    page: int
    passes: tuple[tuple[int, int, int], ...]
    """One for each iteration: epoch, first position, and the position at which it is abandoned."""
    ending: str
    """``close``, or ``vanish`` without a word."""
    pause_s: float
    """A pause in the middle of each pass, as for validation."""


@dataclass(frozen=True)
class Faults:
    """How often things go wrong: probabilities by request, sample or report, and times of what is rare."""

    crash: float = 0.0
    hang: float = 0.0
    throttle: float = 0.0
    unavailable: float = 0.0
    twice: float = 0.0
    sample_error: float = 0.0
    expired: float = 0.0
    lost_report: float = 0.0
    corrupt: float = 0.0
    flushes_s: tuple[float, ...] = ()
    outages_s: tuple[float, ...] = ()
    """The cache goes, and comes back empty a second later."""
    evictions_s: tuple[float, ...] = ()
    """The server evicts a third of what it holds."""
    coordinator_deaths_s: tuple[float, ...] = ()

    @property
    def none(self) -> bool:
        """Whether nothing goes wrong."""
        return self == Faults()


@dataclass(frozen=True)
class Scenario:
    """One run."""

    seed: int
    settings: CoreSettings
    capacity: int
    latency_s: float
    datasets: dict[bytes, DatasetModel]
    jobs: tuple[JobScript, ...]
    faults: Faults
    left_over: float = 0.0
    """Share of the samples that an earlier coordinator left in the cache."""
    patience_s: float = 600.0
