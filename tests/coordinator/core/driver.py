"""Drive a core by hand, and check its invariants after each event."""

import numpy as np

from superdl.coordinator.core import EVERY_EPOCH, Core, CoreSettings, DatasetFacts, Plan, SetKey
from superdl.coordinator.core.events import (
    OUTCOME_ORDER,
    Audit,
    Audited,
    BatchesRequested,
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
from superdl.super_wire.read_reports import ReadReport
from superdl.super_wire.request import Outcome
from tests.simulation.invariants import problems

DATASET = b"data"
RECORD_BYTES = 1000


class Driver:
    """A core with one dataset, and its actions by kind."""

    def __init__(
        self,
        *,
        size=64,
        random=False,
        known_absent=True,
        runs=None,
        capacity=8,
        budget_bytes=10**9,
        **settings,
    ):
        self.core = Core(CoreSettings(budget_bytes=budget_bytes, **settings))
        self.state = self.core.state
        self.now_s = 0.0
        self.size = size
        self.random = random
        self.requests = []
        """Requests made and not yet answered."""
        self.audits = []
        self.drops = []
        self.tombstones = []
        self.warnings = []
        self.read_backs = []
        self.step(ExecutorResized(capacity))
        self.dataset = DatasetFacts(DATASET, size, random, RECORD_BYTES, known_absent, runs)

    def step(self, event, *, after_s=0.0):
        """Pass in an event ``after_s`` seconds after the previous one."""
        self.now_s += after_s
        actions = self.core.handle(event, self.now_s)
        assert list(problems(self.core)) == []
        assert self.core.wake_at_s > self.now_s
        for action in actions:
            kept = {
                Prefetch: self.requests,
                Audit: self.audits,
                Drop: self.drops,
                WriteTombstones: self.tombstones,
                Warn: self.warnings,
                ReadBack: self.read_backs,
            }[type(action)]
            kept.append(action)
        return actions

    def open(self, job="job", *, rank=0, at=(0, 0), ineligible=frozenset(), **plan):
        """Open a job."""
        opened = Plan(self.size, **{"batch_size": 8, **plan})
        self.step(JobOpened(job, self.dataset, opened, rank, *at, ineligible))
        return opened

    def ask(self, start, stop, *, job="job", rank=0, epoch=0, yielded=0, sees_store=False):
        """Request a page, as the sampler does."""
        self.step(BatchesRequested(job, rank, epoch, start, stop, yielded, sees_store))

    def read(self, position, *, missed=(), corrupt=(), job="job", rank=0, epoch=0, after_s=0.0, **facts):
        """Report a batch as read or samples as missed. ``facts`` override further fields of the report."""
        usual = {
            "rank": rank,
            "epoch": epoch,
            "position": position,
            "samples": 8,
            "hits": 8 - len(missed),
            "wait_us": 5,
            "read_us": 10,
            "check_us": 0,
            "size_bytes": 0,
            "attempt": 1,
            "done": int(not missed),
            "missed": missed,
            "corrupt": corrupt,
        }
        return self.step(BatchRead(job, ReadReport(**usual | facts)), after_s=after_s)

    def answer(
        self, request, outcome=Outcome.CACHED, *, record_bytes=RECORD_BYTES, but=None, after_s=0.01, **facts
    ):
        """Answer a request. ``but`` maps samples to other outcomes, and ``facts`` sets more fields."""
        if request in self.requests:
            self.requests.remove(request)
        outcomes = [(but or {}).get(index, outcome) for index in request.indices.tolist()]
        cached = np.array([each == Outcome.CACHED for each in outcomes])
        usual = {
            "request_id": request.request_id,
            "outcomes": np.array([OUTCOME_ORDER.index(each) for each in outcomes], dtype=np.uint8),
            "record_bytes": np.where(cached, record_bytes, 0),
            "source_bytes": 10,
            "fetch_us": 1,
            "decode_us": 2,
            "push_us": 3,
            "messages": {n: f"why {n}" for n, each in enumerate(outcomes) if each != Outcome.CACHED},
            "stored": cached if facts.get("pack") else None,
        }
        return self.step(RequestDone(**usual | facts), after_s=after_s)

    def answer_all(self, outcome=Outcome.CACHED, *, record_bytes=RECORD_BYTES):
        """Answer all requests, including new ones that result."""
        for _ in range(10_000):
            if not self.requests:
                return
            self.answer(self.requests[0], outcome, record_bytes=record_bytes)
        msg = "the core never stops making requests"
        raise AssertionError(msg)

    def fail(self, request, kind):
        """Fail a request."""
        self.requests.remove(request)
        return self.step(RequestFailed(request.request_id, kind, "because"))

    def finish_audit(self, audit, record_bytes, *, pointers=False):
        """Report the sizes of an audit's samples, which may be ``pointers``."""
        self.audits.remove(audit)
        lengths = np.array(record_bytes, dtype=np.int64)
        return self.step(Audited(audit.audit_id, lengths, (lengths > 0) & pointers))

    def wait(self, seconds):
        """Let time pass, with a tick whenever the core needs one. Return all actions on the way."""
        until_s, actions = self.now_s + seconds, []
        for _ in range(10_000):
            if self.core.wake_at_s > until_s:
                break
            self.now_s = self.core.wake_at_s
            actions += self.step(Tick())
        self.now_s = until_s
        return actions

    def key(self, epoch=EVERY_EPOCH):
        """Return the key of an epoch's sample set."""
        return SetKey(DATASET, epoch)

    def in_state(self, state, epoch=EVERY_EPOCH):
        """Return the samples in a state."""
        return np.flatnonzero(self.core.state.states(self.key(epoch), np.arange(self.size)) == state).tolist()

    def requested(self):
        """Return all samples of the open requests, in order."""
        return [index for request in self.requests for index in request.indices.tolist()]
