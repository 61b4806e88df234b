"""Parsing of user input: JSON, TOML, durations and sizes. Errors name the input."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises ``FileNotFoundError`` if it is missing, and ``ConfigError`` if invalid."""
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(f"{path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return load_json(text, str(path))


def load_json(text: str, name: str) -> Any:
    """Parse JSON without duplicate keys. Raises ``ConfigError``, which refers to the text as ``name``."""
    return _parsed(lambda: json.loads(text, object_pairs_hook=once_each), "JSON", name)


def load_toml(text: str, name: str) -> dict[str, Any]:
    """Parse TOML. Raises ``ConfigError``, which refers to the text as ``name``."""
    table: dict[str, Any] = _parsed(lambda: tomllib.loads(text), "TOML", name)
    return table


def _parsed(parse: Callable[[], Any], language: str, name: str) -> Any:
    try:
        return parse()
    except RecursionError as error:
        raise ConfigError(f"cannot parse {name} as {language}: nested too deeply") from error
    except ValueError as error:  # the parsers' errors contain the line
        raise ConfigError(f"cannot parse {name} as {language}: {error}") from error


def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from the pairs of a JSON object. Raises ``ValueError`` for a duplicate key."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key[:80]!r} appears twice")
    return mapping


def seconds_from(environment: Mapping[str, str], name: str, default: float) -> float:
    """Read a positive number of seconds from a variable. Raises ``ConfigError`` if it is invalid."""
    text = environment.get(name) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e6:  # noqa: PLR2004  # 11 days or more are a mistake
        raise ConfigError(
            f"{name} must be a number of seconds greater than 0, such as {default:g}, not {text!r}"
        )
    return seconds


def parse_bytes(text: str, name: str) -> int:
    """Parse a size in bytes. Units are powers of 1024, as in Redis's settings. 0 means the default.

    >>> parse_bytes("1.5gb", "cache_bytes")
    1610612736
    """
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([kmgt]?)b?\s*", text.lower())
    size_bytes = int(Fraction(match[1]) * _UNITS[match[2]]) if match else -1
    # A plain 4 probably means 4gb.
    if size_bytes < 2**20 and size_bytes != 0:
        raise ConfigError(f"{name} must be a size of at least 1mb, such as 4gb or 500mb, not {text[:80]!r}")
    return size_bytes
