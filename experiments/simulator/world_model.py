"""What one simulated run is made of: data, jobs, functions, faults; and how a spec becomes that.

Plain values; what they do is in `world` and what it has.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.core import NO_TEAM, CoreSettings, ExecutorFacts, Plan, Prices, Team
from superdl.super_wire.record import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from superdl.experiments.simulator.spec import DatasetSpec, FunctionsSpec, JobSpec, SimulationSpec

__all__ = ["DatasetModel", "Faults", "FunctionsModel", "JobScript", "WorldModel", "build_world_model"]

_GB = 2**30
_CHANNELS = 3
_READ_TIMEOUT_S = 3600.0
_MAX_GAP_BYTES = 256 * 1024
_HEARTBEAT_S = 2.0
"""As the sampler's pages are asked for again."""


@dataclass(frozen=True)
class DatasetModel:
    """A catalog under a recipe: what its records are like and which of its samples are bad.

    ``record_bytes`` is int64 ``[size]``, the length of each record; ``source_bytes`` the mean of an object.
    """

    name: bytes
    random: bool
    record_bytes: NDArray[np.int64]
    undecodable: frozenset[int] = frozenset()
    """A function writes a permanent tombstone for these."""
    poisonous: frozenset[int] = frozenset()
    """A function that touches these crashes."""
    source_bytes: int = 0
    runs: NDArray[np.int64] | None = None
    """Where in the catalog runs of neighbours begin; ``None`` where each sample is an object."""

    @property
    def size(self) -> int:
        """Samples in the catalog."""
        return self.record_bytes.size

    @property
    def uniform(self) -> bool:
        """Whether all records are of one length."""
        return bool((self.record_bytes == self.record_bytes[0]).all())

    def gets(self, indices: NDArray[np.int64]) -> int:
        """GETs that bring these: one for those of a run, but for gaps that are too large to read in vain."""
        if self.runs is None or not indices.size:
            return indices.size
        ascending = np.sort(indices)
        gap_bytes = (np.diff(ascending) - 1) * self.source_bytes
        run_of = np.searchsorted(self.runs, ascending, side="right")
        return 1 + int(np.count_nonzero((gap_bytes > _MAX_GAP_BYTES) | (np.diff(run_of) > 0)))


@dataclass(frozen=True)
class FunctionsModel:
    """How functions run, ``capacity`` at once; times in seconds.

    With ``queues`` they are a pool of processes, and what comes beyond waits in line. Else they start when
    needed, as AWS Lambda's: a new one takes ``cold_start_s``, ``burst`` start at once and ``per_s`` more each
    second, one that was idle for ``warm_s`` is gone, and what comes beyond is refused. A request varies
    log-normally by ``spread``, and a share of ``stragglers`` takes several times as long (Pareto).
    """

    capacity: int
    queues: bool = True
    burst: int | None = None
    per_s: float = math.inf
    cold_start_s: float = 0.0
    warm_s: float = 300.0
    overhead_s: float = 0.0
    fetch_s: float = 0.0
    fetch_parallel: int = 1
    decode_s: float = 0.0
    push_s: float = 0.0
    restore_s: float = 0.0
    """Time to bring one record from the store."""
    spread: float = 0.3
    stragglers: float = 0.0
    timeout_s: float = math.inf
    memory_gb: float = 1.0
    gone_s: tuple[tuple[float, float], ...] = ()
    """From when to when it cannot be reached, and what is asked of it meanwhile is refused."""
    wrong_until_s: float = 0.0
    """Until then its functions raise whatever they are asked."""

    def typical_s(self, samples: int, *, restore: bool = False) -> float:
        """How long a request of so many samples takes, cold starts and chance left out."""
        if restore:
            return self.overhead_s + samples * (self.restore_s + self.push_s)
        each_s = max(self.fetch_s / self.fetch_parallel, self.decode_s + self.push_s)
        return self.overhead_s + self.fetch_s + samples * each_s


@dataclass(frozen=True)
class JobScript:
    """A training run: its plan, its pace, and what it does out of the ordinary.

    ``step_s`` is the time that a batch keeps the trainer, ``read_s`` the time that one of its ``workers``
    takes to read it from the cache.
    """

    name: str
    dataset: bytes
    plan: Plan
    starts_s: float
    step_s: float
    workers: int
    page: int
    passes: Sequence[tuple[int, int, int]]
    """One for each iteration: epoch, first position, and the position at which it is abandoned."""
    ending: str = "close"
    """``close``, or ``vanish`` without a word."""
    pause_s: float = 0.0
    """A pause in the middle of each pass."""
    read_s: float = 0.0
    handover_s: float = 0.0
    """What it takes the trainer to take over a batch that is ready; counted as waiting."""
    straight: bool = False
    """Its readers see the store, where there is one."""
    team: str = NO_TEAM
    orders: Mapping[int, Plan] = field(default_factory=dict)
    """What a sampler of the user's drew for each epoch; empty: the plan holds for all."""

    def plan_of(self, epoch: int) -> Plan:
        """Return the plan of an epoch."""
        return self.orders.get(epoch, self.plan)


@dataclass(frozen=True)
class Faults:
    """How often things go wrong: probabilities by request, sample or report; and what befalls the store."""

    crash: float = 0.0
    hang: float = 0.0
    throttle: float = 0.0
    unavailable: float = 0.0
    twice: float = 0.0
    sample_error: float = 0.0
    expired: float = 0.0
    lost_report: float = 0.0
    corrupt: float = 0.0
    rots: float = 0.0
    """Share of the store's records that cannot be read any more."""
    store_gone_s: tuple[tuple[float, float], ...] = ()
    """From when to when the store does not answer."""
    store_full_s: tuple[tuple[float, float], ...] = ()
    """From when to when it takes nothing more."""


@dataclass(frozen=True)
class WorldModel:
    """One run. ``until_s`` ends it before the jobs end; readers wait no longer than ``read_timeout_s``."""

    seed: int
    settings: CoreSettings
    functions: FunctionsModel
    datasets: dict[bytes, DatasetModel]
    jobs: tuple[JobScript, ...]
    faults: Faults = Faults()
    others: tuple[FunctionsModel, ...] = ()
    """Functions of further executors, for what those before cannot take."""
    unfit: dict[bytes, frozenset[int]] = field(default_factory=dict)
    """Executors, by number, that can produce nothing of a dataset."""
    left_over: float = 0.0
    """Share of the samples that an earlier coordinator left in the cache."""
    stored: float = 0.0
    """Share of the samples that lie in the store from the start, where the settings have one."""
    cache_refuses: bool = False
    """Whether a full cache refuses writes; else it evicts at random."""
    read_timeout_s: float = 600.0
    until_s: float = math.inf
    heartbeat_s: float = 5.0
    events_max: int = 200_000

    @property
    def fleet(self) -> tuple[FunctionsModel, ...]:
        """The functions of all executors, in order of preference."""
        return self.functions, *self.others


def build_world_model(spec: SimulationSpec) -> WorldModel:
    """Everything that the world needs to run ``spec``."""
    datasets = [
        DatasetModel(
            name=_name(one.name, copy, one.copies).encode(),
            random=one.random,
            record_bytes=np.broadcast_to(np.int64(_record_bytes(one)), one.samples),
            source_bytes=one.source_bytes,
        )
        for one in spec.datasets
        for copy in range(one.copies)
    ]
    return WorldModel(
        seed=spec.seed,
        settings=_settings(spec),
        functions=dataclasses.replace(_functions(spec.functions), restore_s=spec.store.restore_s),
        others=_store_only(spec),
        datasets={data.name: data for data in datasets},
        jobs=tuple(script for job in spec.jobs for script in _scripts(spec, job)),
        faults=Faults(crash=spec.functions.failures, throttle=spec.functions.throttles),
        left_over=spec.cache.left_over,
        stored=spec.store.left_over,
        read_timeout_s=_READ_TIMEOUT_S,
        until_s=math.inf if spec.minutes is None else spec.minutes * 60,
        heartbeat_s=_HEARTBEAT_S,
        events_max=2**62,
    )


def _name(name: str, number: int, count: int) -> str:
    """The name of one of several alike."""
    return name if count == 1 else f"{name}-{number}"


def _record_bytes(dataset: DatasetSpec) -> int:
    return dataset.record_bytes or dataset.image**2 * _CHANNELS + HEADER_BYTES


def _settings(spec: SimulationSpec) -> CoreSettings:
    per_hour = spec.coordinator.max_usd_per_hour
    prices = Prices(
        invocation=spec.prices.invocation,
        gb_s=spec.prices.gb_s,
        source_request=spec.prices.source_request,
        store_put=spec.prices.store_put,
        hour=spec.prices.cache_gb_hour * spec.cache.budget_gb,
    )
    return CoreSettings(
        budget_bytes=max(1, int(spec.cache.budget_gb * _GB)),
        lookahead_batches=spec.coordinator.lookahead_batches,
        request_samples=spec.coordinator.request_samples,
        executors=(
            ExecutorFacts(spec.functions.kind, prices, sees_store=not _store_only(spec)),
            *(ExecutorFacts(decodes=False) for _ in _store_only(spec)),
        ),
        store=spec.store.kind != "none",
        whole_packs=spec.store.kind == "s3",
        max_usd_per_hour=math.inf if per_hour is None else per_hour,
        teams=tuple(Team(team.name, team.share, team.priority) for team in spec.teams),
    )


def _store_only(spec: SimulationSpec) -> tuple[FunctionsModel, ...]:
    """What restores and saves in a directory that functions on Lambda do not see: a local process."""
    if (spec.store.kind, spec.functions.kind) != ("directory", "lambda"):
        return ()
    return (FunctionsModel(1, restore_s=spec.store.restore_s, memory_gb=0.0),)


def _functions(spec: FunctionsSpec) -> FunctionsModel:
    names = {one.name for one in dataclasses.fields(FunctionsModel)}
    values = {name: value for name, value in dataclasses.asdict(spec).items() if name in names}
    if spec.kind == "pool":
        values |= {"burst": None, "per_s": math.inf}
    else:
        values |= {"queues": False, "burst": min(spec.burst, spec.concurrency)}
    return FunctionsModel(capacity=spec.concurrency, **values)


def _scripts(spec: SimulationSpec, job: JobSpec) -> Iterator[JobScript]:
    dataset = next(one for one in spec.datasets if one.name == job.dataset)
    for number in range(job.count):
        plan = Plan(
            size=dataset.samples,
            batch_size=job.batch_size,
            replicas=job.replicas,
            seed=job.seed if job.same_seed else job.seed + number,
            shuffle=job.shuffle,
            drop_last=job.drop_last,
        )
        yield JobScript(
            name=_name(job.name, number, job.count),
            dataset=_name(dataset.name, number % dataset.copies, dataset.copies).encode(),
            plan=plan,
            starts_s=job.start_s + number * job.start_every_s,
            step_s=job.step_s,
            workers=job.workers,
            page=job.page,
            passes=[(epoch, 0, plan.batches_per_epoch) for epoch in range(job.epochs)],
            read_s=job.batch_size * _record_bytes(dataset) / (job.read_gb_per_s * _GB),
            handover_s=job.handover_s,
            straight=spec.store.kind == "directory",
            team=job.team,
        )
