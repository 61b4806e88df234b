"""The functions of the simulated world: they queue, take time, push records, answer, and fail in all ways."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from coordinator.core.events import FailureKind, RequestDone, RequestFailed
from coordinator.core.results import OUTCOME_ORDER
from super_wire.request import Outcome

if TYPE_CHECKING:
    from coordinator.core.actions import Prefetch
    from experiments.simulator.world import World

__all__ = ["ExecutorModel"]

_HANG_S = 3.0
_PASSING = (Outcome.SOURCE_ERROR, Outcome.MISSING, Outcome.STEP_ERROR)


class ExecutorModel:
    """So many functions at once; what comes beyond waits in line."""

    def __init__(self, world: World, capacity: int) -> None:
        self._world = world
        self._capacity = capacity
        self._running = 0
        self._waiting: deque[tuple[Prefetch, int]] = deque()

    def submit(self, request: Prefetch) -> None:
        """Take a request of the coordinator that lives now."""
        self._waiting.append((request, self._world.life))
        self._start()

    def _start(self) -> None:
        while self._waiting and self._running < self._capacity:
            request, life = self._waiting.popleft()
            self._running += 1
            self._run(request, life)

    def _run(self, request: Prefetch, life: int) -> None:
        world, faults = self._world, self._world.scenario.faults
        poisonous = world.scenario.datasets[request.samples.dataset].poisonous
        latency_s = world.scenario.latency_s * world.rng.lognormvariate(0.0, 0.3)
        chance = world.rng.random
        if chance() < faults.throttle:
            self._fail(request, life, FailureKind.THROTTLED, 0.002)
        elif chance() < faults.unavailable:
            self._fail(request, life, FailureKind.UNAVAILABLE, 0.002)
        elif poisonous.intersection(request.indices.tolist()) or chance() < faults.crash:
            kind = world.rng.choice((FailureKind.CRASHED, FailureKind.RAISED))
            world.after(latency_s / 2, lambda: self._push_some(request))
            self._fail(request, life, kind, latency_s)
        elif chance() < faults.hang:
            world.after(_HANG_S * 2 * chance(), lambda: self._push_some(request))
            self._fail(request, life, FailureKind.TIMED_OUT, _HANG_S)
        else:
            world.after(latency_s, lambda: self._produce(request, life))

    def _fail(self, request: Prefetch, life: int, kind: FailureKind, delay_s: float) -> None:
        def fail() -> None:
            self._free()
            self._world.answer(RequestFailed(request.request_id, kind, "simulated"), life)

        self._world.after(delay_s, fail)

    def _free(self) -> None:
        self._running -= 1
        self._start()

    def _push_some(self, request: Prefetch) -> None:
        """A function that does not live to tell of it has written a part."""
        count = self._world.rng.randrange(request.indices.size + 1)
        for index in request.indices[:count].tolist():
            self._push(request, index)

    def _push(self, request: Prefetch, index: int) -> Outcome:
        world, faults = self._world, self._world.scenario.faults
        data = world.scenario.datasets[request.samples.dataset]
        if not world.cache.up:
            return Outcome.CACHE_ERROR
        if index in data.undecodable:
            world.cache.bury(request.samples, index, world.now_s)
            return Outcome.TOMBSTONE
        if world.rng.random() < faults.sample_error:
            return world.rng.choice(_PASSING)
        corrupt = world.rng.random() < faults.corrupt
        world.push(request.samples, index, int(data.record_bytes[index]), corrupt=corrupt)
        return Outcome.CACHED

    def _produce(self, request: Prefetch, life: int) -> None:
        world, faults = self._world, self._world.scenario.faults
        data = world.scenario.datasets[request.samples.dataset]
        if world.rng.random() < faults.expired:
            outcomes = [Outcome.EXPIRED] * request.indices.size
        else:
            outcomes = [self._push(request, index) for index in request.indices.tolist()]
        cached = np.array([outcome == Outcome.CACHED for outcome in outcomes])
        answer = RequestDone(
            request_id=request.request_id,
            outcomes=np.array([OUTCOME_ORDER.index(outcome) for outcome in outcomes], dtype=np.uint8),
            record_bytes=np.where(cached, data.record_bytes[request.indices], 0),
            source_bytes=0,
            fetch_us=0,
            decode_us=0,
            push_us=0,
        )
        self._free()
        # In real life records are there before the answer comes.
        world.after(0.001, lambda: world.answer(answer, life))
        if world.rng.random() < faults.twice:
            world.after(0.001 + world.rng.random(), lambda: world.answer(answer, life))
