"""JSON that every reader accepts: a number that is not finite (the loss of a diverged model) becomes null."""

from __future__ import annotations

import json
import math

__all__ = ["strict_json"]


def strict_json(value: object, *, indent: int | None = None) -> str:
    """Return ``value``, made of mappings, sequences and scalars, as JSON text."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
