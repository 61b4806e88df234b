"""Drives a core by hand: events at chosen times, actions kept by kind, invariants checked each time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.coordinator.core import EVERY_EPOCH, Core, CoreSettings, DatasetFacts, Plan, SampleState, SetKey
from superdl.coordinator.core.events import (
    OUTCOME_ORDER,
    Audit,
    Audited,
    BatchesAsked,
    BatchRead,
    Drop,
    ExecutorResized,
    JobOpened,
    Prefetch,
    ReadBack,
    RequestDone,
    RequestFailed,
    Tick,
    Warn,
    WriteTombstones,
)
from superdl.super_wire.request import Outcome
from tests.simulation.invariants import problems

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core.events import Event, FailureKind

__all__ = ["Driver"]

DATASET = b"data"
RECORD_BYTES = 1000


class Driver:
    """A core with one dataset; ``step`` hands in an event and returns the actions."""

    def __init__(
        self,
        *,
        size: int = 64,
        random: bool = False,
        known_absent: bool = True,
        runs: NDArray[np.int64] | None = None,
        capacity: int = 8,
        budget_bytes: int = 10**9,
        **settings: Any,
    ) -> None:
        self.core = Core(CoreSettings(budget_bytes=budget_bytes, **settings))
        self.state = self.core.state
        self.now_s = 0.0
        self.size = size
        self.random = random
        self.requests: list[Prefetch] = []
        """Made and not answered."""
        self.audits: list[Audit] = []
        self.drops: list[Drop] = []
        self.tombstones: list[WriteTombstones] = []
        self.warnings: list[Warn] = []
        self.read_backs: list[ReadBack] = []
        self.step(ExecutorResized(capacity))
        self.dataset = DatasetFacts(DATASET, size, random, RECORD_BYTES, known_absent, runs)

    def step(self, event: Event, *, after_s: float = 0.0) -> list[Any]:
        """Hand in an event, some time after the last one."""
        self.now_s += after_s
        actions = self.core.handle(event, self.now_s)
        assert list(problems(self.core)) == []
        assert self.core.wake_at_s > self.now_s
        for action in actions:
            kept: list[Any] = {
                Prefetch: self.requests,
                Audit: self.audits,
                Drop: self.drops,
                WriteTombstones: self.tombstones,
                Warn: self.warnings,
                ReadBack: self.read_backs,
            }[type(action)]
            kept.append(action)
        return actions

    def open(
        self,
        job: str = "job",
        *,
        rank: int = 0,
        at: tuple[int, int] = (0, 0),
        ineligible: frozenset[int] = frozenset(),
        **plan: Any,
    ) -> Plan:
        """Open a job."""
        made = Plan(self.size, **{"batch_size": 8, **plan})
        self.step(JobOpened(job, self.dataset, made, rank, *at, ineligible))
        return made

    def ask(
        self,
        start: int,
        stop: int,
        *,
        job: str = "job",
        rank: int = 0,
        epoch: int = 0,
        yielded: int = 0,
        sees_store: bool = False,
    ) -> None:
        """The sampler asks for a page."""
        self.step(BatchesAsked(job, rank, epoch, start, stop, yielded, sees_store))

    def read(
        self,
        position: int,
        *,
        missed: tuple[int, ...] = (),
        corrupt: tuple[int, ...] = (),
        job: str = "job",
        rank: int = 0,
        epoch: int = 0,
        after_s: float = 0.0,
        **facts: Any,
    ) -> list[Any]:
        """A reader reports: a batch read, or what it misses; other ``facts`` of it may be named."""
        usual: dict[str, Any] = {
            "job": job,
            "rank": rank,
            "epoch": epoch,
            "position": position,
            "samples": 8,
            "hits": 8 - len(missed),
            "missed": np.array(missed, dtype=np.int64),
            "corrupt": np.array(corrupt, dtype=np.int64),
            "done": not missed,
            "read_us": 10,
            "wait_us": 5,
        }
        return self.step(BatchRead(**usual | facts), after_s=after_s)

    def answer(
        self,
        request: Prefetch,
        outcome: Outcome = Outcome.CACHED,
        *,
        record_bytes: int = RECORD_BYTES,
        but: dict[int, Outcome] | None = None,
        after_s: float = 0.01,
        **facts: Any,
    ) -> list[Any]:
        """A function answers; ``but`` names samples with another outcome. Other ``facts`` of the answer may
        be named, such as the number of the ``pack`` that it has written.
        """
        if request in self.requests:
            self.requests.remove(request)
        outcomes = [(but or {}).get(index, outcome) for index in request.indices.tolist()]
        cached = np.array([one == Outcome.CACHED for one in outcomes])
        usual: dict[str, Any] = {
            "request_id": request.request_id,
            "outcomes": np.array([OUTCOME_ORDER.index(one) for one in outcomes], dtype=np.uint8),
            "record_bytes": np.where(cached, record_bytes, 0),
            "source_bytes": 10,
            "fetch_us": 1,
            "decode_us": 2,
            "push_us": 3,
            "messages": {n: f"why {n}" for n, one in enumerate(outcomes) if one != Outcome.CACHED},
            "stored": cached if facts.get("pack") else None,
        }
        return self.step(RequestDone(**usual | facts), after_s=after_s)

    def answer_all(self, outcome: Outcome = Outcome.CACHED, *, record_bytes: int = RECORD_BYTES) -> None:
        """Answer all requests, also those that come of it."""
        for _ in range(10_000):
            if not self.requests:
                return
            self.answer(self.requests[0], outcome, record_bytes=record_bytes)
        msg = "the core never stops asking"
        raise AssertionError(msg)

    def fail(self, request: Prefetch, kind: FailureKind) -> list[Any]:
        """A request comes to nothing."""
        self.requests.remove(request)
        return self.step(RequestFailed(request.request_id, kind, "because"))

    def tell(self, audit: Audit, record_bytes: list[int], *, pointers: bool = False) -> list[Any]:
        """The cache answers an audit; what it has may be ``pointers``."""
        self.audits.remove(audit)
        lengths = np.array(record_bytes, dtype=np.int64)
        return self.step(Audited(audit.audit_id, lengths, (lengths > 0) & pointers))

    def wait(self, seconds: float) -> list[Any]:
        """Let time pass, ticking when the core wants it; all actions on the way."""
        until_s, actions = self.now_s + seconds, []
        for _ in range(10_000):
            if self.core.wake_at_s > until_s:
                break
            self.now_s = self.core.wake_at_s
            actions += self.step(Tick())
        self.now_s = until_s
        return actions

    def key(self, epoch: int = EVERY_EPOCH) -> SetKey:
        """The sample set of an epoch."""
        return SetKey(DATASET, epoch)

    def in_state(self, state: SampleState, epoch: int = EVERY_EPOCH) -> list[int]:
        """The samples in a state."""
        found: list[int] = np.flatnonzero(
            self.core.state.states(self.key(epoch), np.arange(self.size)) == state
        ).tolist()
        return found

    def requested(self) -> list[int]:
        """All samples of the open requests, in order."""
        return [index for request in self.requests for index in request.indices.tolist()]
