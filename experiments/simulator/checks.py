"""What must hold in the simulated world after every event and at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coordinator.core import SampleState, SetKey
from coordinator.core.events import Audited, BatchRead, CacheReset, FailureKind, RequestDone, RequestFailed
from coordinator.core.results import OUTCOME_ORDER
from coordinator.core.samples import footprint
from super_wire.request import Outcome

if TYPE_CHECKING:
    from coordinator.core import Core
    from coordinator.core.actions import Audit, Drop, Prefetch, WriteTombstones
    from coordinator.core.events import Event
    from coordinator.core.samples import SampleSet
    from experiments.simulator.scenario import JobScript
    from experiments.simulator.trainer_model import Trainer
    from experiments.simulator.world import World

__all__ = ["Checks", "InvariantError"]

_GUILTY = [
    OUTCOME_ORDER.index(outcome)
    for outcome in Outcome
    if outcome not in (Outcome.CACHED, Outcome.TOMBSTONE, Outcome.CACHE_ERROR, Outcome.EXPIRED)
]
_INNOCENT_KINDS = (FailureKind.THROTTLED, FailureKind.UNAVAILABLE)


class InvariantError(AssertionError):
    """A promise of the core is broken; the message names the seed that replays it."""


class Checks:
    """Keeps its own account of what one life of the coordinator was told, and compares."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.audited_bytes = 0
        self._surprise_bytes = self._most_surprise_bytes()
        self.forget_all()

    def forget_all(self) -> None:
        """The coordinator was restarted."""
        self.in_flight: dict[int, Prefetch] = {}
        self._unsettled: dict[int, np.ndarray] = {}
        """Of which samples of a request it is open what becomes of them; requests that race share it."""
        self._audits: dict[int, Audit] = {}
        self._told: dict[SetKey, np.ndarray] = {}
        """Samples that the coordinator was told are cached, and has no reason to doubt."""
        self._attempts: dict[SetKey, np.ndarray] = {}

    def demand(self, holds: object, what: str) -> None:
        """Fail with the seed, unless it holds."""
        if not holds:
            raise InvariantError(f"seed {self._world.scenario.seed} at {self._world.now_s:.3f} s: {what}")

    def _rows(self, key: SetKey) -> tuple[np.ndarray, np.ndarray]:
        size = self._world.scenario.datasets[key.dataset].size
        told = self._told.setdefault(key, np.zeros(size, dtype=np.bool_))
        return told, self._attempts.setdefault(key, np.zeros(size, dtype=np.int64))

    def happened(self, event: Event) -> None:
        """Before the core hears of it."""
        if isinstance(event, RequestDone) and event.request_id in self.in_flight:
            request, unsettled, last = self._landed(event.request_id)
            told, attempts = self._rows(request.samples)
            cached = unsettled & (event.outcomes == OUTCOME_ORDER.index(Outcome.CACHED))
            buried = unsettled & (event.outcomes == OUTCOME_ORDER.index(Outcome.TOMBSTONE))
            told[request.indices[cached]] = True
            attempts[request.indices[cached]] = 0
            if last:
                attempts[request.indices[unsettled & np.isin(event.outcomes, _GUILTY)]] += 1
            unsettled &= ~(cached | buried)
        elif isinstance(event, RequestFailed) and event.request_id in self.in_flight:
            request, unsettled, last = self._landed(event.request_id)
            if last:
                self._rows(request.samples)[1][request.indices[unsettled]] += (
                    event.kind not in _INNOCENT_KINDS
                )
        elif isinstance(event, Audited) and event.audit_id in self._audits:
            audit = self._audits.pop(event.audit_id)
            told, attempts = self._rows(audit.samples)
            present = event.record_bytes > 0
            found = event.record_bytes[present & ~told[audit.indices]]
            self.audited_bytes += int(footprint(found).sum())
            told[audit.indices] = present
            attempts[audit.indices] = 0
        elif isinstance(event, BatchRead) and event.corrupt.size:
            script = self._world.script(event.job)
            epoch = event.epoch if self._world.is_random(script.dataset) else -1
            indices = script.plan.batch(event.epoch, event.position, event.rank).indices
            self._rows(SetKey(script.dataset, epoch))[0][indices[event.corrupt]] = False
        elif isinstance(event, CacheReset):
            self._told.clear()

    def _landed(self, request_id: int) -> tuple[Prefetch, np.ndarray, bool]:
        """The request, of which of its samples it is still open what becomes of them, and whether no other
        request races it.
        """
        request, unsettled = self.in_flight.pop(request_id), self._unsettled.pop(request_id)
        last = not any(other is unsettled for other in self._unsettled.values())
        return request, unsettled, last

    def requested(self, action: Prefetch) -> None:
        """A prefetch request was made."""
        world, key = self._world, action.samples
        told, attempts = self._rows(key)
        self.demand(
            any(job.dataset == key.dataset for job in world.core.jobs), "a request that no open job wants"
        )
        self.demand(
            np.unique(action.indices).size == action.indices.size > 0, "a request names a sample twice"
        )
        self.demand(action.indices.size <= world.scenario.settings.request_samples, "a request is too large")
        self.demand(len(self.in_flight) < 2 * world.scenario.capacity, "too many requests in flight")
        if action.hedge_of is not None:
            raced = self.in_flight.get(action.hedge_of)
            self.demand(
                raced is not None and np.array_equal(raced.indices, action.indices),
                "a hedge races no request of the same samples",
            )
            self.in_flight[action.request_id] = action
            self._unsettled[action.request_id] = self._unsettled[action.hedge_of]
            return
        for number, other in self.in_flight.items():
            open_ = other.indices[self._unsettled[number]]
            twice = other.samples == key and np.intersect1d(open_, action.indices).size
            self.demand(not twice, "a sample was requested that is in flight")
        there = world.cache.rows(key)[action.indices] > 0
        self.demand(not (told[action.indices] & there).any(), "a sample was requested that is resident")
        spent = attempts[action.indices] >= world.scenario.settings.attempts
        self.demand(not spent.any(), "a sample was tried more often than allowed")
        self.in_flight[action.request_id] = action
        self._unsettled[action.request_id] = np.ones(action.indices.size, dtype=np.bool_)

    def asked(self, action: Audit) -> None:
        """The cache was to be asked."""
        self._audits[action.audit_id] = action

    def dropped(self, action: Drop) -> None:
        """Records were deleted."""
        told = self._rows(action.samples)[0]
        self.demand(told[action.indices].all(), "a sample was dropped that was not resident")
        told[action.indices] = False

    def buried(self, action: WriteTombstones) -> None:
        """Retries were spent."""
        attempts = self._rows(action.samples)[1]
        spent = attempts[action.indices] == self._world.scenario.settings.attempts
        self.demand(spent.all(), "a tombstone was written before the attempts were spent")
        attempts[action.indices] = 0

    def settled(self) -> None:
        """After every event."""
        world, core = self._world, self._world.core
        self.demand(not (problems := list(core.problems())), "; ".join(problems))
        self.demand(
            core.wake_at_s > world.now_s, f"the core wants to be woken at {core.wake_at_s}, in the past"
        )
        for forgotten in self._attempts.keys() - _sample_sets(core).keys():
            self._attempts[forgotten][:] = 0
        budget = world.scenario.settings.budget_bytes + self._surprise_bytes + self.audited_bytes
        taken = 0
        for key, sizes in world.cache.taken_bytes.items():
            held = self._rows(key)[0].copy()
            for number, request in self.in_flight.items():
                if request.samples == key:
                    held[request.indices[self._unsettled[number]]] = True
            taken += int(sizes[held].sum())
        self.demand(taken <= budget, f"the cache holds {taken} bytes for us, the budget is {budget}")

    def _most_surprise_bytes(self) -> int:
        """How far the budget may be exceeded for a moment, because records are larger than expected."""
        scenario = self._world.scenario
        if all(data.uniform for data in scenario.datasets.values()):
            return 0
        largest = max(int(footprint(data.record_bytes).max()) for data in scenario.datasets.values())
        return largest * (2 * scenario.capacity * scenario.settings.request_samples + 1)

    def delivered_exactly_once(self, script: JobScript, trainers: list[Trainer]) -> None:
        """Each rank has read its batches in order, and a full pass has brought every sample once."""
        for number, (epoch, first, stop) in enumerate(script.passes):
            seen = []
            for trainer in trainers:
                mine = [delivery for delivery in trainer.deliveries if delivery.number == number]
                positions = [delivery.position for delivery in mine]
                self.demand(
                    positions == list(range(first, stop)), f"{script.name} read {positions} of epoch {epoch}"
                )
                seen += [delivery.indices[~delivery.padding] for delivery in mine]
            indices = np.concatenate(seen) if seen else np.empty(0, dtype=np.int64)
            self.demand(np.unique(indices).size == indices.size, f"{script.name} read a sample twice")
            if (first, stop) == (0, script.plan.batches_per_epoch):
                self.demand(indices.size == script.plan.samples_per_epoch, f"{script.name} missed samples")

    def quiet(self) -> None:
        """Long after the last job: nothing is under way, and only sets that hold something are kept."""
        core = self._world.core
        self.demand(not core.jobs, "a job that has vanished was not forgotten")
        self.demand(not self.in_flight, "requests are in flight for ever")
        for state in (SampleState.IN_FLIGHT, SampleState.CHECKING, SampleState.WAITING):
            self.demand(not core.samples_in(state), f"samples are {state.name} for ever")
        idle = [key for key, samples in _sample_sets(core).items() if samples.idle]
        self.demand(not idle, f"sample sets that hold nothing are kept: {idle}")


def _sample_sets(core: Core) -> dict[SetKey, SampleSet]:
    return core._state.sets  # noqa: SLF001  # nothing but a check of the core's memory asks which sets it keeps
