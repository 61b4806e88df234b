"""Packed labels of many samples: their dtype as text, and their bytes.

| labels | text |
|---|---|
| numbers | numpy's name: ``int64`` |
| arrays of one shape | the name and the shape: ``float64[4]``, ``int64[2,3]`` |
| lists that vary in length | the shape begins with a star: ``int64[*]``, ``float64[*,4]`` |
| named fields | a JSON object with the text of each field, in order: ``{"age":"int64","box":"float64[4]"}`` |

Fixed-size labels are packed as a numpy array in C order, without gaps between fields.
:class:`RaggedLabels` are packed as the number of samples (uint32), then one row per sample (with
the number of items as uint32 in place of each list), then the items of all samples, list by list.
"""

from __future__ import annotations

import json
import math
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

import numpy as np

from superdl.super_wire.display import clean_text
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


# Text from the network must not produce an unexpected dtype: names are listed here, sizes are bounded
# and nothing is evaluated.
LABEL_KINDS = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "float32", "float64"}
)

# Limit for a sample's label, because a reply contains the labels of a whole batch.
MAX_LABEL_BYTES = 2**16
MAX_LABEL_FIELDS = 64

_MAX_TEXT = 2**14
_PLAIN = re.compile(r"([a-z]+[0-9]*)(?:\[((?:\*|[1-9][0-9]{0,5})(?:,[1-9][0-9]{0,5}){0,7})\])?")
_COUNT = np.dtype(np.uint32)


class LabelField(NamedTuple):
    """The type of a label or field: a dtype with a shape, or a list of such items if ``varies`` is set."""

    dtype: np.dtype[Any]
    varies: bool = False

    @property
    def of_row(self) -> np.dtype[Any]:
        """The dtype of the fixed-size part: the number or array, or the length of the list."""
        return _COUNT if self.varies else self.dtype


def label_dtype_text(fields: Mapping[str, LabelField]) -> str:
    """Return the dtype of these fields as text. Unnamed labels have one field with an empty name."""
    texts = {}
    for name, field in fields.items():
        shape = ["*"] * field.varies + [str(size) for size in field.dtype.shape]
        texts[name] = field.dtype.base.name + (f"[{','.join(shape)}]" if shape else "")
    text = texts[""] if "" in texts else json.dumps(texts, separators=(",", ":"), ensure_ascii=False)
    label_fields_of(text)  # raises if a reader would refuse the labels
    return text


def label_dtype_of(text: str) -> np.dtype[Any]:
    """Return the dtype of the fixed-size part of a label, for ``np.frombuffer``."""
    fields = label_fields_of(text)
    if "" in fields:
        return fields[""].of_row
    return np.dtype([(name, field.of_row) for name, field in fields.items()])


@lru_cache(maxsize=64)
def label_fields_of(text: str) -> Mapping[str, LabelField]:
    """Return the fields in a dtype text, in order. Unnamed labels have one field with an empty name.

    Raises ``ConfigError`` if the text is invalid or its labels would be too large.
    """
    try:
        fields = _fields(text) if text.startswith("{") else {"": _plain(text)}
    except ValueError as error:
        raise ConfigError(f"labels of dtype {text[:200]!r} cannot be read: {error}") from error
    size = sum(field.of_row.itemsize for field in fields.values())
    if size > MAX_LABEL_BYTES:
        raise ConfigError(
            f"labels of dtype {text[:200]!r} have {size} bytes, more than the limit of {MAX_LABEL_BYTES}"
        )
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
    size = math.prod(shape) * np.dtype(match[1]).itemsize
    if size > MAX_LABEL_BYTES:  # checked first, because numpy has other errors for its own limits
        raise ValueError(f"a label has {size} bytes, more than the limit of {MAX_LABEL_BYTES}")
    return LabelField(np.dtype((match[1], shape)), varies)


def _fields(text: str) -> dict[str, LabelField]:
    if len(text) > _MAX_TEXT:
        raise ValueError(f"the text is {len(text)} characters long, more than the limit of {_MAX_TEXT}")
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    names = [name for name, _ in pairs]
    if not names or len(names) > MAX_LABEL_FIELDS or len(set(names)) != len(names) or "" in names:
        raise ValueError(f"expected 1 to {MAX_LABEL_FIELDS} fields with distinct names")
    kinds = [kind for _, kind in pairs]
    if not all(isinstance(kind, str) for kind in kinds):
        raise ValueError("fields must be numbers or arrays of numbers")
    return {name: _plain(kind) for name, kind in zip(names, kinds, strict=True)}


# All class names are sent in one gRPC message, whose default limit is 4 MiB.
MAX_CLASS_NAMES_BYTES = 2**21
_COUNT_BYTES = 4


def checked_classes(classes: object) -> tuple[str, ...]:
    """Return class names as a tuple, indexed by label. Raises ``ConfigError`` if they are invalid."""
    names = tuple(classes) if isinstance(classes, Sequence) and not isinstance(classes, str) else ()
    are_texts = all(isinstance(name, str) and name and clean_text(name) == name for name in names)
    if not names or not are_texts or len(set(names)) < len(names):
        raise ConfigError(
            "classes must be distinct names in the order of their labels, such as the classes of a training "
            f"set, not {str(classes)[:80]!r}. Omit classes if labels are numbers"
        )
    if sum(len(name.encode()) for name in names) > MAX_CLASS_NAMES_BYTES:
        raise ConfigError(f"class names may have at most {MAX_CLASS_NAMES_BYTES} bytes in total")
    return names


class RaggedLabels(Sequence[Any]):
    """Labels with one or more lists whose lengths vary by sample.

    ``labels[3]`` is the label of the fourth sample: a dict keyed by field name, in which each list is
    a (possibly empty) array of shape (items, ...). An unnamed label is just such an array.
    ``labels["boxes"]`` is one field of all samples. ``rows`` contains the number of items in place of each
    list. ``values`` maps the name of each list to the concatenated items of all samples.
    """

    def __init__(self, rows: NDArray[Any], values: Mapping[str, NDArray[Any]]) -> None:
        self.rows, self.values = rows, dict(values)
        self._ends = {name: np.cumsum(self.of_rows(name), dtype=np.int64) for name in values}

    @property
    def names(self) -> tuple[str, ...]:
        """The field names, or one empty name for unnamed labels."""
        return self.rows.dtype.names or ("",)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, item: Any) -> Any:
        """Return a field by name, a label by position, or the labels in a slice or an array of positions."""
        if isinstance(item, str):
            rows = self.of_rows(item)
            return RaggedLabels(rows, {"": self.values[item]}) if item in self.values else rows
        if isinstance(item, int | np.integer):
            by_name = {name: self._of_sample(name, range(len(self))[item]) for name in self.names}
            return by_name.get("", by_name)
        rows, values = self.rows[item], {}
        for name in self.values:
            ends, counts = self._ends[name][item], self.of_rows(name)[item].astype(np.int64)
            # The distance of an item from the end of its list stays the same.
            moved = np.repeat(ends - np.cumsum(counts), counts)
            values[name] = self.values[name][moved + np.arange(len(moved))]
        return RaggedLabels(rows, values)

    def __repr__(self) -> str:
        return f"<RaggedLabels of {len(self)} samples: {labels_text(self)}>"

    def of_rows(self, name: str) -> NDArray[Any]:
        """Return a field's column in ``rows``."""
        column: NDArray[Any] = self.rows[name] if name else self.rows
        return column

    def map(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> RaggedLabels:
        """Return the labels with ``change`` applied to the items of every list."""
        return RaggedLabels(self.rows, {name: change(items) for name, items in self.values.items()})

    def _of_sample(self, name: str, index: int) -> Any:
        row = self.of_rows(name)[index]
        if name not in self.values:
            return row
        end = self._ends[name][index]
        return self.values[name][end - row : end]


Labels: TypeAlias = "NDArray[Any] | RaggedLabels"


def labels_text(labels: Labels) -> str:
    """Return the labels' dtype as text. Raises ``ConfigError`` if it is not supported."""
    if not isinstance(labels, RaggedLabels):
        kind = labels.dtype
        named = {name: LabelField(kind[name]) for name in kind.names or ()}
        return label_dtype_text(named or {"": LabelField(np.dtype((kind, labels.shape[1:])))})
    fields = {
        name: LabelField(labels.rows.dtype[name] if name else labels.rows.dtype) for name in labels.names
    }
    for name, items in labels.values.items():
        fields[name] = LabelField(np.dtype((items.dtype, items.shape[1:])), varies=True)
    return label_dtype_text(fields)


def label_sizes(
    labels: Labels, text: str, indices: NDArray[np.int64] | slice = slice(None)
) -> NDArray[np.int64]:
    """Return the packed sizes in bytes of the labels at ``indices``, by default of all labels."""
    fields, row_bytes = label_fields_of(text), label_dtype_of(text).itemsize
    rows = labels.rows[indices] if isinstance(labels, RaggedLabels) else labels[indices]
    sizes = np.full(len(rows), row_bytes, dtype=np.int64)
    for name, field in fields.items():
        if field.varies:
            sizes += (rows[name] if name else rows).astype(np.int64) * field.dtype.itemsize
    return sizes


def pack_labels(labels: Labels, text: str) -> Iterator[bytes]:
    """Pack labels with the dtype described by ``text``, and yield the bytes in chunks."""
    if not isinstance(labels, RaggedLabels):
        yield labels.astype(label_dtype_of(text).base, copy=False).tobytes()
        return
    yield len(labels).to_bytes(_COUNT_BYTES, "little")
    yield labels.rows.tobytes()
    for name, items in labels.values.items():
        yield items.astype(label_fields_of(text)[name].dtype.base, copy=False).tobytes()


def unpack_labels(data: bytes, text: str, size: int | None = None) -> Labels:
    """Unpack labels as views of ``data``. Raises ``ConfigError`` unless there are ``size`` labels."""
    lists = {name: field.dtype for name, field in label_fields_of(text).items() if field.varies}
    rows, reason = label_dtype_of(text), ""
    try:
        labels = _unpack_ragged(data, text, rows, lists) if lists else np.frombuffer(data, dtype=rows)
        if size in {None, len(labels)}:
            return labels
    except ValueError as error:
        reason = f": {error}"
    samples = "samples" if size is None else f"{size} samples"
    raise ConfigError(
        f"cannot unpack {len(data)} bytes as the labels of {samples} of dtype {text[:200]!r}{reason}. Use "
        "the same version of SUPER on both sides"
    )


def _unpack_ragged(
    data: bytes, text: str, kind: np.dtype[Any], lists: Mapping[str, np.dtype[Any]]
) -> RaggedLabels:
    size, at = int.from_bytes(data[:_COUNT_BYTES], "little"), _COUNT_BYTES
    rows: NDArray[Any] = np.frombuffer(data, dtype=kind, count=size, offset=at)
    at, values = at + rows.nbytes, {}
    for name, of_item in lists.items():
        count = int((rows[name] if name else rows).sum())
        values[name] = np.frombuffer(data, dtype=of_item, count=count, offset=at)
        at += values[name].nbytes
    if at != len(data):
        raise ValueError(f"there are {len(data) - at} excess bytes")
    labels = RaggedLabels(rows, values)
    # The dtype does not bound the lengths of lists.
    if size and label_sizes(labels, text).max() > MAX_LABEL_BYTES:
        raise ValueError(f"a label has more than {MAX_LABEL_BYTES} bytes")
    return labels


def joined(parts: Sequence[Labels]) -> Labels:
    """Concatenate one or more parts of labels. The result is read-only."""

    def join(arrays: Sequence[Any]) -> NDArray[Any]:
        array: NDArray[Any] = np.concatenate(arrays)
        array.flags.writeable = False
        return array

    ragged = [part for part in parts if isinstance(part, RaggedLabels)]
    if not ragged:
        return join(parts)
    values = {name: join([part.values[name] for part in ragged]) for name in ragged[0].values}
    return RaggedLabels(join([part.rows for part in ragged]), values)


class SampleList(Sequence[tuple[str, Any]]):
    """A sequence of ``(path, label)`` pairs in catalog order, each created on access.

    A path is a file's path or an object's URL (``s3://bucket/key``), followed by ``::member`` for a member
    of an object. A label is an int or float, an array, a numpy record if it has fields, or a dict if a field
    varies in length. ``keys`` contains the concatenated keys, and ``lengths`` contains their lengths as
    little-endian uint32.
    """

    def __init__(self, bucket: str, keys: bytes, lengths: bytes, labels: Labels) -> None:
        self._below = bucket.removeprefix("file://").rstrip("/") + "/"
        # Each sample takes the length of its key plus 16 bytes.
        self._keys = keys
        self._ends = np.cumsum(np.frombuffer(lengths, dtype="<u4"), dtype=np.int64)
        self.labels = labels

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> tuple[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> tuple[str, Any] | list[tuple[str, Any]]:
        """Return one sample, or a list of the samples in a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for a list of {len(self)} samples")
        index %= len(self)
        begin = self._ends[index - 1] if index else 0
        label = self.labels[index]
        is_number = isinstance(label, np.number)
        # File names need not be UTF-8.
        key = os.fsdecode(self._keys[begin : self._ends[index]])
        return self._below + key, label.item() if is_number else label

    def __repr__(self) -> str:
        some = ", ".join(map(repr, self[:2]))
        return f"<SampleList of {len(self)}: {some}{', ...' if len(self) > 2 else ''}>"  # noqa: PLR2004
