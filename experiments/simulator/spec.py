"""What is simulated: a YAML file turned into frozen dataclasses, checked when they are made.

How keys are checked is in `experiments.schema`; what becomes of them in `experiments.simulator.build`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from superdl.experiments.schema import (
    build,
    choice,
    number,
    optional_number,
    optional_text,
    section,
    sections,
    text,
    truth,
    whole,
)
from superdl.experiments.spec import apply_overrides
from superdl.super_wire.errors import ConfigError

__all__ = [
    "CacheSpec",
    "CoordinatorSpec",
    "DatasetSpec",
    "FunctionsSpec",
    "JobSpec",
    "PricesSpec",
    "SimulationSpec",
    "load_points",
]

_BUILT_IN_SPECS = Path(__file__).parent / "specs"
_FUNCTION_KINDS = ("pool", "lambda")
_SHORT = {"cache_gb": "cache.budget_gb", "concurrency": "functions.concurrency"}
_POINTS_MAX = 1000


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """``copies`` catalogs of ``samples`` images. A record is ``image`` by ``image`` pixels of three bytes,
    or has ``record_bytes``; ``source_bytes`` is the mean size of an object.
    """

    name: str = text("data")
    copies: int = whole(1, at_least=1)
    samples: int = whole(10_000, at_least=1)
    image: int = whole(224, at_least=1)
    record_bytes: int = whole(0, at_least=0)
    source_bytes: int = whole(110_000, at_least=0)
    random: bool = truth(default=False)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """``count`` training runs of ``replicas`` ranks.

    Run n reads copy n of the dataset (modulo its copies), shuffles with ``seed`` + n unless ``same_seed``,
    and starts ``start_every_s`` after the one before. ``batch_size`` is per rank, ``step_s`` what a batch
    keeps the trainer, ``handover_s`` what taking it over from a worker costs before. ``workers`` read ahead,
    each at ``read_gb_per_s``. ``follows`` names other jobs after
    each of whose epochs these do one of their own, as validation does.
    """

    name: str = text("train")
    dataset: str = text("data")
    count: int = whole(1, at_least=1)
    replicas: int = whole(1, at_least=1)
    batch_size: int = whole(256, at_least=1)
    step_s: float = number(1.0, above=0.0)
    epochs: int = whole(1, at_least=1)
    shuffle: bool = truth(default=True)
    drop_last: bool = truth(default=False)
    seed: int = whole(0, at_least=0)
    same_seed: bool = truth(default=False)
    start_s: float = number(0.0, at_least=0.0)
    start_every_s: float = number(0.0, at_least=0.0)
    workers: int = whole(4, at_least=1)
    page: int = whole(64, at_least=1)
    read_gb_per_s: float = number(1.2, above=0.0)
    handover_s: float = number(0.0, at_least=0.0)
    follows: str | None = optional_text()


@dataclass(frozen=True, slots=True)
class FunctionsSpec:
    """How functions run; see :class:`superdl.experiments.simulator.scenario.FunctionsModel`.

    A ``pool`` is there from the start and queues; ``lambda`` starts cold, ramps and refuses. ``failures`` is
    the share of requests whose function crashes, ``throttles`` of those refused for no reason of ours.
    """

    kind: str = choice("lambda", _FUNCTION_KINDS)
    concurrency: int = whole(1000, at_least=1)
    burst: int = whole(1000, at_least=1)
    per_s: float = number(100.0, above=0.0)
    cold_start_s: float = number(0.0, at_least=0.0)
    warm_s: float = number(300.0, above=0.0)
    overhead_s: float = number(0.0, at_least=0.0)
    fetch_s: float = number(0.0, at_least=0.0)
    fetch_parallel: int = whole(16, at_least=1)
    decode_s: float = number(0.0, at_least=0.0)
    push_s: float = number(0.0, at_least=0.0)
    spread: float = number(0.2, at_least=0.0)
    stragglers: float = number(0.0, at_least=0.0)
    failures: float = number(0.0, at_least=0.0)
    throttles: float = number(0.0, at_least=0.0)
    timeout_s: float = number(60.0, above=0.0)
    memory_gb: float = number(1.769, above=0.0)

    def __post_init__(self) -> None:
        """Refuse shares above one and work that takes no time."""
        for name in ("stragglers", "failures", "throttles"):
            if getattr(self, name) > 1:
                raise ConfigError(f"functions.{name} is a share from 0 to 1, not {getattr(self, name):g}")
        if not self.fetch_s + self.decode_s + self.overhead_s:
            raise ConfigError("functions take no time: set functions.decode_s, functions.fetch_s or both")


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """Memory for records, in units of 2**30 bytes; ``left_over`` is the share that is there at the start."""

    budget_gb: float = number(16.0, above=0.0)
    left_over: float = number(0.0, at_least=0.0)

    def __post_init__(self) -> None:
        """Refuse more than all."""
        if self.left_over > 1:
            raise ConfigError(f"cache.left_over is a share from 0 to 1, not {self.left_over:g}")


@dataclass(frozen=True, slots=True)
class CoordinatorSpec:
    """Settings of the core, by the names that the coordinator has for them."""

    lookahead_batches: int = whole(64, at_least=1)
    request_samples: int = whole(64, at_least=1)
    max_usd_per_hour: float | None = optional_number(above=0.0)


@dataclass(frozen=True, slots=True)
class PricesSpec:
    """US dollars: per invocation, GB-second, GET, hour of one trainer (a rank), hour of one GB of cache."""

    invocation: float = number(0.0, at_least=0.0)
    gb_s: float = number(0.0, at_least=0.0)
    source_request: float = number(0.0, at_least=0.0)
    trainer_hour: float = number(0.0, at_least=0.0)
    cache_gb_hour: float = number(0.0, at_least=0.0)


@dataclass(frozen=True, slots=True)
class SimulationSpec:
    """One run of the simulated world; ``minutes`` of virtual time, or until all jobs are done if null."""

    name: str = text("simulation")
    seed: int = whole(0, at_least=0)
    minutes: float | None = optional_number(above=0.0)
    datasets: tuple[DatasetSpec, ...] = field(
        default_factory=lambda: (DatasetSpec(),), metadata=sections(DatasetSpec)
    )
    jobs: tuple[JobSpec, ...] = field(default_factory=lambda: (JobSpec(),), metadata=sections(JobSpec))
    functions: FunctionsSpec = field(
        default_factory=lambda: FunctionsSpec(decode_s=0.01), metadata=section(FunctionsSpec)
    )
    cache: CacheSpec = field(default_factory=CacheSpec, metadata=section(CacheSpec))
    coordinator: CoordinatorSpec = field(default_factory=CoordinatorSpec, metadata=section(CoordinatorSpec))
    prices: PricesSpec = field(default_factory=PricesSpec, metadata=section(PricesSpec))

    def __post_init__(self) -> None:
        """Refuse names that are taken twice or lead nowhere."""
        for what, names in (("datasets", [one.name for one in self.datasets]), ("jobs", self._job_names())):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ConfigError(f"{what} named {', '.join(twice)} occur twice; give each a name of its own")
        datasets = {one.name: one for one in self.datasets}
        groups = {job.name: job for job in self.jobs}
        for number_, job in enumerate(self.jobs):
            where = f"jobs[{number_}]"
            if job.dataset not in datasets:
                raise ConfigError(
                    f"{where}.dataset names no dataset: {job.dataset}; there are {', '.join(datasets)}"
                )
            leader = groups.get(job.follows or job.name)
            if leader is None or (job.follows and (leader is job or leader.follows)):
                raise ConfigError(f"{where}.follows must name jobs that follow none, not {job.follows}")
            if (leader.count, leader.replicas) != (job.count, job.replicas):
                raise ConfigError(f"{where} follows {leader.name} and must have its count and replicas")
            if job.drop_last and job.batch_size * job.replicas > datasets[job.dataset].samples:
                raise ConfigError(f"{where}.drop_last leaves no batch: the dataset is smaller than one")

    def _job_names(self) -> list[str]:
        return [job.name for job in self.jobs]

    def to_mapping(self) -> dict[str, Any]:
        """Return the spec as plain mappings that YAML accepts."""
        return asdict(self)


def load_points(
    name: str | Path, overrides: Iterable[str] = ()
) -> list[tuple[dict[str, float], SimulationSpec]]:
    """Read a spec and make one run of each combination of its sweep; a spec without one is one run.

    Args:
        name: a path, or the bare name of a spec that comes with the package.
        overrides: ``a.b=c``, applied before the sweep.

    Returns:
        The swept keys with their values, and the spec with them.

    Raises:
        ConfigError: the file is missing or not YAML, or a key or a value is not allowed.
    """
    path = _spec_file(name)
    try:
        mapping = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the spec {path}: {error}") from error
    try:
        whole_mapping = apply_overrides({} if mapping is None else mapping, overrides)
        axes = _axes(whole_mapping.pop("sweep", None))
        points = []
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            words = [f"{_SHORT.get(key, key)}={value}" for key, value in chosen.items()]
            points.append((chosen, build(SimulationSpec, apply_overrides(whole_mapping, words))))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return points


def _axes(sweep: object) -> dict[str, list[float]]:
    """The swept keys and their values."""
    if sweep is None:
        return {}
    if not isinstance(sweep, Mapping):
        raise ConfigError(
            f"sweep must be a mapping of keys to lists, such as cache_gb: [8, 16]; not {sweep!r}"
        )
    points = 1
    for key, values in sweep.items():
        numbers = isinstance(values, list) and all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in values
        )
        if not numbers or not values:
            raise ConfigError(f"sweep.{key} must be a list of numbers, at least one, not {values!r}")
        if key not in _SHORT and "." not in str(key):
            raise ConfigError(
                f"sweep.{key} is no key of a spec; name one as in functions.memory_gb, or {', '.join(_SHORT)}"
            )
        points *= len(values)
    if points > _POINTS_MAX:
        raise ConfigError(f"the sweep has {points} combinations; at most {_POINTS_MAX} are run")
    return dict(sweep)


def _spec_file(name: str | Path) -> Path:
    path = Path(name).expanduser()
    if path.is_file():
        return path
    built_in = {file.stem: file for file in sorted(_BUILT_IN_SPECS.glob("*.yaml"))}
    if str(name) in built_in:
        return built_in[str(name)]
    raise ConfigError(f"no spec at {path}; give a YAML file or a built-in spec: {', '.join(built_in)}")
