"""A simulated world with faults that checks every promise of the core after every event."""

import itertools
from functools import partial

import numpy as np

from superdl.coordinator.core import (
    Audited,
    CacheReset,
    CacheResized,
    Core,
    Prefetch,
    ReadBack,
    RecordReadBack,
    Tick,
)
from superdl.experiments.simulator.world import World
from tests.simulation.checks import Checks
from tests.simulation.drawn_model import as_drawn
from tests.simulation.faults import FaultyCache, FaultyExecutor, FaultyStore

_NOTICE_S = 0.3
_RETRY_S = 0.5
_OUTAGE_S = 1.0
_READ_BACK_S = 0.001
_NUMBERS_OF_A_LIFE = 10**9


class CheckedWorld(World):
    """A world with faults at drawn times. It checks every promise and logs all requests."""

    def __init__(self, model, make_core=None):
        self._make_core = make_core or (lambda model: Core(model.settings))
        self._first_number = 0
        self._steps = 0
        super().__init__(as_drawn(model))
        self.log = []
        self.checks = Checks(self)

    def make_core(self):
        return self._make_core(self.model)

    def run(self):
        super().run()
        if not self.under_way:
            ended_s = self.now_s
            self.checks.ended()
            self.now_s = ended_s
        return self

    def make_cache(self):
        return FaultyCache(self.model, self.array_rng)

    def make_store(self):
        return FaultyStore(self.model, self.array_rng, lambda: self.now_s)

    def make_executor(self, functions):
        return FaultyExecutor(self, functions)

    def begin(self):
        super().begin()
        faults = self.model.faults
        rare = (
            (self._flush, faults.flushes_s),
            (self._outage, faults.outages_s),
            (partial(self.cache.evict, 0.3), faults.evictions_s),
            (self._kill_coordinator, faults.coordinator_deaths_s),
            (partial(self.store.lose, 0.3), faults.pack_losses_s),
            (self._prune, faults.prunes_s),
            *((partial(self._resize, share), (time_s,)) for time_s, share in faults.resizes),
        )
        for happens, times_s in rare:
            for time_s in times_s:
                self.after(time_s, happens)

    def step(self, until_s=np.inf):
        self._steps += 1
        if self._steps > self.model.events_max:
            raise self.broken("the run does not end")
        return super().step(until_s)

    def post(self, *events):
        if not self.coordinator_up:
            return
        for event in events:
            self.checks.record_event(event)
        super().post(*events)
        self.checks.settled()
        if isinstance(events[0], Tick):
            self.checks.ticked()

    def report(self, event):
        lost = self.model.faults.lost_report
        if self.cache.up and not (lost and self.rng.random() < lost):
            super().report(event)

    def answer(self, event):
        if event.request_id >= self._first_number:
            super().answer(event)

    def act(self, action):
        self.checks.acted(action)
        if isinstance(action, Prefetch):
            self.log.append(f"{self.now_s:.6f} {action.samples} {action.indices.tolist()}")
        super().act(action)
        if isinstance(action, ReadBack):
            self.after(_READ_BACK_S, partial(self._read_back, action, self.core))

    def audit(self, action):
        """Report what the cache holds, once it is up, to the coordinator that asked."""
        if action.audit_id < self._first_number:
            return
        if not self.cache.up:
            self.after(_RETRY_S, partial(self.audit, action))
            return
        lengths, pointers = self.cache.audit(action.samples, action.indices, self.now_s)
        if action.whole:
            intact = ~self.cache.spoilt(action.samples, action.indices)
            lengths, pointers = lengths * intact, pointers & intact
        self.post(Audited(action.audit_id, lengths, pointers))

    def _read_back(self, action, core):
        index = np.array([action.index])
        up = core is self.core and self.cache.up
        if up and self.cache.look(action.samples, index, self.now_s)[0] > 0:
            fault = "spoilt" if self.cache.spoilt(action.samples, index)[0] else ""
            self.post(RecordReadBack(action.samples, action.index, action.executor, fault))

    def report_cache(self):
        if not (self.coordinator_up and self.cache.up):
            return
        if self.cache.refuses:  # otherwise its size never changes
            self.post(CacheResized(self.cache.budget_bytes))
        super().report_cache()

    def _flush(self):
        self.cache.flush()
        self.after(_NOTICE_S, self._notice_loss)

    def _notice_loss(self):
        if self.cache.up:
            self.post(CacheReset())
        else:
            self.after(_RETRY_S, self._notice_loss)

    def _outage(self):
        self.cache.flush()
        self.cache.up = False
        self.after(_OUTAGE_S, self._come_back)

    def _come_back(self):
        self.cache.up = True
        self.after(0.2, self._notice_loss)

    def _resize(self, share):
        self.cache.budget_bytes = int(self.model.settings.budget_bytes * share)

    def _prune(self):
        self.post(self.store.lose(0.3))

    def _kill_coordinator(self):
        if self.coordinator_up:
            self.coordinator_up = False
            self.after(1.0, self._restart_coordinator)

    def _restart_coordinator(self):
        self.coordinator_up = True
        self.cache_was_empty = not self.cache.used_bytes
        self.core = self.make_core()
        # Tell answers and audits of an earlier run apart.
        self._first_number += _NUMBERS_OF_A_LIFE
        self.core.state.numbers = itertools.count(self._first_number)
        self.checks.restarted()
        self.wakes_at_s = np.inf
        self.report_size()

    def waits(self, job, rank, position, waited_s):
        super().waits(job, rank, position, waited_s)
        self.checks.waits(job, rank, position, waited_s)

    def consumed(self, job, rank, batch):
        self.checks.deliveries[job, rank].append(batch)
