"""A simulation's spec, parsed from YAML into frozen dataclasses and validated, and the world it describes."""

from __future__ import annotations

import math
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass

from superdl.coordinator.core import CoreSettings, ExecutorFacts, Plan
from superdl.experiments.schema import (
    KNOWN_KEYS,
    NULL_IS_EMPTY,
    AtLeastOne,
    AtLeastZero,
    NonNegativeNumber,
    PositiveNumber,
    Text,
    apply_overrides,
    build,
    one_of,
    opened_spec,
)
from superdl.experiments.simulator.world_model import DatasetModel, FunctionsModel, JobScript, WorldModel
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SPECS = Path(__file__).parent / "specs"
_GB = 2**30
_READ_TIMEOUT_S = 3600.0
_HEARTBEAT_S = 2.0  # interval of a sampler's reports of its progress
_PAGE = 64
# AWS Lambda's limits: cold starts at once, and additional ones per second.
_BURST, _COLD_STARTS_PER_S = 1000, 100.0

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class DatasetSpec:
    """``copies`` datasets of ``samples`` images each."""

    name: Text = "data"
    copies: AtLeastOne = 1
    samples: AtLeastOne = 10_000
    record_bytes: AtLeastOne = 150_592  # 224 x 224 pixels and a header
    source_bytes: AtLeastZero = 110_000  # mean size of an object
    random: StrictBool = False


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class JobSpec:
    """``count`` training runs of ``replicas`` ranks. Run n reads the dataset's copy n modulo ``copies``."""

    name: Text = "train"
    dataset: Text = "data"
    count: AtLeastOne = 1
    replicas: AtLeastOne = 1
    batch_size: AtLeastOne = 256  # per rank
    step_s: PositiveNumber = 1.0  # the trainer's time per batch
    epochs: AtLeastOne = 1
    seed: AtLeastZero = 0  # run n shuffles with seed + n
    start_every_s: NonNegativeNumber = 0.0  # after the previous run
    # Workers read ahead, each at read_gb_per_s.
    workers: AtLeastOne = 4
    read_gb_per_s: PositiveNumber = 1.2
    # The trainer's time to receive a batch from a worker.
    handover_s: NonNegativeNumber = 0.0


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class FunctionsSpec:
    """Settings of the functions. See `experiments.simulator.world_model.FunctionsModel` for details."""

    # A pool exists from the start, and excess requests wait. lambda starts cold, ramps up, and refuses them.
    kind: Annotated[str, one_of(("pool", "lambda"))] = "lambda"
    concurrency: AtLeastOne = 1000
    cold_start_s: NonNegativeNumber = 0.0
    overhead_s: NonNegativeNumber = 0.0
    fetch_s: NonNegativeNumber = 0.0
    fetch_parallel: AtLeastOne = 16
    decode_s: NonNegativeNumber = 0.0
    push_s: NonNegativeNumber = 0.0
    spread: NonNegativeNumber = 0.2
    stragglers: Share = 0.0
    memory_gb: PositiveNumber = 1.769

    def __post_init__(self) -> None:
        if not self.fetch_s + self.decode_s + self.overhead_s:
            raise ConfigError("functions must take time. Set functions.decode_s, functions.fetch_s or both.")


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class CacheSpec:
    """Memory for records, in GiB. ``left_over`` is the share of samples that are cached at the start."""

    budget_gb: PositiveNumber = 16.0
    left_over: Share = 0.0


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class StoreSpec:
    """The store: ``none``, a ``directory`` shared by the trainers and the pool, or ``s3``."""

    kind: Annotated[str, one_of(("none", "directory", "s3"))] = "none"
    left_over: Share = 0.0  # share of samples at the start
    restore_s: NonNegativeNumber = 0.0  # a function's time per record


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class CoordinatorSpec:
    """Settings of the core, with the same names as in the coordinator."""

    lookahead_batches: AtLeastOne = 64
    request_samples: AtLeastOne = 512


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class SimulationSpec:
    """A simulation that ends after ``minutes`` of virtual time or, if null, when all jobs are done."""

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

    def __post_init__(self) -> None:
        datasets = [dataset.name for dataset in self.datasets]
        for what, names in (("datasets", datasets), ("jobs", [job.name for job in self.jobs])):
            duplicates = sorted({name for name in names if names.count(name) > 1})
            if duplicates:
                raise ConfigError(f"duplicate names in {what}: {', '.join(duplicates)}")
        for number, job in enumerate(self.jobs):
            if job.dataset not in datasets:
                raise ConfigError(
                    f"jobs[{number}].dataset is unknown: {job.dataset}. Choose from {', '.join(datasets)}."
                )
        if (self.store.kind, self.functions.kind) == ("directory", "lambda"):
            raise ConfigError(
                "store.kind=directory requires functions.kind=pool. For Lambda, set store.kind=s3."
            )


def load_spec(name: str | Path, overrides: Iterable[str] = ()) -> SimulationSpec:
    """Load a simulation's spec.

    Args:
        name: a path, or the bare name of a spec in the package.
        overrides: ``a.b=c`` settings that replace values in the file.

    Raises:
        ConfigError: the file is missing or not YAML, or a key or a value is not allowed.
    """
    with opened_spec(name, _SPECS) as mapping:
        return build(SimulationSpec, apply_overrides(mapping, overrides))


def build_world_model(spec: SimulationSpec) -> WorldModel:
    """Build the model that ``spec`` describes."""
    datasets = [
        DatasetModel(
            name=_name(dataset.name, copy, dataset.copies).encode(),
            random=dataset.random,
            # A view of a single value.
            record_bytes=np.broadcast_to(np.int64(dataset.record_bytes), dataset.samples),
            source_bytes=dataset.source_bytes,
        )
        for dataset in spec.datasets
        for copy in range(dataset.copies)
    ]
    return WorldModel(
        seed=spec.seed,
        settings=CoreSettings(
            budget_bytes=max(1, int(spec.cache.budget_gb * _GB)),
            executors=(ExecutorFacts(spec.functions.kind),),
            store=spec.store.kind != "none",
            whole_packs=spec.store.kind == "s3",
            **asdict(spec.coordinator),
        ),
        functions=_functions(spec),
        datasets={data.name: data for data in datasets},
        jobs=tuple(script for job in spec.jobs for script in _scripts(spec, job)),
        left_over=spec.cache.left_over,
        stored=spec.store.left_over,
        read_timeout_s=_READ_TIMEOUT_S,
        until_s=math.inf if spec.minutes is None else spec.minutes * 60,
        heartbeat_s=_HEARTBEAT_S,
    )


def _name(name: str, number: int, count: int) -> str:
    return name if count == 1 else f"{name}-{number}"


def _functions(spec: SimulationSpec) -> FunctionsModel:
    values: dict[str, Any] = asdict(spec.functions)
    queues, capacity = values.pop("kind") == "pool", values.pop("concurrency")
    if not queues:
        values |= {"burst": min(_BURST, capacity), "per_s": _COLD_STARTS_PER_S}
    return FunctionsModel(capacity, queues, restore_s=spec.store.restore_s, **values)


def _scripts(spec: SimulationSpec, job: JobSpec) -> Iterator[JobScript]:
    dataset = next(candidate for candidate in spec.datasets if candidate.name == job.dataset)
    for number in range(job.count):
        plan = Plan(dataset.samples, job.batch_size, replicas=job.replicas, seed=job.seed + number)
        yield JobScript(
            name=_name(job.name, number, job.count),
            dataset=_name(dataset.name, number % dataset.copies, dataset.copies).encode(),
            plan=plan,
            starts_s=number * job.start_every_s,
            step_s=job.step_s,
            workers=job.workers,
            page=_PAGE,
            passes=[(epoch, 0, plan.batches_per_epoch) for epoch in range(job.epochs)],
            read_s=job.batch_size * dataset.record_bytes / (job.read_gb_per_s * _GB),
            handover_s=job.handover_s,
            straight=spec.store.kind == "directory",
        )
