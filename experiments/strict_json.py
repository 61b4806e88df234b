"""JSON that every reader accepts: a number that is not finite (the loss of a diverged model) becomes null."""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["finite", "strict_json", "write_json"]


def strict_json(value: object, *, indent: int | None = None) -> str:
    """Return ``value``, made of mappings, sequences and scalars, as JSON text."""
    return json.dumps(finite(value), indent=indent, allow_nan=False)


def write_json(value: object, path: Path) -> None:
    """Write ``value`` as a JSON file; a reader sees the old file or the new one, never half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(strict_json(value, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def finite(value: object) -> object:
    """Return ``value`` with None in place of every number in it that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
