"""The text form of a labels' dtype, for numbers, arrays and named fields.

| labels | text |
|---|---|
| numbers | numpy's name: ``int64`` |
| arrays of one shape | the name and the shape: ``float64[4]``, ``int64[2,3]`` |
| lists that vary by sample | the shape begins with a star: ``int64[*]``, ``float64[*,4]`` |
| named fields | a JSON object of these, in the order of the fields: ``{"age":"int64","box":"float64[4]"}`` |

:mod:`superdl.super_wire.labels` defines their bytes. Names are matched against a list, sizes are bounded and
nothing is evaluated, so text from the network gives no surprising dtype.
"""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

LABEL_KINDS = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "float32", "float64"}
)
"""Names of the number types in labels."""

MAX_LABEL_BYTES = 2**16
"""Bound on the bytes of one sample's label: a reply holds the labels of a batch."""

MAX_LABEL_FIELDS = 64

_MAX_TEXT = 2**14
_PLAIN = re.compile(r"([a-z]+[0-9]*)(?:\[((?:\*|[1-9][0-9]{0,5})(?:,[1-9][0-9]{0,5}){0,7})\])?")
_COUNT = np.dtype(np.uint32)


class LabelField(NamedTuple):
    """The type of labels or a field: a dtype and shape, or if it ``varies``, lists of them."""

    dtype: np.dtype[Any]
    varies: bool = False

    @property
    def of_row(self) -> np.dtype[Any]:
        """A sample's part of fixed size: the number, the array, or its list's length."""
        return _COUNT if self.varies else self.dtype


def label_dtype_text(fields: Mapping[str, LabelField]) -> str:
    """Return the text for labels of these named fields; unnamed labels have one field with an empty name.

    Raises:
        ConfigError: labels cannot have it.
    """
    texts = {name: _plain_text(field) for name, field in fields.items()}
    text = texts[""] if "" in texts else json.dumps(texts, separators=(",", ":"), ensure_ascii=False)
    label_fields_of(text)
    return text


def _plain_text(field: LabelField) -> str:
    shape = ["*"] * field.varies + [str(size) for size in field.dtype.shape]
    return field.dtype.base.name + (f"[{','.join(shape)}]" if shape else "")


def label_dtype_of(text: str) -> np.dtype[Any]:
    """Return the dtype of each sample's fixed part, for ``np.frombuffer``; see :func:`label_fields_of`."""
    fields = label_fields_of(text)
    if "" in fields:
        return fields[""].of_row
    return np.dtype([(name, field.of_row) for name, field in fields.items()])


@lru_cache(maxsize=64)
def label_fields_of(text: str) -> Mapping[str, LabelField]:
    """Parse the fields in a text, in order; unnamed labels have one field with an empty name.

    Raises:
        ConfigError: the text is invalid, or its labels would be too large; the message shows it.
    """
    try:
        return _read(text)
    except ValueError as error:
        raise ConfigError(f"labels of dtype {text[:200]!r} cannot be read: {error}") from error


def _read(text: str) -> dict[str, LabelField]:
    if len(text) > _MAX_TEXT:
        raise ValueError(f"its text has {len(text)} characters, more than {_MAX_TEXT}")
    fields = _fields(text) if text.startswith("{") else {"": _plain(text)}
    size = sum(field.of_row.itemsize for field in fields.values())
    if size > MAX_LABEL_BYTES:
        raise ValueError(f"a label has {size} bytes, more than {MAX_LABEL_BYTES}")
    return fields


def _plain(text: str) -> LabelField:
    match = _PLAIN.fullmatch(text)
    if match is None or match[1] not in LABEL_KINDS:
        raise ValueError(
            f"{text[:60]!r} is not one of {', '.join(sorted(LABEL_KINDS))}, with or without a shape"
        )
    sizes = match[2].split(",") if match[2] else []
    varies = sizes[:1] == ["*"]
    shape = tuple(map(int, sizes[varies:]))
    if math.prod(shape) > MAX_LABEL_BYTES:  # numpy would raise its own error for its own bounds
        raise ValueError(f"a label has {math.prod(shape)} numbers, more than {MAX_LABEL_BYTES} bytes")
    dtype = np.dtype((match[1], shape))
    if dtype.itemsize > MAX_LABEL_BYTES:
        raise ValueError(f"it has {dtype.itemsize} bytes, more than {MAX_LABEL_BYTES}")
    return LabelField(dtype, varies)


def _fields(text: str) -> dict[str, LabelField]:
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
    return {name: _plain(kind) for name, kind in zip(names, kinds, strict=True)}
