"""The parts of one simulation, built from a spec: data, jobs, functions, faults.

Plain values; `world` and its modules implement the behaviour.
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
"""The interval at which the sampler's pages are requested again."""


@dataclass(frozen=True)
class DatasetModel:
    """A catalog under a recipe: the sizes of its records, and its bad samples.

    ``record_bytes`` is int64 ``[size]``, the length of each record; ``source_bytes`` the mean of an object.
    """

    name: bytes
    random: bool
    record_bytes: NDArray[np.int64]
    undecodable: frozenset[int] = frozenset()
    """Samples for which a function writes a permanent tombstone."""
    poisonous: frozenset[int] = frozenset()
    """Samples that crash a function."""
    source_bytes: int = 0
    runs: NDArray[np.int64] | None = None
    """The catalog index at which each run of neighbours begins; ``None`` if each sample is an object."""

    @property
    def size(self) -> int:
        """The number of samples in the catalog."""
        return self.record_bytes.size

    @property
    def uniform(self) -> bool:
        """True if all records have the same length."""
        return bool((self.record_bytes == self.record_bytes[0]).all())

    def gets(self, indices: NDArray[np.int64]) -> int:
        """Count the GETs for samples: one per run, and one per gap too large to read through."""
        if self.runs is None or not indices.size:
            return indices.size
        ascending = np.sort(indices)
        gap_bytes = (np.diff(ascending) - 1) * self.source_bytes
        run_of = np.searchsorted(self.runs, ascending, side="right")
        return 1 + int(np.count_nonzero((gap_bytes > _MAX_GAP_BYTES) | (np.diff(run_of) > 0)))


@dataclass(frozen=True)
class FunctionsModel:
    """The functions' execution, ``capacity`` at once; times in seconds.

    With ``queues`` they are a pool of processes, and excess requests wait. Otherwise they start on demand,
    like AWS Lambda: a new one takes ``cold_start_s``, ``burst`` start at once and ``per_s`` more each second,
    an instance idle for ``warm_s`` is removed, and excess requests are refused. A request's time varies
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
    """Seconds to fetch one record from the store."""
    spread: float = 0.3
    stragglers: float = 0.0
    timeout_s: float = math.inf
    memory_gb: float = 1.0
    gone_s: tuple[tuple[float, float], ...] = ()
    """Periods during which the executor is unreachable and refuses requests."""
    wrong_until_s: float = 0.0
    """Until this time every request raises."""

    def typical_s(self, samples: int, *, restore: bool = False) -> float:
        """Return the seconds for a request of so many samples, without cold start and chance."""
        if restore:
            return self.overhead_s + samples * (self.restore_s + self.push_s)
        each_s = max(self.fetch_s / self.fetch_parallel, self.decode_s + self.push_s)
        return self.overhead_s + self.fetch_s + samples * each_s


@dataclass(frozen=True)
class JobScript:
    """A training run: its plan, its pace, and any unusual behaviour.

    ``step_s`` is the trainer's time for a batch, ``read_s`` the time that one of its ``workers`` takes to
    read it from the cache.
    """

    name: str
    dataset: bytes
    plan: Plan
    starts_s: float
    step_s: float
    workers: int
    page: int
    passes: Sequence[tuple[int, int, int]]
    """For each iteration: the epoch, the first position, and the position at which it is abandoned."""
    ending: str = "close"
    """``close``, or ``vanish`` without closing the job."""
    pause_s: float = 0.0
    """Seconds of a pause in the middle of each pass."""
    read_s: float = 0.0
    handover_s: float = 0.0
    """Seconds that the trainer takes to receive a finished batch; counted as waiting."""
    straight: bool = False
    """True if the readers can read the store, if there is one."""
    team: str = NO_TEAM
    orders: Mapping[int, Plan] = field(default_factory=dict)
    """Plans of a user's sampler by epoch; empty: ``plan`` holds for all."""

    def plan_of(self, epoch: int) -> Plan:
        """Return the plan of an epoch."""
        return self.orders.get(epoch, self.plan)


@dataclass(frozen=True)
class Faults:
    """Probabilities of faults per request, sample or report; and faults of the store."""

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
    """The share of the store's records that become unreadable."""
    store_gone_s: tuple[tuple[float, float], ...] = ()
    """Periods during which the store does not answer."""
    store_full_s: tuple[tuple[float, float], ...] = ()
    """Periods during which the store accepts no writes."""


@dataclass(frozen=True)
class WorldModel:
    """One simulation. ``until_s`` may end it early; readers wait at most ``read_timeout_s``."""

    seed: int
    settings: CoreSettings
    functions: FunctionsModel
    datasets: dict[bytes, DatasetModel]
    jobs: tuple[JobScript, ...]
    faults: Faults = Faults()
    others: tuple[FunctionsModel, ...] = ()
    """Functions of further executors, which take requests beyond the capacity of those before."""
    unfit: dict[bytes, frozenset[int]] = field(default_factory=dict)
    """By dataset, the numbers of executors that cannot process it."""
    left_over: float = 0.0
    """The share of samples that an earlier coordinator left in the cache."""
    stored: float = 0.0
    """The share of samples that are in the store from the start, if the settings have one."""
    cache_refuses: bool = False
    """Whether a full cache refuses writes; otherwise it evicts at random."""
    read_timeout_s: float = 600.0
    until_s: float = math.inf
    heartbeat_s: float = 5.0
    events_max: int = 200_000

    @property
    def fleet(self) -> tuple[FunctionsModel, ...]:
        """The functions of all executors, in order of preference."""
        return self.functions, *self.others


def build_world_model(spec: SimulationSpec) -> WorldModel:
    """Build the world of ``spec``."""
    datasets = [
        DatasetModel(
            name=_name(dataset.name, copy, dataset.copies).encode(),
            random=dataset.random,
            # One value for all samples, without memory for each.
            record_bytes=np.broadcast_to(np.int64(_record_bytes(dataset)), dataset.samples),
            source_bytes=dataset.source_bytes,
        )
        for dataset in spec.datasets
        for copy in range(dataset.copies)
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
        # In effect unlimited: the bound is for tests.
        events_max=2**62,
    )


def _name(name: str, number: int, count: int) -> str:
    """Number the name if there are several copies."""
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
    """Return the local process that serves a directory that Lambda does not see."""
    if (spec.store.kind, spec.functions.kind) != ("directory", "lambda"):
        return ()
    return (FunctionsModel(1, restore_s=spec.store.restore_s, memory_gb=0.0),)


def _functions(spec: FunctionsSpec) -> FunctionsModel:
    names = {model_field.name for model_field in dataclasses.fields(FunctionsModel)}
    values = {name: value for name, value in dataclasses.asdict(spec).items() if name in names}
    if spec.kind == "pool":
        values |= {"burst": None, "per_s": math.inf}
    else:
        values |= {"queues": False, "burst": min(spec.burst, spec.concurrency)}
    return FunctionsModel(capacity=spec.concurrency, **values)


def _scripts(spec: SimulationSpec, job: JobSpec) -> Iterator[JobScript]:
    dataset = next(candidate for candidate in spec.datasets if candidate.name == job.dataset)
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
