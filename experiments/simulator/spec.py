"""The spec of a simulation, read from YAML into self-validating frozen dataclasses, and its world."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, StrictBool, StrictInt, StrictStr
from pydantic.dataclasses import dataclass

from superdl.coordinator.core import CoreSettings, ExecutorFacts, Plan, Prices, Team
from superdl.experiments.schema import (
    KNOWN_KEYS,
    NULL_IS_EMPTY,
    AtLeastOne,
    AtLeastZero,
    NonNegativeNumber,
    PositiveNumber,
    SpecFolder,
    Text,
    apply_overrides,
    build,
    one_of,
)
from superdl.experiments.simulator.world_model import (
    DatasetModel,
    Faults,
    FunctionsModel,
    JobScript,
    WorldModel,
)
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.record import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SPECS = SpecFolder(Path(__file__).parent / "specs")
_SHORT = {"cache_gb": "cache.budget_gb", "concurrency": "functions.concurrency"}
_GB = 2**30
_CHANNELS = 3
_READ_TIMEOUT_S = 3600.0
_HEARTBEAT_S = 2.0  # the interval at which the sampler's pages are requested again

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class DatasetSpec:
    """A dataset, as ``copies`` catalogs of ``samples`` images each."""

    name: Text = "data"
    copies: AtLeastOne = 1
    samples: AtLeastOne = 10_000
    # The side of a record in pixels of three bytes, unless record_bytes is set.
    image: AtLeastOne = 224
    record_bytes: AtLeastZero = 0
    source_bytes: AtLeastZero = 110_000  # the mean size of an object
    random: StrictBool = False


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class JobSpec:
    """``count`` training runs of ``replicas`` ranks. Run n reads copy n (modulo copies) of the dataset."""

    name: Text = "train"
    team: StrictStr = ""  # one of the spec's teams, or empty
    dataset: Text = "data"
    count: AtLeastOne = 1
    replicas: AtLeastOne = 1
    batch_size: AtLeastOne = 256  # of a rank
    step_s: PositiveNumber = 1.0  # the trainer's time for a batch
    epochs: AtLeastOne = 1
    shuffle: StrictBool = True
    drop_last: StrictBool = False
    # Run n shuffles with seed + n, unless same_seed is set.
    seed: AtLeastZero = 0
    same_seed: StrictBool = False
    start_s: NonNegativeNumber = 0.0
    start_every_s: NonNegativeNumber = 0.0  # after the previous run
    # These read ahead, each at read_gb_per_s.
    workers: AtLeastOne = 4
    page: AtLeastOne = 64
    read_gb_per_s: PositiveNumber = 1.2
    # The trainer's time to take a batch over from a worker.
    handover_s: NonNegativeNumber = 0.0


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class FunctionsSpec:
    """How functions are executed. See `experiments.simulator.world_model.FunctionsModel`."""

    # A pool exists from the start and queues; lambda starts cold, ramps up and refuses.
    kind: Annotated[str, one_of(("pool", "lambda"))] = "lambda"
    concurrency: AtLeastOne = 1000
    burst: AtLeastOne = 1000
    per_s: PositiveNumber = 100.0
    cold_start_s: NonNegativeNumber = 0.0
    warm_s: PositiveNumber = 300.0
    overhead_s: NonNegativeNumber = 0.0
    fetch_s: NonNegativeNumber = 0.0
    fetch_parallel: AtLeastOne = 16
    decode_s: NonNegativeNumber = 0.0
    push_s: NonNegativeNumber = 0.0
    spread: NonNegativeNumber = 0.2
    stragglers: Share = 0.0
    # The shares of requests whose function crashes, and that are refused at random.
    failures: Share = 0.0
    throttles: Share = 0.0
    timeout_s: PositiveNumber = 60.0
    memory_gb: PositiveNumber = 1.769

    def __post_init__(self) -> None:
        if not self.fetch_s + self.decode_s + self.overhead_s:
            raise ConfigError("functions must take time: set functions.decode_s, functions.fetch_s or both")


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class CacheSpec:
    """Memory for records, in units of 2**30 bytes. ``left_over`` is the share cached at the start."""

    budget_gb: PositiveNumber = 16.0
    left_over: Share = 0.0


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class StoreSpec:
    """The store for records: ``none``, a ``directory`` that trainers also read, or ``s3``."""

    kind: Annotated[str, one_of(("none", "directory", "s3"))] = "none"
    left_over: Share = 0.0  # the share of samples stored at the start
    restore_s: NonNegativeNumber = 0.0  # a function's time per record


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class CoordinatorSpec:
    """Settings of the core, named as in the coordinator."""

    lookahead_batches: AtLeastOne = 64
    request_samples: AtLeastOne = 512
    max_usd_per_hour: PositiveNumber | None = None


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class TeamSpec:
    """A team's share and priority, as in the coordinator's ``token_file``."""

    name: Text
    share: PositiveNumber = 1.0
    priority: StrictInt = 0


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class PricesSpec:
    """Prices in US dollars: per invocation, GB-second, GET, PUT, rank-hour, and hour of a GB of cache."""

    invocation: NonNegativeNumber = 0.0
    gb_s: NonNegativeNumber = 0.0
    source_request: NonNegativeNumber = 0.0
    store_put: NonNegativeNumber = 0.0
    trainer_hour: NonNegativeNumber = 0.0
    cache_gb_hour: NonNegativeNumber = 0.0


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class SimulationSpec:
    """One simulation, which runs for ``minutes`` of virtual time or, if null, until all jobs are done."""

    name: Text = "simulation"
    seed: AtLeastZero = 0
    minutes: PositiveNumber | None = None
    datasets: Annotated[tuple[DatasetSpec, ...], Field(min_length=1)] = (DatasetSpec(),)
    jobs: Annotated[tuple[JobSpec, ...], Field(min_length=1)] = (JobSpec(),)
    functions: Annotated[FunctionsSpec, NULL_IS_EMPTY] = field(
        default_factory=lambda: FunctionsSpec(decode_s=0.01)
    )
    cache: Annotated[CacheSpec, NULL_IS_EMPTY] = field(default_factory=CacheSpec)
    store: Annotated[StoreSpec, NULL_IS_EMPTY] = field(default_factory=StoreSpec)
    coordinator: Annotated[CoordinatorSpec, NULL_IS_EMPTY] = field(default_factory=CoordinatorSpec)
    prices: Annotated[PricesSpec, NULL_IS_EMPTY] = field(default_factory=PricesSpec)
    teams: tuple[TeamSpec, ...] = ()

    def __post_init__(self) -> None:
        for what in ("datasets", "jobs", "teams"):
            names = [item.name for item in getattr(self, what)]
            duplicates = sorted({name for name in names if names.count(name) > 1})
            if duplicates:
                raise ConfigError(
                    f"{what} named {', '.join(duplicates)} occur twice; give each a different name"
                )
        datasets, teams = (
            {dataset.name: dataset for dataset in self.datasets},
            [team.name for team in self.teams],
        )
        for number, job in enumerate(self.jobs):
            where = f"jobs[{number}]"
            if job.dataset not in datasets:
                raise ConfigError(
                    f"{where}.dataset is unknown: {job.dataset}; choose from {', '.join(datasets)}"
                )
            if job.team and job.team not in teams:
                raise ConfigError(f"{where}.team is unknown: {job.team}; set its share in teams")
            if job.drop_last and job.batch_size * job.replicas > datasets[job.dataset].samples:
                raise ConfigError(f"{where}.drop_last leaves no batch: the dataset is smaller than one")

    def to_mapping(self) -> dict[str, Any]:
        """Return plain mappings that YAML accepts."""
        return asdict(self)


def load_points(
    name: str | Path, overrides: Iterable[str] = ()
) -> list[tuple[dict[str, float], SimulationSpec]]:
    """Read a spec, and return the swept values and a spec for each combination of its sweep.

    Without a sweep, this is one spec without swept values.

    Args:
        name: a path, or the bare name of a spec in the package.
        overrides: ``a.b=c``, applied before the sweep.

    Raises:
        ConfigError: the file is missing or not YAML, or a key or a value is not allowed.
    """
    with _SPECS.opened(name) as mapping:
        whole_mapping = apply_overrides(mapping, overrides)
        axes = _axes(whole_mapping.pop("sweep", None))
        points = []
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            words = [f"{_SHORT.get(key, key)}={value}" for key, value in chosen.items()]
            points.append((chosen, build(SimulationSpec, apply_overrides(whole_mapping, words))))
    return points


def _axes(sweep: Any) -> dict[str, list[float]]:
    if not isinstance(sweep, dict | None):
        raise ConfigError(
            f"sweep must be a mapping of keys to lists, such as cache_gb: [8, 16], not {sweep!r}"
        )
    for key, values in (sweep or {}).items():
        if not values or not isinstance(values, list) or {type(value) for value in values} - {int, float}:
            raise ConfigError(f"sweep.{key} must be a list of at least one number, not {values!r}")
    return dict(sweep or {})


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
        functions=_functions(spec),
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
    """Return the local process that serves a directory that Lambda cannot reach."""
    if (spec.store.kind, spec.functions.kind) != ("directory", "lambda"):
        return ()
    return (FunctionsModel(1, restore_s=spec.store.restore_s, memory_gb=0.0),)


def _functions(spec: SimulationSpec) -> FunctionsModel:
    functions, names = spec.functions, {entry.name for entry in fields(FunctionsModel)}
    values = {name: value for name, value in asdict(functions).items() if name in names}
    if functions.kind == "pool":
        values |= {"burst": None, "per_s": math.inf}
    else:
        values |= {"queues": False, "burst": min(functions.burst, functions.concurrency)}
    return FunctionsModel(capacity=functions.concurrency, restore_s=spec.store.restore_s, **values)


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
