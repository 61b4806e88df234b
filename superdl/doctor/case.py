"""What a doctor is asked about, and what its checks have seen so far that later ones build on."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors import executor_classes

if TYPE_CHECKING:
    from superdl.coordinator.server.settings import Settings
    from superdl.super_dataset import SuperDataset
    from superdl.super_wire.batch_ref import BatchRef
    from superdl.super_wire.coordinator_pb2 import CacheStats, Coordinating
    from superdl.super_wire.recipe import Recipe

__all__ = ["Case", "Clock", "Seen", "Started"]


@dataclass(frozen=True, slots=True)
class Case:
    """What was named. Texts are empty where nothing was.

    ``settings`` say how functions run (``executor``, ``function``, ``lambda_*``), as a coordinator's settings
    do; ``given`` are the names of those that somebody chose, which a coordinator's own do not replace.
    ``batches_per_s`` is what the training loop takes, 0 where that is not known; ``workers`` are its reading
    processes. ``readable`` is the prefix that a stack's functions may read. ``patience_s`` bounds the wait
    for the first sample, a listing included.
    """

    settings: Settings
    recipe: Recipe
    source: str = ""
    key_list: str = ""
    coordinator: str = ""
    cache: str = ""
    given: frozenset[str] = frozenset()
    batch_size: int = 256
    batches_per_s: float = 0.0
    workers: int = 4
    readable: str = ""
    patience_s: float = 120.0

    @property
    def elsewhere(self) -> bool:
        """Whether another identity than this machine's reads the source and invokes functions."""
        return bool(self.coordinator)


@dataclass(frozen=True, slots=True)
class Clock:
    """How far another clock is ahead of this machine's, known to within ``within_s``; seconds."""

    name: str
    ahead_s: float
    within_s: float


@dataclass(frozen=True, slots=True)
class Started:
    """An executor that was started for a look: its decoder's fingerprint, how many functions it has room for,
    and the seconds until it answered.
    """

    fingerprint: str
    places: int = 0
    answer_s: float = 0.0


@dataclass(slots=True)
class Seen:
    """What checks leave for later ones; ``None``, empty or 0 where it was not seen.

    ``closing`` is closed when all checks have ended.
    """

    coordinating: Coordinating | None = None
    stats: CacheStats | None = None
    cache: str = ""
    budget_bytes: int = 0
    aws_region: str = ""
    object_key: str = ""
    object_bytes: int = 0
    record_bytes: int = 0
    function_name: str = ""
    started: dict[str, Started] = field(default_factory=dict)
    """What executors told that were started here, by name."""
    capacities: dict[str, int] = field(default_factory=dict)
    """Functions at once at most, by executor, as the coordinator tells; none for one that is not there."""
    dataset: SuperDataset | None = None
    ref: BatchRef | None = None
    clocks: list[Clock] = field(default_factory=list)
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def clock(self, name: str, told_s: float, asked_s: float, *, resolution_s: float = 0.0) -> None:
        """Another clock has just told its time, which was asked for at ``asked_s`` of this one's.

        ``resolution_s`` is the unit that it tells in, cut off below.
        """
        now_s = time.time()
        ahead_s = told_s + resolution_s / 2 - (asked_s + now_s) / 2
        self.clocks.append(Clock(name, ahead_s, (now_s - asked_s) / 2 + resolution_s / 2))

    def functions(self, case: Case) -> Settings:
        """How functions run: as was chosen, else as the coordinator says, else by default."""
        told = self.coordinating
        if told is None:
            return case.settings
        theirs: dict[str, Any] = {"executor": ",".join(told.executors)}
        for executor in executor_classes(told.executors):
            theirs |= {name: getattr(told, name) for name in executor.told}
        known = {name: value for name, value in theirs.items() if value and name not in case.given}
        return replace(case.settings, **known)
