"""Turns plain mappings into frozen dataclasses, field by field, with errors that name the key and the remedy.

A dataclass declares its fields with the functions below (`whole`, `number`, `text`, ...), which keep a check
in the field's metadata; `build` applies them. What the keys mean is left to `experiments.spec`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = [
    "build",
    "choice",
    "mappings",
    "number",
    "optional_mappings",
    "optional_number",
    "optional_text",
    "optional_whole",
    "section",
    "sections",
    "text",
    "truth",
    "whole",
]

Made = TypeVar("Made", bound="DataclassInstance")
Check = Callable[[object, str], object]

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)


def whole(default: int, *, at_least: int) -> int:
    """Declare a field that holds a whole number."""

    def check(value: object, key: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise ConfigError(f"{key} must be a whole number of at least {at_least}, not {value!r}")
        return value

    return field(default=default, metadata={"check": check})


def optional_whole(*, at_least: int) -> int | None:
    """Declare a field that holds a whole number or null, null if left out."""

    def check(value: object, key: str) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
            raise ConfigError(f"{key} must be a whole number of at least {at_least} or null, not {value!r}")
        return value

    return field(default=None, metadata={"check": check})


def number(default: float, *, above: float | None = None, at_least: float | None = None) -> float:
    """Declare a field that holds a finite number within a bound."""
    bound = f" above {above:g}" if above is not None else ""
    bound += f" of at least {at_least:g}" if at_least is not None else ""

    def check(value: object, key: str) -> float:
        parsed = _to_float(value)
        if (
            not math.isfinite(parsed)
            or (above is not None and parsed <= above)
            or (at_least is not None and parsed < at_least)
        ):
            raise ConfigError(f"{key} must be a number{bound}, not {value!r}")
        return parsed

    return field(default=default, metadata={"check": check})


def optional_number(*, above: float) -> float | None:
    """Declare a field that holds a finite number above a bound, or null, null if left out."""

    def check(value: object, key: str) -> float | None:
        parsed = None if value is None else _to_float(value)
        if parsed is not None and not (math.isfinite(parsed) and parsed > above):
            raise ConfigError(f"{key} must be a number above {above:g} or null, not {value!r}")
        return parsed

    return field(default=None, metadata={"check": check})


def truth(*, default: bool) -> bool:
    """Declare a field that is true or false."""

    def check(value: object, key: str) -> bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{key} must be true or false, not {value!r}")
        return value

    return field(default=default, metadata={"check": check})


def text(default: str) -> str:
    """Declare a field that holds text, at least one character."""

    def check(value: object, key: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{key} must be text, not {value!r}")
        return value

    return field(default=default, metadata={"check": check})


def optional_text() -> str | None:
    """Declare a field that holds text or null, null if left out."""

    def check(value: object, key: str) -> str | None:
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise ConfigError(f"{key} must be text or null, not {value!r}")
        return value

    return field(default=None, metadata={"check": check})


def choice(default: str, allowed: tuple[str, ...]) -> str:
    """Declare a field that holds one of a few names."""

    def check(value: object, key: str) -> str:
        if not isinstance(value, str) or value not in allowed:
            hint = _did_you_mean(str(value), allowed)
            raise ConfigError(f"{key} must be one of {', '.join(allowed)}, not {value!r}{hint}")
        return value

    return field(default=default, metadata={"check": check})


def choices(default: str, allowed: tuple[str, ...], alone: str) -> str:
    """Declare a field that holds one or more of a few names in order, as a list or with commas between; kept
    in the latter form. ``alone`` goes with no other.
    """

    def check(value: object, key: str) -> str:
        names = value if isinstance(value, list) else str(value).split(",")
        names = [str(name).strip() for name in names]
        for name in names:
            if name not in (*allowed, alone):
                known = (alone, *allowed)
                hint = _did_you_mean(name, known)
                raise ConfigError(f"{key} must be one or more of {', '.join(known)}, not {name!r}{hint}")
        if not names or len(set(names)) < len(names) or (alone in names and len(names) > 1):
            raise ConfigError(f"{key} names each of {', '.join(allowed)} at most once, or {alone} alone")
        return ",".join(names)

    return field(default=default, metadata={"check": check})


def optional_mappings() -> tuple[dict[str, Any], ...] | None:
    """Declare a field that holds a list of mappings, whose content is another's to check, or null."""

    def check(value: object, key: str) -> tuple[dict[str, Any], ...] | None:
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(item, Mapping) for item in value):
            raise ConfigError(f"{key} must be a list of mappings or null, not {value!r}")
        return tuple(dict(item) for item in value)

    return field(default=None, metadata={"check": check})


def mappings() -> dict[str, dict[str, Any]]:
    """Declare a field that holds mappings by a name that can be a folder's; empty if left out.

    What they hold is another's to check.
    """

    def check(value: object, key: str) -> dict[str, dict[str, Any]]:
        named = {} if value is None else value
        if not isinstance(named, Mapping):
            raise ConfigError(f"{key} must be a mapping of names to mappings, not {value!r}")
        for name, content in named.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{key} has a name that is not of letters, digits, '.', '-' and '_': {name!r}"
                )
            if content is not None and not isinstance(content, Mapping):
                raise ConfigError(f"{key}.{name} must be a mapping of keys to values, not {content!r}")
        return {name: dict(content or {}) for name, content in named.items()}

    return field(default_factory=dict, metadata={"check": check})


def section(cls: type[Made]) -> dict[str, Check]:
    """Return the metadata of a field that holds a mapping, itself described by a dataclass; null is empty."""

    def check(value: object, key: str) -> Made:
        return build(cls, {} if value is None else value, key)

    return {"check": check}


def sections(cls: type[Made]) -> dict[str, Check]:
    """Return the metadata of a field that holds a list of mappings, at least one."""

    def check(value: object, key: str) -> tuple[Made, ...]:
        if not isinstance(value, list) or not value:
            raise ConfigError(f"{key} must be a list of mappings, at least one, not {value!r}")
        return tuple(build(cls, entry, f"{key}[{number}]") for number, entry in enumerate(value))

    return {"check": check}


def build(cls: type[Made], mapping: object, where: str = "") -> Made:
    """Make ``cls`` from a mapping.

    Args:
        cls: a dataclass whose fields were declared with the functions of this module.
        mapping: the values, as YAML gives them; what is missing takes its default.
        where: the dotted key of the mapping itself, for messages; empty at the top.

    Raises:
        ConfigError: a key is unknown or a value is not allowed.

    """
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{where or 'a spec'} must be a mapping of keys to values, not {mapping!r}")
    prefix = f"{where}." if where else ""
    checks: dict[str, Check] = {item.name: item.metadata["check"] for item in fields(cls)}
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        if key not in checks:
            raise ConfigError(
                f"unknown key {prefix}{key}{_did_you_mean(str(key), tuple(checks), prefix)}; "
                f"allowed here: {', '.join(prefix + name for name in checks)}",
            )
        values[key] = checks[key](value, prefix + key)
    return cls(**values)


def _to_float(value: object) -> float:
    """Return a number as float, else NaN. YAML 1.1 reads 1e-3, without a point, as text: it counts."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _did_you_mean(given: str, allowed: tuple[str, ...], prefix: str = "") -> str:
    close = difflib.get_close_matches(given, allowed, n=1)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""
