"""How the dtype of labels is written where it travels: as text, for numbers, arrays and named fields.

| labels | text |
|---|---|
| numbers | numpy's name: ``int64`` |
| arrays of one shape | the name and the shape: ``float64[4]``, ``int64[2,3]`` |
| named fields | a JSON object of these, in the order of the fields: ``{"age":"int64","box":"float64[4]"}`` |

The bytes of labels are C-order, without gaps between fields. Names are matched against a list, sizes are
bounded and nothing is evaluated, so text off the network makes no surprising dtype.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import Any

import numpy as np

from superdl.super_wire.errors import ConfigError

__all__ = ["LABEL_KINDS", "MAX_LABEL_BYTES", "MAX_LABEL_FIELDS", "label_dtype_of", "label_dtype_text"]

LABEL_KINDS = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "float32", "float64"}
)
"""Names of the numbers that labels are made of."""

MAX_LABEL_BYTES = 2**16
"""Bound on the bytes of one sample's label: a reply holds the labels of a batch."""

MAX_LABEL_FIELDS = 64

_MAX_TEXT = 2**14
_PLAIN = re.compile(r"([a-z]+[0-9]*)(?:\[([1-9][0-9]{0,5}(?:,[1-9][0-9]{0,5}){0,7})\])?")


def label_dtype_text(dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> str:
    """The text of labels of a dtype, each of a shape; one with named fields has the shape ``()``.

    Raises:
        ConfigError: labels cannot have it.
    """
    text = _plain_text(dtype, shape)
    if dtype.names is not None:
        fields = {name: _plain_text(dtype[name].base, dtype[name].shape) for name in dtype.names}
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    label_dtype_of(text)
    return text


def _plain_text(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return dtype.name + (f"[{','.join(map(str, shape))}]" if shape else "")


@lru_cache(maxsize=64)
def label_dtype_of(text: str) -> np.dtype[Any]:
    """The numpy dtype that a text names; arrays are a dtype with a shape, as ``np.frombuffer`` takes it.

    Raises:
        ConfigError: it is no such text, or labels of it would be too large; the message shows it.
    """
    try:
        return _read(text)
    except ValueError as error:
        raise ConfigError(f"labels of dtype {text[:200]!r} cannot be read: {error}") from error


def _read(text: str) -> np.dtype[Any]:
    if len(text) > _MAX_TEXT:
        raise ValueError(f"its text has {len(text)} characters, more than {_MAX_TEXT}")
    dtype = _fields(text) if text.startswith("{") else _plain(text)
    if dtype.itemsize > MAX_LABEL_BYTES:
        raise ValueError(f"a label has {dtype.itemsize} bytes, more than {MAX_LABEL_BYTES}")
    return dtype


def _plain(text: str) -> np.dtype[Any]:
    match = _PLAIN.fullmatch(text)
    if match is None or match[1] not in LABEL_KINDS:
        raise ValueError(
            f"{text[:60]!r} is not one of {', '.join(sorted(LABEL_KINDS))}, with or without a shape"
        )
    shape = tuple(map(int, match[2].split(","))) if match[2] else ()
    if math.prod(shape) > MAX_LABEL_BYTES:  # numpy has bounds of its own, and other words for them
        raise ValueError(f"a label has {math.prod(shape)} numbers, more than {MAX_LABEL_BYTES} bytes")
    return np.dtype((match[1], shape)) if shape else np.dtype(match[1])


def _fields(text: str) -> np.dtype[Any]:
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    names = [name for name, _ in pairs]
    if not names or len(names) > MAX_LABEL_FIELDS or len(set(names)) != len(names) or "" in names:
        raise ValueError(f"it needs 1 to {MAX_LABEL_FIELDS} fields, each with a name of its own")
    kinds = [kind for _, kind in pairs]
    if not all(isinstance(kind, str) for kind in kinds):
        raise ValueError("fields are numbers or arrays of them")
    return np.dtype([(name, _plain(kind)) for name, kind in zip(names, kinds, strict=True)])
