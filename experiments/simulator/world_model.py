"""A simulation's parts as plain values: datasets, jobs and functions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import NO_TEAM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.core import CoreSettings, Plan, SetKey

_MAX_GAP_BYTES = 256 * 1024


@dataclass(frozen=True)
class DatasetModel:
    """A simulated dataset and the sizes of its records."""

    name: bytes
    random: bool
    record_bytes: NDArray[np.int64]  # the length of each record, of shape [size]
    source_bytes: int = 0  # mean size of an object
    runs: NDArray[np.int64] | None = None  # first samples of runs of neighbours; None if all are objects

    @property
    def size(self) -> int:
        """The number of samples in the catalog."""
        return self.record_bytes.size

    def gets(self, indices: NDArray[np.int64]) -> int:
        """Return the number of GETs needed to fetch these samples."""
        if self.runs is None or not indices.size:
            return indices.size
        # One for each run of neighbours, and for each gap that is too large to read through.
        ascending = np.sort(indices)
        gap_bytes = (np.diff(ascending) - 1) * self.source_bytes
        run_of = np.searchsorted(self.runs, ascending, side="right")
        return 1 + int(np.count_nonzero((gap_bytes > _MAX_GAP_BYTES) | (np.diff(run_of) > 0)))


@dataclass(frozen=True)
class FunctionsModel:
    """Functions that execute up to ``capacity`` requests at once. Times are in seconds."""

    capacity: int
    # True for a pool of processes, where excess requests wait. False for instances started on demand, as
    # by AWS Lambda, which refuse excess requests.
    queues: bool = True
    # Simultaneous cold starts, and additional ones per second.
    burst: int | None = None
    per_s: float = math.inf
    cold_start_s: float = 0.0
    warm_s: float = 300.0  # instances that are idle for longer are removed
    overhead_s: float = 0.0
    fetch_s: float = 0.0
    fetch_parallel: int = 1
    decode_s: float = 0.0
    push_s: float = 0.0
    restore_s: float = 0.0  # to read a record from the store
    spread: float = 0.3  # sigma of the log-normal distribution of a request's time
    stragglers: float = 0.0  # share of requests that take several times as long (Pareto)
    memory_gb: float = 1.0

    def typical_s(self, samples: int, *, restore: bool = False) -> float:
        """Return a request's typical time in seconds, without a cold start."""
        if restore:
            return self.overhead_s + samples * (self.restore_s + self.push_s)
        each_s = max(self.fetch_s / self.fetch_parallel, self.decode_s + self.push_s)
        return self.overhead_s + self.fetch_s + samples * each_s


@dataclass(frozen=True)
class JobScript:
    """A training run: its plan, its pace, and any unusual behaviour."""

    name: str
    dataset: bytes
    plan: Plan
    starts_s: float
    step_s: float  # the trainer's time per batch
    workers: int
    page: int
    passes: Sequence[tuple[int, int, int]]  # epoch, first position, position at which it is abandoned
    ending: str = "close"  # or "vanish", without closing the job
    pause_s: float = 0.0  # in the middle of each pass
    read_s: float = 0.0  # a worker's time to read a batch from the cache
    handover_s: float = 0.0  # the trainer's time to receive a batch; counts as waiting
    straight: bool = False  # readers can access the store, if there is one
    team: str = NO_TEAM
    orders: Mapping[int, Plan] = field(default_factory=dict)  # of a user's sampler, by epoch

    def plan_of(self, epoch: int) -> Plan:
        """Return the plan of an epoch."""
        return self.orders.get(epoch, self.plan)


@dataclass(frozen=True)
class WorldModel:
    """A simulation that ends at ``until_s`` at the latest. Readers wait at most ``read_timeout_s``."""

    seed: int
    settings: CoreSettings
    functions: FunctionsModel
    datasets: dict[bytes, DatasetModel]
    jobs: tuple[JobScript, ...]
    others: tuple[FunctionsModel, ...] = ()  # for requests beyond the capacity of preceding ones
    unfit: dict[bytes, frozenset[int]] = field(default_factory=dict)  # by dataset, unusable executors
    left_over: float = 0.0  # share of samples in the cache at the start
    stored: float = 0.0  # share of samples in the store at the start, if there is one
    read_timeout_s: float = 600.0
    until_s: float = math.inf
    heartbeat_s: float = 5.0

    @property
    def fleet(self) -> tuple[FunctionsModel, ...]:
        """The functions of all executors, in order of preference."""
        return self.functions, *self.others


@dataclass(slots=True)
class BatchModel:
    """A batch of pass ``number`` while it is being read."""

    number: int
    position: int
    key: SetKey
    indices: NDArray[np.int64]
    padding: NDArray[np.bool_]
    began_s: float
    missing: NDArray[np.int64]
    placed: NDArray[np.bool_]  # which samples the page locates in the store
    hits: int = 0
    straight: int = 0
    attempts: int = 0
