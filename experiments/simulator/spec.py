"""The spec of a simulation: a YAML file as frozen dataclasses that validate themselves.

`experiments.schema` checks the keys; `world_model` builds the world from a spec.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, StrictBool, StrictInt, StrictStr
from pydantic.dataclasses import dataclass

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
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "CacheSpec",
    "CoordinatorSpec",
    "DatasetSpec",
    "FunctionsSpec",
    "JobSpec",
    "PricesSpec",
    "SimulationSpec",
    "StoreSpec",
    "TeamSpec",
    "load_points",
]

_SPECS = SpecFolder(Path(__file__).parent / "specs")
_SHORT = {"cache_gb": "cache.budget_gb", "concurrency": "functions.concurrency"}


Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class DatasetSpec:
    """``copies`` catalogs of ``samples`` images each.

    A record is ``image`` by ``image`` pixels of three bytes, or has ``record_bytes``; ``source_bytes`` is the
    mean size of an object.
    """

    name: Text = "data"
    copies: AtLeastOne = 1
    samples: AtLeastOne = 10_000
    image: AtLeastOne = 224
    record_bytes: AtLeastZero = 0
    source_bytes: AtLeastZero = 110_000
    random: StrictBool = False


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class JobSpec:
    """``count`` training runs of ``replicas`` ranks.

    Run n reads copy n of the dataset (modulo its copies), shuffles with ``seed`` + n unless ``same_seed``,
    and starts ``start_every_s`` after the previous. ``batch_size`` is per rank, ``step_s`` the trainer's time
    for a batch, ``handover_s`` its time to take the batch over from a worker. ``workers`` read ahead, each at
    ``read_gb_per_s``. ``team`` is one of the spec's teams, or empty.
    """

    name: Text = "train"
    team: StrictStr = ""
    dataset: Text = "data"
    count: AtLeastOne = 1
    replicas: AtLeastOne = 1
    batch_size: AtLeastOne = 256
    step_s: PositiveNumber = 1.0
    epochs: AtLeastOne = 1
    shuffle: StrictBool = True
    drop_last: StrictBool = False
    seed: AtLeastZero = 0
    same_seed: StrictBool = False
    start_s: NonNegativeNumber = 0.0
    start_every_s: NonNegativeNumber = 0.0
    workers: AtLeastOne = 4
    page: AtLeastOne = 64
    read_gb_per_s: PositiveNumber = 1.2
    handover_s: NonNegativeNumber = 0.0


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class FunctionsSpec:
    """The functions' execution; see `experiments.simulator.world_model.FunctionsModel`.

    A ``pool`` exists from the start and queues requests; ``lambda`` starts cold, ramps up and refuses.
    ``failures`` is the share of requests whose function crashes, ``throttles`` the share refused at random.
    """

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
    failures: Share = 0.0
    throttles: Share = 0.0
    timeout_s: PositiveNumber = 60.0
    memory_gb: PositiveNumber = 1.769

    def __post_init__(self) -> None:
        """Reject functions that take no time."""
        if not self.fetch_s + self.decode_s + self.overhead_s:
            raise ConfigError("functions take no time: set functions.decode_s, functions.fetch_s or both")


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class CacheSpec:
    """Memory for records, in 2**30 bytes; ``left_over`` is the share cached at first."""

    budget_gb: PositiveNumber = 16.0
    left_over: Share = 0.0


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class StoreSpec:
    """The records' store: ``none``, a ``directory`` that trainers read too, or ``s3``.

    ``left_over`` is the share of samples stored at the start, ``restore_s`` a function's time per record.
    """

    kind: Annotated[str, one_of(("none", "directory", "s3"))] = "none"
    left_over: Share = 0.0
    restore_s: NonNegativeNumber = 0.0


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
    """US dollars: invocation, GB-second, GET, PUT, hour of a rank, hour of a GB of cache."""

    invocation: NonNegativeNumber = 0.0
    gb_s: NonNegativeNumber = 0.0
    source_request: NonNegativeNumber = 0.0
    store_put: NonNegativeNumber = 0.0
    trainer_hour: NonNegativeNumber = 0.0
    cache_gb_hour: NonNegativeNumber = 0.0


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class SimulationSpec:
    """One simulation, for ``minutes`` of virtual time, or until all jobs are done if null."""

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
        """Reject duplicate names and references to unknown ones."""
        for what in ("datasets", "jobs", "teams"):
            names = [item.name for item in getattr(self, what)]
            duplicates = sorted({name for name in names if names.count(name) > 1})
            if duplicates:
                raise ConfigError(
                    f"{what} named {', '.join(duplicates)} occur twice; give each a name of its own"
                )
        datasets, teams = (
            {dataset.name: dataset for dataset in self.datasets},
            [team.name for team in self.teams],
        )
        for number, job in enumerate(self.jobs):
            where = f"jobs[{number}]"
            if job.dataset not in datasets:
                raise ConfigError(
                    f"{where}.dataset names no dataset: {job.dataset}; there are {', '.join(datasets)}"
                )
            if job.team and job.team not in teams:
                raise ConfigError(f"{where}.team names no team: {job.team}; name its share in teams")
            if job.drop_last and job.batch_size * job.replicas > datasets[job.dataset].samples:
                raise ConfigError(f"{where}.drop_last leaves no batch: the dataset is smaller than one")

    def to_mapping(self) -> dict[str, Any]:
        """Return the spec as plain mappings that YAML accepts."""
        return asdict(self)


def load_points(
    name: str | Path, overrides: Iterable[str] = ()
) -> list[tuple[dict[str, float], SimulationSpec]]:
    """Read a spec; return a run per combination of its sweep, or one run without.

    Args:
        name: a path, or the bare name of a spec in the package.
        overrides: ``a.b=c``, applied before the sweep.

    Returns:
        The swept keys with their values, and the resulting spec.

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
    """Return the swept keys and their values."""
    if not isinstance(sweep, dict | None):
        raise ConfigError(
            f"sweep must be a mapping of keys to lists, such as cache_gb: [8, 16]; not {sweep!r}"
        )
    for key, values in (sweep or {}).items():
        if not values or not isinstance(values, list) or {type(value) for value in values} - {int, float}:
            raise ConfigError(f"sweep.{key} must be a list of numbers, at least one, not {values!r}")
    return dict(sweep or {})
