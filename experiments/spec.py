"""A run's spec: its keys, defaults and allowed values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic.dataclasses import dataclass

from superdl.experiments.image_sets import MADE_SETS, PUBLISHED_SETS
from superdl.experiments.schema import (
    KNOWN_KEYS,
    NULL_IS_EMPTY,
    AtLeastOne,
    AtLeastZero,
    ListOfMappings,
    NamedMappings,
    NonNegativeNumber,
    PositiveNumber,
    Share,
    Text,
    apply_overrides,
    apply_values,
    build,
    one_of,
    opened_spec,
)
from superdl.super_wire.errors import ConfigError

# Does not import torch, so commands reject an invalid spec at once.
_DATA_SETS = ("digits", *PUBLISHED_SETS, *MADE_SETS)
LOADER_KINDS = ("super", "super-threads", "torch", "webdataset")
SUPER_KINDS = ("super", "super-threads")
_MODEL_NAMES = ("small_cnn", "resnet10", "resnet18", "resnet50", "vit_b_32", "vit_mini")
_TIMM_NAMES = "timm:[a-z0-9_.]+"  # excludes names for which timm downloads

_SPECS = Path(__file__).parent / "specs"


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class DataSpec:
    """The images. Kind ``auto`` means those in ``train`` or, if it is not set, the digits."""

    kind: Annotated[str, one_of(("auto", *_DATA_SETS))] = "auto"
    # Where a set is or will be written; null means a folder of its name in data/.
    directory: Text | None = None
    # Training images of a generated set; null means those that exist, or else the full set.
    samples: AtLeastOne | None = None
    train: Text | None = None
    val: Text | None = None
    train_key_list: Text | None = None
    val_key_list: Text | None = None

    def __post_init__(self) -> None:
        if self.kind in _DATA_SETS and (self.train or self.val):
            raise ConfigError(
                f"data.kind {self.kind} has its own images. Remove data.train, or set data.kind=auto."
            )
        if self.samples is not None and self.kind not in (*PUBLISHED_SETS, *MADE_SETS):
            raise ConfigError(f"data.samples applies only to drawn sets, not to data.kind {self.kind}")
        for name, needed in (("val", "train"), ("train_key_list", "train"), ("val_key_list", "val")):
            if getattr(self, name) and not getattr(self, needed):
                raise ConfigError(f"data.{name} is set without data.{needed}")


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class RecipeSpec:
    """The steps before the cache: resize the shorter side to ``resize`` pixels, then crop the centre."""

    resize: AtLeastOne = 64
    crop: AtLeastOne = 64
    # Replaces both: steps as in Recipe. augment_seed seeds the random ones.
    steps: ListOfMappings | None = None
    augment_seed: AtLeastZero = 0

    def __post_init__(self) -> None:
        if self.crop > self.resize:
            raise ConfigError(f"recipe.crop ({self.crop}) must not exceed recipe.resize ({self.resize})")


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class LoaderSpec:
    """The loader's settings. ``read_timeout`` is in seconds."""

    kind: Annotated[str, one_of(LOADER_KINDS)] = "super"
    batch_size: AtLeastOne = 32
    num_workers: AtLeastZero = 2
    read_timeout: PositiveNumber = 120.0
    coordinator: Text | None = None  # host:port; null means the embedded default
    # As in SuperDataset. The report lists the bad samples.
    on_bad_sample: Annotated[str, one_of(("raise", "skip", "replace"))] = "raise"

    def __post_init__(self) -> None:
        if self.on_bad_sample != "raise" and not self.runs_functions:
            raise ConfigError(f"loader.on_bad_sample needs SUPER. loader.kind {self.kind} always raises.")

    @property
    def runs_functions(self) -> bool:
        """Whether this is one of SUPER's own loaders."""
        return self.kind in SUPER_KINDS


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class ModelSpec:
    """The model. Its number of classes is taken from the data."""

    name: Annotated[str, one_of(_MODEL_NAMES, or_like=_TIMM_NAMES)] = "small_cnn"
    # A file of pretrained weights. A classifier for other classes is skipped.
    weights: Text | None = None
    weights_from: Text | None = None  # where to download it


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class OptimizerSpec:
    """The optimiser and the learning-rate schedule, which peaks at ``lr``."""

    name: Annotated[str, one_of(("adamw", "sgd"))] = "adamw"
    lr: PositiveNumber = 0.005
    weight_decay: NonNegativeNumber = 0.01
    momentum: Share = 0.9  # for sgd
    schedule: Annotated[str, one_of(("one_cycle", "cosine", "constant"))] = "one_cycle"
    warmup_epochs: NonNegativeNumber = 0.0  # of a linear warm-up, except with one_cycle

    def __post_init__(self) -> None:
        if self.warmup_epochs and self.schedule == "one_cycle":
            raise ConfigError(
                "optimizer.warmup_epochs: a one_cycle schedule has its own warm-up. Set optimizer.schedule "
                "to cosine or constant."
            )


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class TrainingSpec:
    """Settings of the training loop."""

    strategy: Annotated[str, one_of(("auto", "single", "ddp", "fsdp"))] = (
        "auto"  # auto: ddp for several ranks
    )
    precision: Annotated[str, one_of(("auto", "float32", "bfloat16", "float16"))] = "auto"
    # Training steps per epoch, for which the loader restarts as needed; null means one pass.
    steps_per_epoch: AtLeastOne | None = None
    print_every: AtLeastOne | None = None  # in steps; prints their mean time
    validate_every: AtLeastZero = 1  # in epochs; 0 means never
    # In epochs (0: never), and in steps within an epoch.
    checkpoint_every: AtLeastZero = 0
    checkpoint_steps: AtLeastOne | None = None
    resume: Text | None = None  # a checkpoint, or a run's directory
    threads: AtLeastOne | None = None  # of torch on CPUs; null means torch's default


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class CostSpec:
    """Items billed by the hour, as named in the price table. Null means that an item is not billed."""

    machine: Text | None = None
    machines: AtLeastOne = 1
    data_machine: Text | None = None  # runs functions, in addition to the training machine
    data_machines: AtLeastOne = 1
    cache_node: Text | None = None  # of a managed cache
    cache_nodes: AtLeastOne = 1


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class CompareSpec:
    """Settings of ``superdl compare``: each arm runs ``repeats`` times, interleaved with the others."""

    repeats: AtLeastOne = 3
    # The first epochs of each run, excluded from all figures except those of whole runs.
    warmup_epochs: AtLeastZero = 1
    # For each name, values by dotted keys, such as {torch: {loader.kind: torch}}.
    arms: NamedMappings = field(default_factory=dict)


@dataclass(frozen=True, slots=True, config=KNOWN_KEYS)
class Spec:
    """The spec of a complete run. Relative paths are relative to the working directory."""

    name: Text = "digits"
    seed: AtLeastZero = 0
    epochs: AtLeastOne = 3
    device: Annotated[str, one_of(("auto", "cpu", "cuda"))] = "auto"
    output: Text = "runs"
    data: Annotated[DataSpec, NULL_IS_EMPTY] = field(default_factory=DataSpec)
    recipe: Annotated[RecipeSpec, NULL_IS_EMPTY] = field(default_factory=RecipeSpec)
    loader: Annotated[LoaderSpec, NULL_IS_EMPTY] = field(default_factory=LoaderSpec)
    model: Annotated[ModelSpec, NULL_IS_EMPTY] = field(default_factory=ModelSpec)
    optimizer: Annotated[OptimizerSpec, NULL_IS_EMPTY] = field(default_factory=OptimizerSpec)
    training: Annotated[TrainingSpec, NULL_IS_EMPTY] = field(default_factory=TrainingSpec)
    cost: Annotated[CostSpec, NULL_IS_EMPTY] = field(default_factory=CostSpec)
    compare: Annotated[CompareSpec, NULL_IS_EMPTY] = field(default_factory=CompareSpec)
    # Concurrent runs of each arm of `superdl compare`: for each name, values by dotted keys. Without trials,
    # an arm is a single run.
    trials: NamedMappings = field(default_factory=dict)

    def __post_init__(self) -> None:
        if Path(self.name).name != self.name or self.name.startswith("."):
            raise ConfigError(f"name must not be {self.name!r}, because it becomes part of a folder's name")

    def to_mapping(self) -> dict[str, Any]:
        """Return the spec as plain values for YAML and `parse_spec`."""
        return asdict(self)

    def write(self, path: Path) -> None:
        """Write the complete spec as YAML, so that ``superdl run`` can repeat the run."""
        path.write_text(yaml.safe_dump(self.to_mapping(), sort_keys=False), encoding="utf-8")


def parse_spec(mapping: Mapping[str, Any]) -> Spec:
    """Create a spec from a mapping. Missing keys get their defaults.

    Raises:
        ConfigError: a key is unknown or a value is not allowed. The message names the key.
    """
    return build(Spec, mapping)


def spec_keys() -> tuple[str, ...]:
    """Return all dotted keys of a spec, such as ``loader.batch_size``."""
    return tuple(
        f"{section}.{key}" if isinstance(value, dict) and value else section
        for section, value in Spec().to_mapping().items()
        for key in (value if isinstance(value, dict) and value else [""])
    )


# The default of a spec's section quick.
_QUICK = {"epochs": 2, "training.steps_per_epoch": 20, "compare.warmup_epochs": 1}


def load_spec(name: str | Path = "digits", overrides: Iterable[str] = (), *, quick: bool = False) -> Spec:
    """Read a spec by path or built-in name, and apply ``a.b=c`` overrides.

    With ``quick``, the values in the file's ``quick`` section are applied before the overrides. Without
    such a section, the run takes two epochs of 20 steps.

    Raises:
        ConfigError: the file is missing or not YAML, or a key or a value is not allowed.
    """
    with opened_spec(name, _SPECS) as full:
        values = full.pop("quick", _QUICK) or {}
        if not isinstance(values, Mapping):
            raise ConfigError(f"quick must be a mapping of dotted keys to values, not {values!r}")
        small = apply_values(full, values)
        # Without quick, too, an invalid section is an error.
        parse_spec(small)
        return parse_spec(apply_overrides(small if quick else full, overrides))
