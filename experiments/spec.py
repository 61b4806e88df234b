"""What a run is: a YAML file turned into frozen dataclasses, checked when they are made.

Imports no torch, so that the command line can refuse a bad spec at once. The sections are in
`experiments.spec_sections`, how keys are checked in `experiments.schema`, how a run is carried out in
`experiments.run`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from superdl.experiments.schema import build, choice, choices, mappings, section, text, whole
from superdl.experiments.spec_sections import (
    CompareSpec,
    CostSpec,
    DataSpec,
    LoaderSpec,
    ModelSpec,
    OptimizerSpec,
    RecipeSpec,
    TrainingSpec,
)
from superdl.super_wire.errors import ConfigError

__all__ = [
    "DEVICES",
    "EXECUTORS",
    "Spec",
    "apply_overrides",
    "apply_values",
    "load_spec",
    "parse_spec",
    "spec_file",
]

DEVICES = ("auto", "cpu", "cuda")
EXECUTORS = ("local", "ray", "lambda")

_BUILT_IN_SPECS = Path(__file__).parent / "specs"


@dataclass(frozen=True, slots=True)
class Spec:
    """One run, whole. Relative paths are relative to the working directory.

    ``executor`` is how the embedded default runs functions, several names the cheapest first; auto: as
    ``SUPER_EXECUTOR`` says, else local. ``trials`` are runs that ``superdl compare`` has in each arm at once,
    values by dotted keys, by the trial's name; none: the run itself.
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
    training: TrainingSpec = field(default_factory=TrainingSpec, metadata=section(TrainingSpec))
    cost: CostSpec = field(default_factory=CostSpec, metadata=section(CostSpec))
    compare: CompareSpec = field(default_factory=CompareSpec, metadata=section(CompareSpec))
    trials: dict[str, dict[str, Any]] = mappings()

    def __post_init__(self) -> None:
        """Refuse a name that would not be one folder name, and functions that could not do their work."""
        if Path(self.name).name != self.name or self.name.startswith("."):
            raise ConfigError(f"name becomes part of a folder's name and must not be {self.name!r}")
        if self.executor == "auto":
            return
        if not self.loader.runs_functions:
            raise ConfigError(
                f"executor={self.executor}, but loader.kind {self.loader.kind} runs no functions"
            )
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


def load_spec(name: str | Path = "digits", overrides: Iterable[str] = (), *, quick: bool = False) -> Spec:
    """Read a spec file, apply ``a.b=c`` overrides and check the whole.

    A file may have a section ``quick``, values by dotted keys that make it a small one: they are checked
    always, and applied, before the overrides, if ``quick`` is asked for.

    Raises:
        ConfigError: the file is missing or not YAML, a key or a value is not allowed, or it has no ``quick``.

    """
    path = spec_file(name)
    try:
        mapping = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the spec {path}: {error}") from error
    try:
        full, small = _variants({} if mapping is None else mapping)
        return parse_spec(apply_overrides(_asked_for(full, small, quick=quick), overrides))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _variants(mapping: Any) -> tuple[Any, dict[str, Any] | None]:
    """A spec as it is, and its quick variant, checked, if it has one."""
    if not isinstance(mapping, Mapping) or "quick" not in mapping:
        return mapping, None
    values = mapping["quick"]
    if not isinstance(values, Mapping):
        raise ConfigError(f"quick must be a mapping of dotted keys to values, not {values!r}")
    full = {key: value for key, value in mapping.items() if key != "quick"}
    small = apply_values(full, values)
    parse_spec(small)
    return full, small


def _asked_for(full: Any, small: dict[str, Any] | None, *, quick: bool) -> Any:
    if quick and small is None:
        raise ConfigError("it has no section quick, so there is no quick variant of it")
    return small if quick else full


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
        _put(result, keys, _scalar(raw, override), override)
    return result


def apply_values(mapping: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``mapping`` with each value set at its dotted key, ``{"loader.kind": "torch"}``.

    Raises:
        ConfigError: a key is no text, or leads through a key that holds no mapping.

    """
    result: dict[str, Any] = copy.deepcopy(dict(mapping))
    for path, value in values.items():
        keys = path.split(".") if isinstance(path, str) else [""]
        if not all(keys):
            raise ConfigError(f"cannot set {path!r}: write dotted keys, as in loader.batch_size: 128")
        _put(result, keys, copy.deepcopy(value), f"{path}: {value}")
    return result


def _put(result: dict[str, Any], keys: list[str], value: Any, named: str) -> None:
    target = result
    for key in keys[:-1]:
        if target.get(key) is None:
            target[key] = {}
        target = target[key]
        if not isinstance(target, dict):
            raise ConfigError(f"cannot apply {named!r}: {key} holds {target!r}, not a mapping")
    target[keys[-1]] = value


def _scalar(raw: str, override: str) -> str | float | bool | None:
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot apply {override!r}: the value is not a YAML scalar ({error})") from error
    if value is not None and not isinstance(value, str | int | float | bool):
        raise ConfigError(f"cannot apply {override!r}: the value must be one scalar; put quotes around it")
    return value
