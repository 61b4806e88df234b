"""Read specs from YAML, override values with ``a.b=c``, and check them with pydantic."""

from __future__ import annotations

import contextlib
import copy
import difflib
import re
from dataclasses import fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import yaml
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    TypeAdapter,
    ValidationError,
)

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Made = TypeVar("Made")

# For each dataclass of a spec: an unknown key and an infinite number are errors.
KNOWN_KEYS = ConfigDict(extra="forbid", allow_inf_nan=False)

# For a section: a YAML key with nothing below it is null.
NULL_IS_EMPTY = BeforeValidator(lambda value: {} if value is None else value)

Whole = Annotated[int, Strict()]
AtLeastZero = Annotated[Whole, Field(ge=0)]
AtLeastOne = Annotated[Whole, Field(ge=1)]
# Not strict: YAML 1.1 reads 1e-3, which has no point, as text.
PositiveNumber = Annotated[float, Field(gt=0)]
NonNegativeNumber = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, Strict(), StringConstraints(pattern=r"\S")]
ListOfMappings = tuple[dict[str, Any], ...]
# Names of arms and trials become folders of runs.
_FolderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
# Mappings by a name that is valid as a folder. Their content is checked elsewhere.
NamedMappings = Annotated[dict[_FolderName, Annotated[dict[str, Any], NULL_IS_EMPTY]], NULL_IS_EMPTY]


def one_of(allowed: tuple[str, ...], or_like: str = "") -> BeforeValidator:
    """Make a validator for text that is one of the allowed names, or fully matches a pattern."""

    def check(value: object) -> object:
        if value not in allowed and not (or_like and re.fullmatch(or_like, str(value))):
            raise ValueError(f"must be one of {', '.join(allowed)}, not {value!r}{_close(value, allowed)}")
        return value

    return BeforeValidator(check)


def build(cls: type[Made], mapping: object) -> Made:
    """Make a spec from plain values. Missing keys take their defaults."""
    try:
        return TypeAdapter(cls).validate_python(mapping)
    except ValidationError as error:
        raise ConfigError(_message(cls, error.errors()[0])) from error


_VALUES_MAX = 100_000
_MAPPING = "must be a mapping of keys to values"
# By pydantic's error type, where its message is long or mentions Python.
_REASONS = {
    "greater_than": "must be above {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be below {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "too_short": "must contain at least {min_length} entry",
    "bool_type": "must be true or false",
    "dict_type": _MAPPING,
    "dataclass_type": _MAPPING,
}


def _message(cls: type, fault: Mapping[str, Any]) -> str:
    own = fault.get("ctx", {}).get("error")
    # A dataclass's own check raised it: the message is complete.
    if isinstance(own, ConfigError):
        return str(own)
    words = [word for word in fault["loc"] if word != "[key]"]
    if fault["type"] in ("unexpected_keyword_argument", "invalid_key"):
        return _unknown(cls, words)
    if own is not None:
        return f"{_dotted(words)} {own}"
    reason = _REASONS.get(fault["type"], fault["msg"].replace("Input should", "must"))
    return f"{_dotted(words) or 'a spec'} {reason.format(**fault.get('ctx', {}))}, not {fault['input']!r:.80}"


def _dotted(words: list[str | int]) -> str:
    text = "".join(f"[{word}]" if isinstance(word, int) else f".{word}" for word in words)
    return text.removeprefix(".")


def _unknown(cls: Any, words: list[str | int]) -> str:
    # Follow the path to the dataclass of the section, whose keys are allowed here.
    for section in words[:-1]:
        if isinstance(section, str):
            kind = get_type_hints(cls)[section]
            cls = kind if is_dataclass(kind) else next(part for part in get_args(kind) if is_dataclass(part))
    name = _dotted([*words[:-1], str(words[-1])])
    known = tuple(_dotted([*words[:-1], entry.name]) for entry in fields(cls))
    return f"unknown key {name}{_close(name, known)}; allowed here: {', '.join(known)}"


def _close(name: object, allowed: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(str(name), allowed, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


class _Loader(yaml.SafeLoader):
    """A loader that rejects duplicate keys, and aliases that expand to too many values."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._counts: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        # The values of an alias count each time: nested aliases grow exponentially.
        is_alias = self.check_event(yaml.AliasEvent)
        node: yaml.Node | None = super().compose_node(parent, index)
        if isinstance(node, yaml.CollectionNode) and not is_alias:
            parts = node.value if isinstance(node, yaml.SequenceNode) else chain.from_iterable(node.value)
            # A list or mapping that has no count yet contains itself, without end.
            counts = (
                1 if isinstance(part, yaml.ScalarNode) else self._counts.get(id(part), _VALUES_MAX)
                for part in parts
            )
            self._counts[id(node)] = count = 1 + sum(counts)
            if count > _VALUES_MAX:
                reason = f"its aliases expand to more than {_VALUES_MAX:,} values"
                raise yaml.composer.ComposerError(None, None, reason, node.start_mark)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 # yaml's
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, TypeError, KeyError) as error:  # a number of 5,000 digits, day 45
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        keys = set()
        for key, _ in node.value:  # merged keys come later, and may be repeated
            text = key.value if isinstance(key, yaml.ScalarNode) else None
            if text is not None and (key.tag, text) in keys and text != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {text[:80]!r} occurs twice", key.start_mark
                )
            keys.add((key.tag, text))
        return super().construct_mapping(node, deep)


def load_yaml(text: str, name: str) -> Any:
    """Parse YAML of plain values. Errors refer to the text as ``name``.

    Raises:
        ConfigError: it is not YAML, is nested too deeply, repeats a key, or contains an unreasonable value.
    """
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except RecursionError as error:
        line = loader.line + 1 if loader else 1
        raise ConfigError(f"{name} cannot be read as YAML: line {line} is nested too deeply") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{name} cannot be read as YAML: line {line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} cannot be read as YAML: {error}") from error


class SpecFolder:
    """The specs of a package, as YAML files in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, name: str | Path) -> Path:
        """Find a spec by its path, or by the bare name of a file in the folder."""
        path = Path(name).expanduser()
        if path.is_file():
            return path
        built_in = {file.stem: file for file in sorted(self._folder.glob("*.yaml"))}
        if str(name) in built_in:
            return built_in[str(name)]
        raise ConfigError(f"no spec at {path}; use a YAML file or a built-in spec: {', '.join(built_in)}")

    @contextlib.contextmanager
    def opened(self, name: str | Path) -> Iterator[dict[str, Any]]:
        """Yield the content of a spec's YAML. Errors in the block mention the file."""
        path = self.find(name)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the spec {path}: {error}") from error
        content = load_yaml(text, f"the spec {path}")
        if not isinstance(content, dict | None):
            raise ConfigError(f"{path}: a spec {_MAPPING}, not {content!r:.80}")
        try:
            yield content or {}
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error


def apply_overrides(mapping: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy with each ``a.b=value`` set, reading values as YAML, or raise ConfigError."""
    result = dict(mapping)
    for override in overrides:
        path, equals, raw = override.partition("=")
        value = load_yaml(raw, f"the value of {path[:80]}")
        if not equals:
            raise ConfigError(
                f"cannot apply {override[:80]!r}: use key.key=value, as in loader.batch_size=128"
            )
        result = apply_values(result, {path.strip(): value})
    return result


def apply_values(mapping: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``mapping`` with values set by dotted key, such as ``loader.kind``."""
    result: dict[str, Any] = copy.deepcopy(dict(mapping))
    for path, value in values.items():
        keys = str(path).split(".")
        if not all(keys):
            raise ConfigError(f"cannot set {path!r}: use dotted keys, as in loader.batch_size")
        target = result
        for key in keys[:-1]:
            if target.get(key) is None:
                target[key] = {}
            target = target[key]
            if not isinstance(target, dict):
                raise ConfigError(f"cannot set {path!r}: {key} is {target!r}, not a mapping")
        # Specs made from one mapping must not share values.
        target[keys[-1]] = copy.deepcopy(value)
    return result
