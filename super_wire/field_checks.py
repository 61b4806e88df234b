"""Convert dataclasses to and from JSON messages, checking every field."""

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

_COUNT_MAX = 2**63 - 1

_Message = TypeVar("_Message")


def mapping_of(message: Any, optional: Collection[str] = ()) -> dict[str, Any]:
    """Return a message's fields as JSON values, without ``optional`` fields that are empty."""
    values = {entry.name: getattr(message, entry.name) for entry in fields(message)}
    return {name: _json_of(value) for name, value in values.items() if value or name not in optional}


def message_in(
    cls: type[_Message],
    mapping: object,
    kind: str,
    reader: str,
    *,
    version: int,
    optional: Collection[str] = (),
    types: Mapping[str, Any] = MappingProxyType({}),
    count_max: int = _COUNT_MAX,
) -> _Message:
    """Build a message from JSON values. Raises ``ConfigError`` if a value does not match its annotation.

    ``super_{kind}`` in the mapping must equal ``version``. ``reader`` names the reading program in errors.
    ``types`` maps annotations to string enumerations or dataclasses of counts. No integer may exceed
    ``count_max``.
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
        if not (_CHECKS[annotation](value, count_max) if inner is None else _fits(value, inner)):
            allowed = "lower-case hex digits" if annotation == "bytes" else annotation
            if "int" in annotation or "float" in annotation:
                allowed += f" with numbers from 0 to {count_max}"
            raise ConfigError(
                f"in a prefetch {kind}, {entry.name} must be {allowed}, not {reprlib.repr(value)}"
            )
        if inner is not None and issubclass(inner, Enum):
            value = inner(value)
        elif inner is not None:
            value = inner(**{bound.name: value[bound.name] for bound in fields(inner)})
        elif annotation == "bytes":
            value = bytes.fromhex(value)
        values[entry.name] = tuple(value) if annotation.startswith("tuple") else value
    return cls(**values)


def _json_of(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    # asdict() of the whole message would copy every item of every column.
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _is_count(value: object, count_max: int = _COUNT_MAX) -> bool:
    # isinstance() would accept True and False.
    return type(value) is int and 0 <= value <= count_max


def _are_counts(items: object, count_max: int) -> bool:
    # Calling _is_count() for each of thousands of items would cost more than parsing their JSON.
    if not isinstance(items, (list, tuple)) or not set(map(type, items)) <= {int}:
        return False
    return not items or 0 <= min(items) <= max(items) <= count_max


def _are_texts(items: object) -> bool:
    return isinstance(items, (list, tuple)) and all(issubclass(kind, str) for kind in set(map(type, items)))


def _is_hex(value: object) -> bool:
    try:
        # Refuse capitals and spaces, so that the same bytes always have the same text.
        return isinstance(value, str) and bytes.fromhex(value).hex() == value
    except ValueError:
        return False


def _fits(value: object, cls: Any) -> bool:
    if issubclass(cls, Enum):
        return isinstance(value, str) and value in set(cls)
    return isinstance(value, dict) and all(_is_count(value.get(entry.name)) for entry in fields(cls))


# Annotation -> check of a JSON value, whose integers must not exceed the second argument.
_CHECKS: dict[str, Callable[[Any, int], bool]] = {
    "str": lambda value, _: isinstance(value, str),
    "bytes": lambda value, _: _is_hex(value),
    "int": _is_count,
    "float": lambda value, most: _is_count(value, most) or (type(value) is float and 0 <= value < math.inf),
    "bool": lambda value, _: isinstance(value, bool),
    "tuple[str, ...]": lambda value, _: _are_texts(value),
    "tuple[int, ...]": _are_counts,
    "dict[str, str]": lambda value, _: isinstance(value, dict) and _are_texts([*value, *value.values()]),
}
