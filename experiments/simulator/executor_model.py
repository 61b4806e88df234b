"""Simulated functions, with cold starts, queues, run times and usage."""

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
_ANSWER_S = 0.001  # as in reality, records arrive before the result
_STRAGGLER_SHAPE = 1.5
_MIN_STRAGGLER = 3.0
_COLD_SPREAD = 0.3
_CACHED, _EXPIRED = map(OUTCOME_ORDER.index, (Outcome.CACHED, Outcome.EXPIRED))
_POINTER_BYTES, _MIN_POINTED_BYTES = 126, 4096  # lower than in reality, for more pointers in tests


@dataclass
class Work:
    """Usage statistics of the functions."""

    invocations: int = 0
    cold_starts: int = 0
    functions_peak: int = 0  # most in use at a time
    gb_s: float = 0.0
    source_requests: int = 0
    samples_produced: int = 0
    samples_restored: int = 0


class Pending(NamedTuple):
    """A request and its arrival time."""

    request: Prefetch
    arrived_s: float


class ExecutorModel:
    """An executor with warm and cold instances, within the limits of a `FunctionsModel`."""

    def __init__(self, world: Simulation, functions: FunctionsModel) -> None:
        self.world = world
        self.functions = functions
        self._waiting: deque[Pending] = deque()
        self._idle_since: deque[float] = deque([math.inf] * functions.capacity if functions.queues else [])
        self._burst = float(functions.capacity if functions.burst is None else functions.burst)
        self._tokens, self._filled_s = self._burst, 0.0
        self._in_use = 0
        self.usage = Work()

    def submit(self, request: Prefetch) -> None:
        """Accept a request."""
        self._waiting.append(Pending(request, self.world.now_s))
        self._start()

    def _start(self) -> None:
        while self._waiting:
            cold = self._find_instance()
            if cold is not None:
                self._in_use += 1
                self.usage.functions_peak = max(self.usage.functions_peak, self._in_use)
                self.run(self._waiting.popleft(), cold=cold)
            elif self.functions.queues:
                return
            else:
                self.refuse(self._waiting.popleft().request, FailureKind.THROTTLED)

    def _find_instance(self) -> bool | None:
        """Acquire an instance. Return whether it starts cold, or None if none is free."""
        functions, now = self.functions, self.world.now_s
        while self._idle_since and self._idle_since[0] < now - functions.warm_s:
            self._idle_since.popleft()
        if self._idle_since:
            # Use the most recent one, and let the others expire.
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

    def run(self, pending: Pending, *, cold: bool) -> None:
        """Run a request in an acquired instance."""
        world, request = self.world, pending.request
        cold_s = self.cold_start_s() if cold else 0.0
        if world.now_s - pending.arrived_s > request.expires_in_s:
            world.after(cold_s, partial(self.answer, request, 0.0, cold_s, expired=True))
            return
        duration_s = self.duration_s(request)
        if duration_s > request.expires_in_s:
            self.fail(request, FailureKind.TIMED_OUT, request.expires_in_s, cold_s)
        else:
            world.after(cold_s + duration_s, partial(self.answer, request, duration_s, cold_s))

    def cold_start_s(self) -> float:
        """Count a cold start, and return its duration in seconds."""
        if not self.functions.cold_start_s:
            return 0.0
        self.usage.cold_starts += 1
        return self.functions.cold_start_s * self.world.rng.lognormvariate(0.0, _COLD_SPREAD)

    def duration_s(self, request: Prefetch) -> float:
        """Return a random duration for a request, in seconds."""
        functions, rng = self.functions, self.world.rng
        duration_s = functions.typical_s(request.indices.size, restore=not request.kind.decodes)
        if functions.spread:
            # With this location, the mean factor is 1.
            duration_s *= rng.lognormvariate(-(functions.spread**2) / 2, functions.spread)
        if functions.stragglers and rng.random() < functions.stragglers:
            duration_s *= _MIN_STRAGGLER * rng.paretovariate(_STRAGGLER_SHAPE)
        return duration_s

    def refuse(self, request: Prefetch, kind: FailureKind) -> None:
        """Refuse a request without running or billing anything."""
        event = RequestFailed(request.request_id, kind, "simulated")
        self.world.after(_REFUSAL_S, partial(self.world.answer, event))

    def fail(self, request: Prefetch, kind: FailureKind, duration_s: float, cold_s: float) -> None:
        """Fail a request after ``duration_s``. Its instance survives only if the function raised."""
        gets = self.world.model.datasets[request.samples.dataset].gets(request.indices)
        gb_s = self._bill(duration_s + cold_s, gets)
        event = RequestFailed(request.request_id, kind, "simulated", gb_s=gb_s)

        def fail() -> None:
            self.free(alive=kind is FailureKind.RAISED)
            self.world.answer(event)

        self.world.after(cold_s + duration_s, fail)

    def answer(self, request: Prefetch, duration_s: float, cold_s: float, *, expired: bool = False) -> None:
        """Produce a request's records, unless it expired before it ran, and send its result."""
        functions, data = self.functions, self.world.model.datasets[request.samples.dataset]
        count = request.indices.size
        outcomes = np.full(count, _EXPIRED, dtype=np.uint8) if expired else self.produce(request)
        begun = 0 if expired else count
        fetched = begun if request.kind.decodes else 0
        each_s = functions.restore_s if request.kind is RequestKind.RESTORE else functions.fetch_s
        gets = data.gets(request.indices) if fetched else 0
        store_fields = self.keep(request, outcomes)
        answer = RequestDone(
            request_id=request.request_id,
            outcomes=outcomes,
            record_bytes=np.where(outcomes == _CACHED, self.cached_bytes(request, request.indices), 0),
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
        self.free(alive=True)
        self.reply(answer)

    def reply(self, answer: RequestDone) -> None:
        """Send a result to the coordinator."""
        self.world.after(_ANSWER_S, partial(self.world.answer, answer))

    def produce(self, request: Prefetch) -> NDArray[np.uint8]:
        """Write all records of a request, and return their outcomes."""
        self.write(request, request.indices)
        return np.full(request.indices.size, _CACHED, dtype=np.uint8)

    def write(self, request: Prefetch, indices: NDArray[np.int64]) -> None:
        """Write records of these samples, or pointers to them, to the cache."""
        if request.kind is RequestKind.RESTORE:
            self.usage.samples_restored += indices.size
        else:
            self.usage.samples_produced += indices.size
        pointers, cache = indices[self.pointed(request, indices)], self.world.cache
        cache.store(request.samples, indices, self.cached_bytes(request, indices), pointers)
        cache.make_room()

    def pointed(self, request: Prefetch, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of samples for which the cache has a pointer instead of a record."""
        lengths = self.world.model.datasets[request.samples.dataset].record_bytes[indices]
        may: NDArray[np.bool_] = lengths >= _MIN_POINTED_BYTES
        return may & (request.kind is RequestKind.DECODE_TO_POINTERS)

    def cached_bytes(self, request: Prefetch, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the length of each sample's record or pointer in the cache."""
        lengths = self.world.model.datasets[request.samples.dataset].record_bytes[indices]
        return np.where(self.pointed(request, indices), _POINTER_BYTES, lengths)

    def keep(self, request: Prefetch, outcomes: NDArray[np.uint8]) -> dict[str, Any]:
        """Write a pack if requested, and return the fields of the result that concern the store."""
        store, bucket = self.world.store, self.world.model.settings.whole_packs
        if request.kind is RequestKind.RESTORE:
            gets = store.packs_of(request.samples.dataset, request.indices) if bucket else 0
            return {"store_requests": gets}
        if not request.kind.writes_pack:
            return {}
        stored = self.stored(request, outcomes)
        pack = store.write(request.samples.dataset, request.indices[stored])
        pointers = self.pointed(request, request.indices) & (outcomes == _CACHED)
        return {
            "pack": pack,
            "stored": stored,
            "store_requests": int(bucket and pack > 0),
            "pointers": pointers,
        }

    def stored(self, request: Prefetch, outcomes: NDArray[np.uint8]) -> NDArray[np.bool_]:  # noqa: ARG002  # used by tests
        """Return a mask of samples whose records are in the pack."""
        cached: NDArray[np.bool_] = outcomes == _CACHED
        return cached

    def free(self, *, alive: bool) -> None:
        """Release an instance, or remove a dead one, and start pending requests."""
        self._in_use -= 1
        if alive or self.functions.queues:
            self._idle_since.append(math.inf if self.functions.queues else self.world.now_s)
        self._start()

    def _bill(self, billed_s: float, source_requests: int) -> float:
        gb_s = billed_s * self.functions.memory_gb
        self.usage.invocations += 1
        self.usage.gb_s += gb_s
        self.usage.source_requests += source_requests
        return gb_s
