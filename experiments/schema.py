"""What all specs have in common: read from YAML, changed by ``a.b=c``, checked by pydantic, refused by name.

A spec is a frozen dataclass of pydantic whose fields have the types below. Which keys there are is left to
`experiments.spec` and `experiments.simulator.spec`.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import yaml
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "KNOWN_KEYS",
    "NULL_IS_EMPTY",
    "ListOfMappings",
    "NamedMappings",
    "NonNegativeNumber",
    "PositiveNumber",
    "SpecFolder",
    "Text",
    "apply_overrides",
    "apply_values",
    "build",
    "one_of",
    "some_of",
]

Made = TypeVar("Made")

KNOWN_KEYS = ConfigDict(extra="forbid", allow_inf_nan=False)
"""The configuration of each dataclass of a spec: an unknown key and an infinite number are errors."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


def _not_true_or_false(value: object) -> object:
    """To Python true is 1; in a spec it is a mistake."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {value!r}")  # noqa: TRY004  # pydantic passes no TypeError on
    return value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError(f"must be text, not {value!r}")
    return value


def _named_mappings(value: object) -> object:
    """Check the names, and take null for an empty mapping."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping of names to mappings, not {value!r}")  # noqa: TRY004  # the same
    for name in value:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"has a name that is not of letters, digits, '.', '-' and '_': {name!r}")
    return {name: {} if content is None else content for name, content in value.items()}


Whole = Annotated[int, Strict()]
AtLeastZero = Annotated[Whole, Field(ge=0)]
AtLeastOne = Annotated[Whole, Field(ge=1)]
Number = Annotated[float, BeforeValidator(_not_true_or_false)]
"""Text that is a number counts as one: YAML 1.1 reads 1e-3, which has no point, as text."""
PositiveNumber = Annotated[Number, Field(gt=0)]
NonNegativeNumber = Annotated[Number, Field(ge=0)]
Text = Annotated[str, Strict(), AfterValidator(_not_blank)]
ListOfMappings = tuple[dict[str, Any], ...]
NamedMappings = Annotated[dict[str, dict[str, Any]], BeforeValidator(_named_mappings)]
"""Mappings by a name that can be a folder's. What they hold is another's to check."""
NULL_IS_EMPTY = BeforeValidator(lambda value: {} if value is None else value)
"""For a section: in YAML a key with nothing below it is null."""


def one_of(allowed: tuple[str, ...]) -> BeforeValidator:
    """Make the check of text that is one of a few names."""

    def check(value: object) -> object:
        if not isinstance(value, str) or value not in allowed:
            close = _close_to(str(value), allowed)
            raise ValueError(f"must be one of {', '.join(allowed)}, not {value!r}{close}")
        return value

    return BeforeValidator(check)


def some_of(allowed: tuple[str, ...], alone: str) -> BeforeValidator:
    """Make the check of one or more names in order, in a list or with commas between; it keeps commas.

    ``alone`` is a name that goes with no other.
    """

    def check(value: object) -> str:
        names = [str(name).strip() for name in (value if isinstance(value, list) else str(value).split(","))]
        known = (alone, *allowed)
        for name in names:
            if name not in known:
                raise ValueError(
                    f"must be one or more of {', '.join(known)}, not {name!r}{_close_to(name, known)}"
                )
        if not names or len(set(names)) < len(names) or (alone in names and len(names) > 1):
            raise ValueError(f"names each of {', '.join(allowed)} at most once, or {alone} alone")
        return ",".join(names)

    return BeforeValidator(check)


def build(cls: type[Made], mapping: object) -> Made:
    """Make a spec from plain values, as YAML gives them; what is missing takes its default.

    Raises:
        ConfigError: a key is unknown or a value is not allowed; the message names the first of them.

    """
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"a spec must be a mapping of keys to values, not {mapping!r}")
    try:
        return TypeAdapter(cls).validate_python(mapping)
    except ValidationError as error:
        raise ConfigError(_message(cls, error.errors()[0])) from error


def _message(cls: type, fault: Mapping[str, Any]) -> str:
    """What pydantic found, in words that fit the key."""
    own = fault.get("ctx", {}).get("error")
    if isinstance(own, ConfigError):
        return str(own)
    words = [word for word in fault["loc"] if word != "[key]"]
    key = "".join(f"[{word}]" if isinstance(word, int) else f".{word}" for word in words).removeprefix(".")
    if fault["type"] in ("unexpected_keyword_argument", "invalid_key"):
        prefix, _, name = key.rpartition(".")
        return _unknown(cls, prefix, name.strip("[]"))
    if own is not None:
        return f"{key} {own}"
    reason = _REASONS.get(fault["type"], fault["msg"]).format(**fault.get("ctx", {}))
    return f"{key} {reason}, not {fault['input']!r}"


_REASONS = {
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "int_type": "must be a whole number",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "too_short": "must have at least {min_length} entry",
    "dict_type": "must be a mapping of keys to values",
    "dataclass_type": "must be a mapping of keys to values",
}
"""What pydantic finds, by its names of errors; for any other it says so itself."""


def _unknown(cls: type, where: str, name: str) -> str:
    """Name the keys that there are in the section ``where`` (``loader``, or ``jobs[0]`` of a list)."""
    for word in filter(None, where.split(".")):
        cls = _section_of(cls, word.partition("[")[0])
    prefix = f"{where}." if where else ""
    known = tuple(entry.name for entry in fields(cls))
    return (
        f"unknown key {prefix}{name}{_close_to(name, known, prefix)}; "
        f"allowed here: {', '.join(prefix + one for one in known)}"
    )


def _section_of(cls: Any, key: str) -> Any:
    """The dataclass of a section, or of the members of a list of them."""
    kind = get_type_hints(cls)[key]
    return kind if is_dataclass(kind) else next(part for part in get_args(kind) if is_dataclass(part))


def _close_to(name: str, allowed: tuple[str, ...], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, allowed, n=1)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""


class SpecFolder:
    """The specs that come with a package, as YAML files in one folder."""

    def __init__(self, folder: Path) -> None:
        """Look into ``folder`` when a spec is asked for."""
        self._folder = folder

    def find(self, name: str | Path) -> Path:
        """Find a spec: a path, or the bare name of one of the folder.

        Raises:
            ConfigError: there is no such file; the message lists the built-in names.

        """
        path = Path(name).expanduser()
        if path.is_file():
            return path
        built_in = {file.stem: file for file in sorted(self._folder.glob("*.yaml"))}
        if str(name) in built_in:
            return built_in[str(name)]
        raise ConfigError(f"no spec at {path}; give a YAML file or a built-in spec: {', '.join(built_in)}")

    @contextlib.contextmanager
    def opened(self, name: str | Path) -> Iterator[Any]:
        """Give what the YAML of a spec holds; an error within names the file.

        Raises:
            ConfigError: the file is missing or not YAML.

        """
        path = self.find(name)
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"cannot read the spec {path}: {error}") from error
        try:
            yield {} if content is None else content
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error


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
