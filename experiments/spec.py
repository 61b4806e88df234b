"""What a run is: a YAML file turned into frozen dataclasses, checked when they are made.

Imports no torch, so that the command line can refuse a bad spec at once. How keys are checked is in
`experiments.schema`; how a run is carried out is in `experiments.run`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from experiments.data.made_sets import MADE_SETS, PUBLISHED_SETS
from experiments.schema import (
    build,
    choice,
    choices,
    number,
    optional_text,
    optional_whole,
    section,
    text,
    whole,
)
from super_wire.errors import ConfigError

__all__ = [
    "DATA_KINDS",
    "DATA_SETS",
    "DEVICES",
    "EXECUTORS",
    "LOADER_KINDS",
    "MODEL_NAMES",
    "DataSpec",
    "LoaderSpec",
    "ModelSpec",
    "OptimizerSpec",
    "RecipeSpec",
    "Spec",
    "apply_overrides",
    "load_spec",
    "parse_spec",
    "spec_file",
]

DATA_SETS = ("digits", *PUBLISHED_SETS, *MADE_SETS)
DATA_KINDS = ("auto", "directory", "url", *DATA_SETS)
DEVICES = ("auto", "cpu", "cuda")
EXECUTORS = ("local", "ray", "lambda")
LOADER_KINDS = ("super", "super_threads", "torch")
MODEL_NAMES = ("small_cnn",)

_BUILT_IN_SPECS = Path(__file__).parent / "specs"


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Where the images are. With kind `auto`: the digits, unless ``train`` names a source.

    ``directory`` is where a set is, or is written; null: a folder of its name below ``data/``. ``samples``
    are the training images of a set that is drawn; null: those that are there, else the whole set.
    """

    kind: str = choice("auto", DATA_KINDS)
    directory: str | None = optional_text()
    samples: int | None = optional_whole(at_least=1)
    train: str | None = optional_text()
    val: str | None = optional_text()
    train_key_list: str | None = optional_text()
    val_key_list: str | None = optional_text()

    def __post_init__(self) -> None:
        """Refuse contradictions, which no single key shows."""
        if self.kind in DATA_SETS and (self.train or self.val):
            raise ConfigError(
                f"data.kind {self.kind} has its own images; leave data.train out, or set data.kind=auto"
            )
        if self.samples is not None and self.kind not in (*PUBLISHED_SETS, *MADE_SETS):
            raise ConfigError(
                f"data.samples is for the sets that are drawn ({', '.join(MADE_SETS)} and what they stand in "
                f"for), not for data.kind {self.kind}"
            )
        if self.kind in ("directory", "url") and not self.train:
            raise ConfigError(f"data.kind {self.kind} needs data.train, the source of the training images")
        if self.val and not self.train:
            raise ConfigError("data.val is given without data.train; name both, or neither for the digits")
        for split, source, key_list in (
            ("train", self.train, self.train_key_list),
            ("val", self.val, self.val_key_list),
        ):
            if key_list and not source:
                raise ConfigError(f"data.{split}_key_list is given without data.{split}, the source it lists")


@dataclass(frozen=True, slots=True)
class RecipeSpec:
    """What is done to an image before the cache: shorter side to ``resize`` pixels, centre ``crop``."""

    resize: int = whole(64, at_least=1)
    crop: int = whole(64, at_least=1)

    def __post_init__(self) -> None:
        """Refuse a crop that would have to invent pixels."""
        if self.crop > self.resize:
            raise ConfigError(
                f"recipe.crop ({self.crop}) must not be larger than recipe.resize ({self.resize})"
            )


@dataclass(frozen=True, slots=True)
class LoaderSpec:
    """How batches come; ``read_timeout`` is in seconds, ``coordinator`` host:port or null (default)."""

    kind: str = choice("super", LOADER_KINDS)
    batch_size: int = whole(32, at_least=1)
    num_workers: int = whole(2, at_least=0)
    read_timeout: float = number(120.0, above=0.0)
    coordinator: str | None = optional_text()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which model; its number of classes follows from the data."""

    name: str = choice("small_cnn", MODEL_NAMES)


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """AdamW under a one-cycle schedule whose highest learning rate is ``lr``."""

    lr: float = number(0.005, above=0.0)
    weight_decay: float = number(0.01, at_least=0.0)


@dataclass(frozen=True, slots=True)
class Spec:
    """One run, whole. Relative paths are relative to the working directory.

    ``executor`` is how the embedded default runs functions, several names the cheapest first; auto: as
    ``SUPER_EXECUTOR`` says, else local.
    """

    name: str = text("digits")
    seed: int = whole(0, at_least=0)
    epochs: int = whole(3, at_least=1)
    device: str = choice("auto", DEVICES)
    output: str = text("runs")
    executor: str = choices("auto", EXECUTORS, "auto")
    data: DataSpec = field(default_factory=DataSpec, metadata=section(DataSpec))
    recipe: RecipeSpec = field(default_factory=RecipeSpec, metadata=section(RecipeSpec))
    loader: LoaderSpec = field(default_factory=LoaderSpec, metadata=section(LoaderSpec))
    model: ModelSpec = field(default_factory=ModelSpec, metadata=section(ModelSpec))
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec, metadata=section(OptimizerSpec))

    def __post_init__(self) -> None:
        """Refuse a name that would not be one folder name, and functions that could not do their work."""
        if Path(self.name).name != self.name or self.name.startswith("."):
            raise ConfigError(f"name becomes part of a folder's name and must not be {self.name!r}")
        if self.executor == "auto":
            return
        if self.loader.kind == "torch":
            raise ConfigError(f"executor={self.executor}, but loader.kind torch runs no functions")
        if self.loader.coordinator is not None:
            raise ConfigError(
                f"executor={self.executor}, but loader.coordinator names a coordinator, and how functions "
                "run is its own setting (superdl coordinator --executor): leave one of the two out"
            )
        if self.executor == "lambda" and not (self.data.train or "").startswith("s3://"):
            raise ConfigError(
                "functions on Lambda see no files of this machine: with executor=lambda the images are in a "
                "bucket, data.train=s3://bucket/prefix"
            )

    def to_mapping(self) -> dict[str, Any]:
        """Return the spec as plain mappings that `parse_spec` and YAML accept."""
        return asdict(self)


def spec_file(name: str | Path) -> Path:
    """Find a spec: a path, or the bare name of one that comes with the package (``digits``).

    Raises:
        ConfigError: there is no such file; the message lists the built-in names.

    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    built_in = {file.stem: file for file in sorted(_BUILT_IN_SPECS.glob("*.yaml"))}
    if str(name) in built_in:
        return built_in[str(name)]
    raise ConfigError(f"no spec at {path}; give a YAML file or a built-in spec: {', '.join(built_in)}")


def load_spec(name: str | Path = "digits", overrides: Iterable[str] = ()) -> Spec:
    """Read a spec file, apply ``a.b=c`` overrides and check the whole.

    Raises:
        ConfigError: the file is missing or not YAML, or a key or a value is not allowed.

    """
    path = spec_file(name)
    try:
        mapping = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the spec {path}: {error}") from error
    try:
        return parse_spec(apply_overrides({} if mapping is None else mapping, overrides))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_spec(mapping: Mapping[str, Any]) -> Spec:
    """Make a spec from a mapping; what is left out takes its default.

    Raises:
        ConfigError: a key is unknown or a value is not allowed; the message names the key.

    """
    return build(Spec, mapping)


def apply_overrides(mapping: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of ``mapping`` with each ``a.b=value`` set; values are read as YAML scalars.

    Raises:
        ConfigError: an override is not of this form, or leads through a key that holds no mapping.

    """
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"a spec must be a mapping of keys to values, not {mapping!r}")
    result: dict[str, Any] = copy.deepcopy(dict(mapping))
    for override in overrides:
        path, equals, raw = override.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(f"cannot apply {override!r}: write key.key=value, as in loader.batch_size=128")
        target = result
        for key in keys[:-1]:
            if target.get(key) is None:
                target[key] = {}
            target = target[key]
            if not isinstance(target, dict):
                raise ConfigError(f"cannot apply {override!r}: {key} holds {target!r}, not a mapping")
        target[keys[-1]] = _scalar(raw, override)
    return result


def _scalar(raw: str, override: str) -> str | float | bool | None:
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot apply {override!r}: the value is not a YAML scalar ({error})") from error
    if value is not None and not isinstance(value, str | int | float | bool):
        raise ConfigError(f"cannot apply {override!r}: the value must be one scalar; put quotes around it")
    return value
