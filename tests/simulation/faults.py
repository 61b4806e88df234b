"""The simulator's cache, store, functions and trainers with the faults described in :mod:`drawn_model`."""

from collections import defaultdict
from functools import partial

import numpy as np

from superdl.coordinator.core import OUTCOME_ORDER, FailureKind, PacksLost, footprint
from superdl.experiments.simulator.cache_model import HEADROOM, CacheModel, StoreModel
from superdl.experiments.simulator.executor_model import ExecutorModel
from superdl.super_wire.request import Outcome, RequestKind
from tests.simulation.drawn_model import NO_FAULTS

_HANG_S = 3.0
_CACHED, _TOMBSTONE, _CACHE_ERROR, _CACHE_FULL, _NOT_STORED, _STORE_ERROR, _NOT_CACHED = map(
    OUTCOME_ORDER.index,
    (
        Outcome.CACHED,
        Outcome.TOMBSTONE,
        Outcome.CACHE_ERROR,
        Outcome.CACHE_FULL,
        Outcome.NOT_STORED,
        Outcome.STORE_ERROR,
        Outcome.NOT_CACHED,
    ),
)
_DECODED = (_CACHED, _CACHE_ERROR, _CACHE_FULL)
_PASSING = tuple(
    OUTCOME_ORDER.index(outcome)
    for outcome in (Outcome.SOURCE_ERROR, Outcome.MISSING, Outcome.STEP_ERROR, Outcome.UNAVAILABLE)
)


class FaultyCache(CacheModel):
    """A cache that may be down, hold corrupt records, or refuse writes when full."""

    def __init__(self, model, array_rng):
        super().__init__(model, array_rng)
        self.refuses = model.cache_refuses
        self.up = True
        self._corrupt = defaultdict(set)

    def corrupt(self, key, indices):
        """Corrupt the cached records of these samples."""
        cached = indices[self.rows(key).record_bytes[indices] > 0]
        self._corrupt[key].update(cached.tolist())

    def spoilt(self, key, indices):
        """Return a mask of the records that fail their check."""
        return np.isin(indices, list(self._corrupt[key]))

    def read(self, key, indices, now, placed):
        if not self.up:
            return (np.zeros(indices.size, dtype=np.bool_),) * 3
        delivered, corrupt, pointed = super().read(key, indices, now, placed)
        spoilt = self.spoilt(key, indices)
        return delivered & ~spoilt, corrupt | spoilt, pointed & ~spoilt

    def replace(self, key, indices, sizes):
        super().replace(key, indices, sizes)
        if self._corrupt[key]:
            self._corrupt[key].difference_update(indices.tolist())

    def make_room(self):
        if not self.refuses:
            super().make_room()

    def refused(self, sizes):
        """Return a mask of the new records that do not fit on a server that does not evict."""
        refused = np.cumsum(footprint(sizes)) > self.budget_bytes * HEADROOM - self.used_bytes
        return refused & self.refuses

    def flush(self):
        """Delete everything."""
        self.sets.clear()
        self._corrupt.clear()
        self.used_bytes = 0


class FaultyStore(StoreModel):
    """A store that may be gone or full, lose packs and let records rot."""

    def __init__(self, model, rng, now_s):
        self._faults, self._rng, self._now_s = model.faults, rng, now_s
        self._rotten = {name: np.zeros(data.size, dtype=np.bool_) for name, data in model.datasets.items()}
        super().__init__(model, rng)
        for data in model.datasets.values():
            self.packs[data.name][list(data.undecodable | data.poisonous)] = 0

    def _is_within(self, spans):
        return any(start_s <= self._now_s() < end_s for start_s, end_s in spans)

    @property
    def answers(self):
        """Return whether the store can be read now."""
        return not self._is_within(self._faults.store_gone_s)

    @property
    def takes(self):
        """Return whether the store can be written now."""
        return self.answers and not self._is_within(self._faults.store_full_s)

    def write(self, dataset, indices):
        pack = super().write(dataset, indices)
        if pack and self._faults is not NO_FAULTS:
            self._rotten[dataset][indices] = self._rng.random(indices.size) < self._faults.rots
        return pack

    def good(self, key, indices):
        return super().good(key, indices) & ~self._rotten[key.dataset][indices] & self.answers

    def lose(self, share):
        """Lose this share of all packs."""
        numbers = np.unique(np.concatenate(list(self.packs.values())))
        lost = numbers[(numbers > 0) & (self._rng.random(numbers.size) < share)]
        for packs in self.packs.values():
            packs[np.isin(packs, lost)] = 0
        return PacksLost(lost.astype(np.uint32))


class FaultyExecutor(ExecutorModel):
    """Functions that crash, hang, refuse, answer twice, or fail on single samples."""

    def submit(self, request):
        if any(start_s <= self.world.now_s < end_s for start_s, end_s in self.functions.gone_s):
            self.refuse(request, FailureKind.UNAVAILABLE)
        else:
            super().submit(request)

    def run(self, taken, *, cold):
        world, functions, request = self.world, self.functions, taken.request
        faults, draw = world.model.faults, world.rng.random
        if faults is NO_FAULTS:
            super().run(taken, cold=cold)
            return
        cold_s = self.cold_start_s() if cold else 0.0
        refusals = {FailureKind.THROTTLED: faults.throttle, FailureKind.UNAVAILABLE: faults.unavailable}
        for kind, share in refusals.items():
            if draw() < share:
                self.free(alive=True)
                self.refuse(request, kind)
                return
        if world.now_s - taken.arrived_s > request.expires_in_s or draw() < faults.expired:
            world.after(cold_s, partial(self.answer, request, 0.0, cold_s, expired=True))
            return
        duration_s = self.duration_s(request)
        timeout_s = min(functions.timeout_s, request.expires_in_s)
        poisonous = world.model.datasets[request.samples.dataset].poisonous
        if world.now_s < functions.wrong_until_s:
            self.fail(request, FailureKind.RAISED, duration_s, cold_s)
        elif poisonous.intersection(request.indices.tolist()) or draw() < faults.crash:
            kind = world.rng.choice((FailureKind.CRASHED, FailureKind.RAISED))
            self._die(request, kind, duration_s, cold_s, pushes_s=duration_s / 2)
        elif draw() < faults.hang:
            self._die(request, FailureKind.TIMED_OUT, _HANG_S, cold_s, pushes_s=_HANG_S * 2 * draw())
        elif duration_s > timeout_s:
            self._die(request, FailureKind.TIMED_OUT, timeout_s, cold_s, pushes_s=timeout_s)
        else:
            world.after(cold_s + duration_s, partial(self.answer, request, duration_s, cold_s))

    def _die(self, request, kind, duration_s, cold_s, *, pushes_s):
        """Fail a request, part of which is written after ``pushes_s``, possibly after the failure."""
        self.world.after(cold_s + pushes_s, partial(self._push_some, request))
        self.fail(request, kind, duration_s, cold_s)

    def _push_some(self, request):
        if request.kind is RequestKind.SAVE:  # a partial pack is invisible
            return
        some = request.indices[: self.world.rng.randrange(request.indices.size + 1)]
        written = some[self._push(request, some) == _CACHED]
        self.world.store.write(request.samples.dataset, written[self.pointed(request, written)])

    def reply(self, answer):
        super().reply(answer)
        world = self.world
        if world.model.faults.twice and world.rng.random() < world.model.faults.twice:
            world.after(world.rng.random(), partial(super().reply, answer))

    def produce(self, request):
        if request.kind.fills_cache:
            return self._push(request, request.indices)
        cache = self.world.cache
        if not cache.up:
            return np.full(request.indices.size, _CACHE_ERROR, dtype=np.uint8)
        intact = cache.look(request.samples, request.indices, self.world.now_s) > 0
        intact &= ~cache.spoilt(request.samples, request.indices)
        return np.where(intact, _CACHED, _NOT_CACHED).astype(np.uint8)

    def _push(self, request, indices):
        """Write these samples where possible and return their outcomes as uint8."""
        world, faults, key = self.world, self.world.model.faults, request.samples
        data, chance = world.model.datasets[key.dataset], world.array_rng.random
        outcomes = np.full(indices.size, _CACHED if world.cache.up else _CACHE_ERROR, dtype=np.uint8)
        if not world.cache.up:
            return outcomes
        restores = request.kind is RequestKind.RESTORE
        if restores:
            outcomes[~world.store.good(key, indices)] = _NOT_STORED if world.store.answers else _STORE_ERROR
        elif faults.sample_error:
            hit = chance(indices.size) < faults.sample_error
            outcomes[hit] = world.array_rng.choice(_PASSING, int(hit.sum()))
        if data.undecodable and not restores:
            bad = np.isin(indices, list(data.undecodable))
            outcomes[bad] = _TOMBSTONE
            world.cache.write_tombstones(key, indices[bad], world.now_s)
        refused = world.cache.refused(self.cached_bytes(request, indices))
        outcomes[(outcomes == _CACHED) & refused] = _CACHE_FULL
        good = indices[outcomes == _CACHED]
        corrupt = good[chance(good.size) < faults.corrupt] if faults.corrupt else good[:0]
        self.write(request, good)
        world.cache.corrupt(key, corrupt)
        return outcomes

    def pointed(self, request, indices):
        return super().pointed(request, indices) & self.world.store.takes

    def keep(self, request, outcomes):
        store = self.world.store
        if request.kind is RequestKind.RESTORE:
            return super().keep(request, outcomes) | {"store_trouble": "" if store.answers else "gone"}
        if request.kind.writes_pack and not store.takes:
            return {"store_trouble": "full"}
        return super().keep(request, outcomes)

    def stored(self, request, outcomes):
        """Return what the cache accepted, and what has a pointer regardless."""
        undecodable = list(self.world.model.datasets[request.samples.dataset].undecodable)
        decoded = np.isin(outcomes, _DECODED) & ~np.isin(request.indices, undecodable)
        return super().stored(request, outcomes) | (self.pointed(request, request.indices) & decoded)
