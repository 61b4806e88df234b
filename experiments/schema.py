"""Read specs from YAML, apply ``a.b=c`` overrides, and validate them with pydantic."""

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

SpecT = TypeVar("SpecT")

# For the dataclasses of a spec. Unknown keys and infinite numbers are errors.
KNOWN_KEYS = ConfigDict(extra="forbid", allow_inf_nan=False)

# For sections. A YAML key with nothing below it is null.
NULL_IS_EMPTY = BeforeValidator(lambda value: {} if value is None else value)

Whole = Annotated[int, Strict()]
AtLeastZero = Annotated[Whole, Field(ge=0)]
AtLeastOne = Annotated[Whole, Field(ge=1)]
# Not strict, because YAML 1.1 reads 1e-3, without a point, as text.
PositiveNumber = Annotated[float, Field(gt=0)]
NonNegativeNumber = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, Strict(), StringConstraints(pattern=r"\S")]
ListOfMappings = tuple[dict[str, Any], ...]
# Names of arms and trials become folders of runs.
_FolderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
# Mappings by names that are valid as folders. Their content is checked elsewhere.
NamedMappings = Annotated[dict[_FolderName, Annotated[dict[str, Any], NULL_IS_EMPTY]], NULL_IS_EMPTY]


def one_of(allowed: tuple[str, ...], or_like: str = "") -> BeforeValidator:
    """Return a validator that accepts ``allowed`` names and text that fully matches the regex ``or_like``."""

    def check(value: object) -> object:
        if value not in allowed and not (or_like and re.fullmatch(or_like, str(value))):
            raise ValueError(f"must be one of {', '.join(allowed)}, not {value!r}{_close(value, allowed)}")
        return value

    return BeforeValidator(check)


def build(cls: type[SpecT], mapping: object) -> SpecT:
    """Create a spec from plain values. Missing keys get their defaults. Raises ConfigError."""
    try:
        return TypeAdapter(cls).validate_python(mapping)
    except ValidationError as error:
        raise ConfigError(_message(cls, error.errors()[0])) from error


_MAX_VALUES = 100_000
_MAPPING = "must be a mapping of keys to values"
# For pydantic's messages that mention Python.
_REASONS = {
    "too_short": "must have at least one entry",
    "bool_type": "must be true or false",
    "dict_type": _MAPPING,
    "dataclass_type": _MAPPING,
}


def _message(cls: type, fault: Mapping[str, Any]) -> str:
    own = fault.get("ctx", {}).get("error")
    # Raised by a dataclass's own check, with a complete message.
    if isinstance(own, ConfigError):
        return str(own)
    words = [word for word in fault["loc"] if word != "[key]"]
    if fault["type"] in ("unexpected_keyword_argument", "invalid_key"):
        return _unknown(cls, words)
    if own is not None:
        return f"{_dotted(words)} {own}"
    reason = _REASONS.get(fault["type"], fault["msg"].replace("Input should", "must"))
    return f"{_dotted(words) or 'a spec'} {reason}, not {fault['input']!r:.80}"


def _dotted(words: list[str | int]) -> str:
    text = "".join(f"[{word}]" if isinstance(word, int) else f".{word}" for word in words)
    return text.removeprefix(".")


def _unknown(cls: Any, words: list[str | int]) -> str:
    # Find the dataclass of the section, whose fields are the allowed keys.
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
    """A YAML loader that rejects duplicate keys, and aliases that expand to too many values."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._counts: dict[int, int] = {}  # values in each collection, by its id

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        # Count an alias's values each time it is used, because nested aliases grow exponentially.
        is_alias = self.check_event(yaml.AliasEvent)
        node: yaml.Node | None = super().compose_node(parent, index)
        if isinstance(node, yaml.CollectionNode) and not is_alias:
            parts = node.value if isinstance(node, yaml.SequenceNode) else chain.from_iterable(node.value)
            # A collection without a count yet contains itself, and is infinite.
            counts = (
                1 if isinstance(part, yaml.ScalarNode) else self._counts.get(id(part), _MAX_VALUES)
                for part in parts
            )
            self._counts[id(node)] = count = 1 + sum(counts)
            if count > _MAX_VALUES:
                reason = f"its aliases expand to more than {_MAX_VALUES:,} values"
                raise yaml.composer.ComposerError(None, None, reason, node.start_mark)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002  # yaml's signature
        try:
            return super().construct_object(node, deep)
        except (ValueError, OverflowError, TypeError, KeyError) as error:  # 5,000 digits, day 45
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        keys = set()
        for key, _ in node.value:  # << adds keys later, which may be overridden
            text = key.value if isinstance(key, yaml.ScalarNode) else None
            if text is not None and (key.tag, text) in keys and text != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {text[:80]!r} occurs twice", key.start_mark
                )
            keys.add((key.tag, text))
        return super().construct_mapping(node, deep)


def load_yaml(text: str, name: str) -> Any:
    """Parse YAML into plain values. Error messages refer to the text as ``name``.

    Raises:
        ConfigError: the text is not YAML, is nested too deeply, repeats a key, or contains an invalid value.
    """
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except RecursionError as error:
        line = loader.line + 1 if loader else 1
        raise ConfigError(f"cannot read {name} as YAML: line {line} is nested too deeply") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"cannot read {name} as YAML: line {line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"cannot read {name} as YAML: {error}") from error


@contextlib.contextmanager
def opened_spec(name: str | Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the content of a spec, given as a YAML file or as the stem of one in ``folder``.

    Messages of ConfigErrors raised in the block are prefixed with the file's path.
    """
    path = Path(name).expanduser()
    if not path.is_file():
        built_in = {file.stem: file for file in sorted(folder.glob("*.yaml"))}
        if str(name) not in built_in:
            raise ConfigError(
                f"there is no spec at {path}. Use a YAML file or a built-in spec: {', '.join(built_in)}."
            )
        path = built_in[str(name)]
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
    """Return a copy of ``mapping`` with each ``a.b=value`` applied. Values are YAML. Raises ConfigError."""
    result = dict(mapping)
    for override in overrides:
        path, equals, raw = override.partition("=")
        value = load_yaml(raw, f"the value of {path[:80]}")
        if not equals:
            raise ConfigError(
                f"cannot apply {override[:80]!r}. Use key.key=value, as in loader.batch_size=128."
            )
        result = apply_values(result, {path.strip(): value})
    return result


def apply_values(mapping: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``mapping`` updated with ``values``, by dotted keys such as ``loader.kind``."""
    result: dict[str, Any] = copy.deepcopy(dict(mapping))
    for path, value in values.items():
        keys = str(path).split(".")
        if not all(keys):
            raise ConfigError(f"cannot set {path!r}. Use dotted keys, as in loader.batch_size.")
        target = result
        for key in keys[:-1]:
            if target.get(key) is None:
                target[key] = {}
            target = target[key]
            if not isinstance(target, dict):
                raise ConfigError(f"cannot set {path!r}: {key} is {target!r}, not a mapping")
        target[keys[-1]] = copy.deepcopy(value)
    return result
