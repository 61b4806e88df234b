"""What befalls a simulated world from outside, at times drawn beforehand: cache, coordinator, packs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from superdl.coordinator.core import CacheReset
from superdl.experiments.simulator.world import World
from superdl.experiments.simulator.world_model import Faults

_NOTICE_S = 0.3
_RETRY_S = 0.5
_OUTAGE_S = 1.0


@dataclass(frozen=True)
class Upsets(Faults):
    """The faults of a world, and the times of what is rare."""

    flushes_s: tuple[float, ...] = ()
    outages_s: tuple[float, ...] = ()
    """The cache goes, and comes back empty a second later."""
    evictions_s: tuple[float, ...] = ()
    """The server evicts a third of what it holds."""
    coordinator_deaths_s: tuple[float, ...] = ()
    pack_losses_s: tuple[float, ...] = ()
    """A third of all packs vanishes, and nobody tells the coordinator."""
    prunes_s: tuple[float, ...] = ()
    """A third of all packs is removed by the coordinator."""
    resizes: tuple[tuple[float, float], ...] = ()
    """The server's memory changes: at what time, and to what share of the first budget."""


class UpsetWorld(World):
    """A world whose model may have :class:`Upsets` for its faults."""

    def begin(self):
        super().begin()
        upsets = self.model.faults
        if not isinstance(upsets, Upsets):
            return
        rare = (
            (self._flush, upsets.flushes_s),
            (self._outage, upsets.outages_s),
            (partial(self.cache.evict, 0.3), upsets.evictions_s),
            (self._kill_coordinator, upsets.coordinator_deaths_s),
            (partial(self.store.lose, 0.3), upsets.pack_losses_s),
            (self._prune, upsets.prunes_s),
            *((partial(self._resize, share), (time_s,)) for time_s, share in upsets.resizes),
        )
        for happens, times_s in rare:
            for time_s in times_s:
                self.after(time_s, happens)

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
        self.life += 1
        self.coordinator_up = True
        self.cache_was_empty = not self.cache.used_bytes
        self.core = self.make_core(self.model)
        self.restarted()
        self.wakes_at_s = np.inf
        self.report_size()

    def restarted(self):
        """Called after the coordinator has restarted, before it hears of anything."""
