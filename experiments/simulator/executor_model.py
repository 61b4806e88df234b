"""The functions of the simulated world, with cold starts, queues, run times, failures and usage."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from superdl.coordinator.core import OUTCOME_ORDER, FailureKind, RequestDone, RequestFailed
from superdl.super_wire.request import Outcome, RequestKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.coordinator.core import Prefetch
    from superdl.experiments.simulator.simulation import Simulation
    from superdl.experiments.simulator.world_model import FunctionsModel

_REFUSAL_S = 0.002
_ANSWER_S = 0.001  # in reality, too, the records arrive before the answer
_HANG_S = 3.0
_STRAGGLER_SHAPE = 1.5
_STRAGGLER_LEAST = 3.0
_COLD_SPREAD = 0.3
_PASSING = tuple(
    OUTCOME_ORDER.index(outcome)
    for outcome in (Outcome.SOURCE_ERROR, Outcome.MISSING, Outcome.STEP_ERROR, Outcome.UNAVAILABLE)
)
_CACHED, _TOMBSTONE, _CACHE_ERROR, _CACHE_FULL, _EXPIRED = map(
    OUTCOME_ORDER.index,
    (Outcome.CACHED, Outcome.TOMBSTONE, Outcome.CACHE_ERROR, Outcome.CACHE_FULL, Outcome.EXPIRED),
)
_DECODED = (_CACHED, _CACHE_ERROR, _CACHE_FULL)
_POINTER_BYTES, _WORTH_A_POINTER = 126, 4096  # low, so that more worlds have pointers
_NOT_STORED, _STORE_ERROR, _NOT_CACHED = map(
    OUTCOME_ORDER.index, (Outcome.NOT_STORED, Outcome.STORE_ERROR, Outcome.NOT_CACHED)
)


@dataclass
class Work:
    """Work of the functions, as counted by the world."""

    invocations: int = 0
    cold_starts: int = 0
    functions_peak: int = 0  # in use at a time
    gb_s: float = 0.0
    source_requests: int = 0
    samples_produced: int = 0
    samples_restored: int = 0


class _Taken(NamedTuple):
    """A request, the life of its coordinator, and the time when it arrived."""

    request: Prefetch
    life: int
    came_s: float


class ExecutorModel:
    """Function instances, warm and cold, under the limits of :class:`FunctionsModel`."""

    def __init__(self, world: Simulation, functions: FunctionsModel) -> None:
        self._world = world
        self._functions = functions
        self._waiting: deque[_Taken] = deque()
        self._idle_since: deque[float] = deque([math.inf] * functions.capacity if functions.queues else [])
        self._burst = float(functions.capacity if functions.burst is None else functions.burst)
        self._tokens, self._filled_s = self._burst, 0.0
        self._in_use = 0
        self.usage = Work()

    def submit(self, request: Prefetch) -> None:
        """Accept a request from the current coordinator."""
        taken = _Taken(request, self._world.life, self._world.now_s)
        if any(start_s <= taken.came_s < end_s for start_s, end_s in self._functions.gone_s):
            self._refuse(taken, FailureKind.UNAVAILABLE)
            return
        self._waiting.append(taken)
        self._start()

    def _start(self) -> None:
        while self._waiting:
            cold = self._find_instance()
            if cold is not None:
                self._in_use += 1
                self.usage.functions_peak = max(self.usage.functions_peak, self._in_use)
                self._run(self._waiting.popleft(), cold=cold)
            elif self._functions.queues:
                return
            else:
                self._refuse(self._waiting.popleft(), FailureKind.THROTTLED)

    def _find_instance(self) -> bool | None:
        """Take an instance for a request. Return True if it starts cold, None if none is free."""
        functions, now = self._functions, self._world.now_s
        while self._idle_since and self._idle_since[0] < now - functions.warm_s:
            self._idle_since.popleft()
        if self._idle_since:
            # The most recently used first, so that the others can expire.
            self._idle_since.pop()
            return False
        if self._in_use >= functions.capacity:
            return None
        # A token bucket limits cold starts per second.
        if functions.per_s < math.inf:
            self._tokens = min(self._burst, self._tokens + (now - self._filled_s) * functions.per_s)
            self._filled_s = now
            if self._tokens < 1:
                return None
            self._tokens -= 1
        return True

    def _run(self, taken: _Taken, *, cold: bool) -> None:
        world, functions, request = self._world, self._functions, taken.request
        faults, draw = world.model.faults, world.rng.random
        cold_s = 0.0
        if cold and functions.cold_start_s:
            self.usage.cold_starts += 1
            cold_s = functions.cold_start_s * world.rng.lognormvariate(0.0, _COLD_SPREAD)
        refusals = {FailureKind.THROTTLED: faults.throttle, FailureKind.UNAVAILABLE: faults.unavailable}
        for kind, share in refusals.items():
            if draw() < share:
                self._free(alive=True)
                self._refuse(taken, kind)
                return
        if world.now_s - taken.came_s > request.expires_in_s or draw() < faults.expired:
            world.after(cold_s, partial(self._answer, taken, 0.0, cold_s, expired=True))
            return
        duration_s = self._duration_s(request)
        timeout_s = min(functions.timeout_s, request.expires_in_s)
        poisonous = world.model.datasets[request.samples.dataset].poisonous
        if world.now_s < functions.wrong_until_s:
            self._fail(taken, FailureKind.RAISED, duration_s, cold_s)
        elif (poisonous and poisonous.intersection(request.indices.tolist())) or draw() < faults.crash:
            kind = world.rng.choice((FailureKind.CRASHED, FailureKind.RAISED))
            self._fail(taken, kind, duration_s, cold_s, pushes_s=duration_s / 2)
        elif draw() < faults.hang:
            self._fail(taken, FailureKind.TIMED_OUT, _HANG_S, cold_s, pushes_s=_HANG_S * 2 * draw())
        elif duration_s > timeout_s:
            self._fail(taken, FailureKind.TIMED_OUT, timeout_s, cold_s, pushes_s=timeout_s)
        else:
            world.after(cold_s + duration_s, partial(self._answer, taken, duration_s, cold_s, expired=False))

    def _duration_s(self, request: Prefetch) -> float:
        functions, rng = self._functions, self._world.rng
        duration_s = functions.typical_s(request.indices.size, restore=not request.kind.decodes)
        if functions.spread:
            # The location gives the factor a mean of 1.
            duration_s *= rng.lognormvariate(-(functions.spread**2) / 2, functions.spread)
        if functions.stragglers and rng.random() < functions.stragglers:
            duration_s *= _STRAGGLER_LEAST * rng.paretovariate(_STRAGGLER_SHAPE)
        return duration_s

    def _refuse(self, taken: _Taken, kind: FailureKind) -> None:
        # No function runs, and nothing is billed.
        event = RequestFailed(taken.request.request_id, kind, "simulated")
        self._world.after(_REFUSAL_S, partial(self._world.answer, event, taken.life))

    def _fail(
        self,
        taken: _Taken,
        kind: FailureKind,
        duration_s: float,
        cold_s: float,
        pushes_s: float | None = None,
    ) -> None:
        """Fail a request after ``duration_s``. A part is written after ``pushes_s``, perhaps even later."""
        world, request = self._world, taken.request
        if pushes_s is not None:
            world.after(cold_s + pushes_s, partial(self._push_some, request))
        gets = world.model.datasets[request.samples.dataset].gets(request.indices)
        gb_s = self._bill(duration_s + cold_s, gets)
        event = RequestFailed(request.request_id, kind, "simulated", gb_s=gb_s)

        def fail() -> None:
            self._free(alive=kind is FailureKind.RAISED)
            world.answer(event, taken.life)

        world.after(cold_s + duration_s, fail)

    def _answer(self, taken: _Taken, duration_s: float, cold_s: float, *, expired: bool) -> None:
        world, functions, request = self._world, self._functions, taken.request
        data = world.model.datasets[request.samples.dataset]
        count = request.indices.size
        if expired:
            outcomes = np.full(count, _EXPIRED, dtype=np.uint8)
        else:
            look = self._push if request.kind.fills_cache else self._look
            outcomes = look(request, request.indices)
        begun = 0 if expired else count
        fetched = begun if request.kind.decodes else 0
        each_s = functions.restore_s if request.kind is RequestKind.RESTORE else functions.fetch_s
        gets = data.gets(request.indices) if fetched else 0
        pointed = self._pointed(request, request.indices)
        store_fields = self._keep(request, outcomes, pointed)
        answer = RequestDone(
            request_id=request.request_id,
            outcomes=outcomes,
            record_bytes=np.where(outcomes == _CACHED, self._cached_bytes(request, request.indices), 0),
            source_bytes=fetched * data.source_bytes,
            fetch_us=int(begun * each_s * 1e6),
            decode_us=int(fetched * functions.decode_s * 1e6),
            push_us=int(begun * functions.push_s * 1e6),
            duration_us=int(duration_s * 1e6),
            gb_s=self._bill(duration_s + cold_s, gets),
            source_requests=gets,
            cold_start=cold_s > 0,
            **store_fields,
        )
        self._free(alive=True)
        world.after(_ANSWER_S, partial(world.answer, answer, taken.life))
        if world.model.faults.twice and world.rng.random() < world.model.faults.twice:
            world.after(_ANSWER_S + world.rng.random(), partial(world.answer, answer, taken.life))

    def _look(self, request: Prefetch, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        cache, outcomes = self._world.cache, np.full(indices.size, _CACHE_ERROR, dtype=np.uint8)
        if cache.up:
            cached = cache.look(request.samples, indices, self._world.now_s) > 0
            intact = cached & ~cache.spoilt(request.samples, indices)
            outcomes[:] = np.where(intact, _CACHED, _NOT_CACHED)
        return outcomes

    def _pointed(self, request: Prefetch, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of samples for which the cache gets a pointer into a new pack."""
        lengths = self._world.model.datasets[request.samples.dataset].record_bytes[indices]
        may: NDArray[np.bool_] = lengths >= _WORTH_A_POINTER
        return may & (request.kind is RequestKind.DECODE_TO_POINTERS and self._world.store.takes)

    def _cached_bytes(self, request: Prefetch, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        lengths = self._world.model.datasets[request.samples.dataset].record_bytes[indices]
        return np.where(self._pointed(request, indices), _POINTER_BYTES, lengths)

    def _keep(
        self, request: Prefetch, outcomes: NDArray[np.uint8], pointed: NDArray[np.bool_]
    ) -> dict[str, Any]:
        """Write to the store if requested, and return the fields of the answer that describe it."""
        store, bucket = self._world.store, self._world.model.settings.whole_packs
        if request.kind is RequestKind.RESTORE:
            gets = store.packs_of(request.samples.dataset, request.indices) if bucket else 0
            return {"store_requests": gets, "store_trouble": "" if store.answers else "gone"}
        if not request.kind.writes_pack:
            return {}
        if not store.takes:
            return {"store_trouble": "full"}
        undecodable = list(self._world.model.datasets[request.samples.dataset].undecodable)
        decoded = np.isin(outcomes, _DECODED) & ~np.isin(request.indices, undecodable)
        # A pack holds the records that the cache accepted, and those with a pointer in any case.
        stored = (outcomes == _CACHED) | (pointed & decoded)
        pack = store.write(request.samples.dataset, request.indices[stored])
        pointers, requests = pointed & (outcomes == _CACHED), int(bucket and pack > 0)
        return {"pack": pack, "stored": stored, "store_requests": requests, "pointers": pointers}

    def _bill(self, billed_s: float, source_requests: int) -> float:
        gb_s = billed_s * self._functions.memory_gb
        self.usage.invocations += 1
        self.usage.gb_s += gb_s
        self.usage.source_requests += source_requests
        return gb_s

    def _free(self, *, alive: bool) -> None:
        self._in_use -= 1
        if alive or self._functions.queues:
            self._idle_since.append(math.inf if self._functions.queues else self._world.now_s)
        self._start()

    def _push_some(self, request: Prefetch) -> None:
        """Write part of a request, for a function that dies before it answers."""
        if request.kind is RequestKind.SAVE:  # a partial pack is invisible
            return
        some = request.indices[: self._world.rng.randrange(request.indices.size + 1)]
        written = some[self._push(request, some) == _CACHED]
        self._world.store.write(request.samples.dataset, written[self._pointed(request, written)])

    def _push(self, request: Prefetch, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Write these samples if possible, and return their outcomes as uint8."""
        world, faults, key = self._world, self._world.model.faults, request.samples
        data, chance = world.model.datasets[key.dataset], world.array_rng.random
        outcomes = np.full(indices.size, _CACHED if world.cache.up else _CACHE_ERROR, dtype=np.uint8)
        if not world.cache.up:
            return outcomes
        if request.kind is RequestKind.RESTORE:
            outcomes[~world.store.good(key, indices)] = _NOT_STORED if world.store.answers else _STORE_ERROR
        elif faults.sample_error:
            hit = chance(indices.size) < faults.sample_error
            outcomes[hit] = world.array_rng.choice(_PASSING, int(hit.sum()))
        if data.undecodable and request.kind is not RequestKind.RESTORE:
            bad = np.isin(indices, list(data.undecodable))
            outcomes[bad] = _TOMBSTONE
            world.cache.write_tombstones(key, indices[bad], world.now_s)
        sizes = self._cached_bytes(request, indices)
        outcomes[(outcomes == _CACHED) & world.cache.refused(sizes)] = _CACHE_FULL
        good = indices[outcomes == _CACHED]
        corrupt = good[chance(good.size) < faults.corrupt].tolist() if faults.corrupt else []
        if request.kind is RequestKind.RESTORE:
            self.usage.samples_restored += good.size
        else:
            self.usage.samples_produced += good.size
        pointers = good[self._pointed(request, good)].tolist()
        world.cache.store(key, good, sizes[outcomes == _CACHED], corrupt=corrupt, pointers=pointers)
        world.cache.make_room()
        return outcomes
