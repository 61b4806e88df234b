"""Detect the steps of a pass that waited for data, and the cause; `docs/runs.md` lists the causes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.experiments.records import CauseTotal, StallSummary
from superdl.super_wire.errors import CoordinatorError
from superdl.super_wire.waits import UNKNOWN, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from superdl.experiments.records import CountedLoader, StepRecord

_log = logging.getLogger(__name__)

# A step stalled if it waited for more than a twentieth of its time, and at least 1 ms.
_LEAST_SHARE = 0.05
_LEAST_S = 0.001
# Ask for causes after this many steps with misses over all ranks, whether or not the trainer waited; the
# coordinator keeps only the newest 1,024 entries.
_MISSED_MOST = 512


@dataclass(frozen=True, slots=True)
class StalledStep:
    """A step that waited ``wait_s`` seconds; ``cause`` is one in `docs/runs.md`."""

    epoch: int
    split: str
    step: int
    batch_id: str
    wait_s: float
    misses: int
    cause: str


_OF_A_STEP = tuple(name for name in StalledStep.__dataclass_fields__ if name != "cause")


def is_stalled(step: StepRecord) -> bool:
    """Check whether the trainer waited for data for too much of a step."""
    return step.wait_s > max(_LEAST_S, _LEAST_SHARE * step.total_s)


def cause_of(step: StepRecord, causes: Mapping[tuple[int, int], str]) -> str:
    """Return the cause of a step's stall, given the coordinator's ``causes`` by epoch and position."""
    if step.misses:
        # Only the coordinator knows why a reader had to wait.
        if step.plan_epoch is None or step.position is None:
            return UNKNOWN
        return wait_for(causes.get((step.plan_epoch, step.position), UNKNOWN))
    read = step.hits or step.straight
    # Functions decoded the samples in cache or store, maybe long ago.
    own_s = 0.0 if read else step.fetch_s + step.decode_s
    if step.step == 0 and 2 * own_s < step.wait_s:
        return wait_for("loader_start")
    if read:
        return wait_for("cache_transfer" if step.hits else "store_read")
    if not own_s:
        return wait_for("loading")
    return wait_for("source" if step.fetch_s > step.decode_s else "decode")


class StallMeter:
    """Collect a split's stalled steps, and fetch their causes in batches.

    Args:
        source: the loader; its ``job_stats`` reports recent stalls.
        rank: the rank whose stalls are collected.
        replicas: the number of ranks whose stalls the job reports.
    """

    def __init__(self, source: CountedLoader, rank: int = 0, replicas: int = 1) -> None:
        self._source = source
        self._rank = rank
        self._replicas = replicas
        self._steps = self._missed = 0
        self._waiting: list[StepRecord] = []  # stalled steps without a cause yet
        self._known: list[StalledStep] = []

    def add(self, steps: Iterable[StepRecord]) -> None:
        """Add finished steps."""
        for step in steps:
            self._steps += 1
            self._missed += self._replicas * (step.misses > 0)
            if is_stalled(step):
                self._waiting.append(step)
        if self._missed >= _MISSED_MOST:
            self._find_causes()

    def lap(self) -> tuple[StallSummary, Sequence[StalledStep]]:
        """Return the stalls since the last lap, their causes sorted by seconds."""
        self._find_causes()
        steps, stalls = self._steps, self._known
        self._steps, self._known = 0, []
        causes: dict[str, list[float]] = {}
        for stall in stalls:
            causes.setdefault(stall.cause, []).append(stall.wait_s)
        totals = {cause: CauseTotal(len(waits), sum(waits)) for cause, waits in causes.items()}
        longest_first = dict(sorted(totals.items(), key=lambda item: -item[1].wait_s))
        wait_s = sum(stall.wait_s for stall in stalls)
        return StallSummary(steps, len(stalls), wait_s, longest_first), stalls

    def _find_causes(self) -> None:
        causes: dict[tuple[int, int], str] = {}
        if any(step.misses for step in self._waiting):
            try:
                recent = self._source.job_stats().recent_stalls
                causes = {
                    (each.epoch, each.position): each.cause for each in recent if each.rank == self._rank
                }
            except CoordinatorError as error:
                _log.warning("the coordinator did not tell why batches stalled: %s", error)
        for step in self._waiting:
            values = {name: getattr(step, name) for name in _OF_A_STEP}
            self._known.append(StalledStep(**values, cause=cause_of(step, causes)))
        self._waiting, self._missed = [], 0
