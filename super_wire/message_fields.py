"""Conversion of dataclasses to and from JSON messages, with a check of every field."""

from __future__ import annotations

import math
import reprlib
from dataclasses import asdict, fields, is_dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_Message = TypeVar("_Message")


def mapping_of(message: Any, optional: Collection[str] = ()) -> dict[str, Any]:
    """Return a message's fields as JSON values, except ``optional`` fields that are empty."""
    values = {entry.name: getattr(message, entry.name) for entry in fields(message)}
    # asdict() of the whole message would copy every item of every column.
    return {
        name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        for name, value in values.items()
        # A message that uses no optional field looks the same as before that field existed.
        if value or name not in optional
    }


def message_in(
    cls: type[_Message],
    mapping: object,
    kind: str,
    reader: str,
    *,
    version: int,
    optional: Collection[str] = (),
    types: Mapping[str, Any] = MappingProxyType({}),
) -> _Message:
    """Build a message from JSON values, each checked against its field's annotation, or raise ConfigError.

    ``super_{kind}`` in the mapping is its ``version``. ``reader`` is the program that reads it, for
    errors. ``types`` maps annotations of fields to their string enumerations and dataclasses of counts.
    """
    sent_version = mapping.get(f"super_{kind}") if isinstance(mapping, dict) else None
    if not isinstance(mapping, dict) or type(sent_version) is not int or sent_version != version:
        raise ConfigError(
            f"{reader} accepts {kind}s of version {version}, not {reprlib.repr(sent_version)}: deploy one "
            "version of SUPER"
        )
    values: dict[str, Any] = {}
    for entry in fields(cls):  # type: ignore[arg-type]  # a dataclass
        if entry.name not in mapping:
            if entry.name in optional:
                continue
            raise ConfigError(f"the prefetch {kind} has no field {entry.name!r}")
        value, annotation = mapping[entry.name], str(entry.type)
        inner = types.get(annotation)
        if not (_CHECKS[annotation](value) if inner is None else _fits(value, inner)):
            raise ConfigError(
                f"in a prefetch {kind}, {entry.name} must be {annotation} without negative numbers, not "
                f"{reprlib.repr(value)}"
            )
        if inner is not None and issubclass(inner, Enum):
            value = inner(value)
        elif inner is not None:
            value = inner(**{bound.name: value[bound.name] for bound in fields(inner)})
        values[entry.name] = tuple(value) if annotation.startswith("tuple") else value
    return cls(**values)


def _is_count(value: object) -> bool:
    # Not isinstance(): True and False are ints too.
    return type(value) is int and 0 <= value < 2**63


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are(items: object, is_valid: Callable[[object], bool]) -> bool:
    return isinstance(items, (list, tuple)) and all(map(is_valid, items))


def _fits(value: object, cls: Any) -> bool:
    if issubclass(cls, Enum):
        return _is_text(value) and value in set(cls)
    return isinstance(value, dict) and all(_is_count(value.get(entry.name)) for entry in fields(cls))


# annotation of a field -> check of its JSON value
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "str": _is_text,
    "int": _is_count,
    "float": lambda value: _is_count(value) or (type(value) is float and 0 <= value < math.inf),
    "bool": lambda value: isinstance(value, bool),
    "tuple[str, ...]": lambda value: _are(value, _is_text),
    "tuple[int, ...]": lambda value: _are(value, _is_count),
    "dict[str, str]": lambda value: isinstance(value, dict) and _are([*value, *value.values()], _is_text),
}
