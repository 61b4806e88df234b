"""Parsing of users' JSON and TOML. Any failure is one typed error, with file, position and reason."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from typing import TYPE_CHECKING, Any

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def read_json(path: Path, name: str = "") -> Any:
    """Read a file of JSON; errors call it ``name``, by default its path.

    Raises:
        ConfigError: it cannot be read, or as by :func:`load_json`.
        FileNotFoundError: there is none.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(f"{path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name or path} cannot be read: {error}") from error
    return load_json(text, name or str(path))


def load_json(text: str, name: str) -> Any:
    """Parse JSON, with each key of an object at most once; errors call the text ``name``.

    Raises:
        ConfigError: it is no JSON, nested too deep, or has a duplicate key or too large a number.
    """
    return _parsed(lambda: json.loads(text, object_pairs_hook=once_each), "JSON", name)


def load_toml(text: str, name: str) -> dict[str, Any]:
    """Parse TOML; errors are those of :func:`load_json`."""
    table: dict[str, Any] = _parsed(lambda: tomllib.loads(text), "TOML", name)
    return table


def _parsed(parse: Callable[[], Any], language: str, name: str) -> Any:
    try:
        return parse()
    except RecursionError as error:
        raise ConfigError(f"{name} cannot be read as {language}: it is nested too deep") from error
    except ValueError as error:  # the parsers' errors contain the line
        raise ConfigError(f"{name} cannot be read as {language}: {error}") from error


def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object's mapping; ``ValueError`` for a duplicate key."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key[:80]!r} is given twice")
    return mapping
