"""Check a key list's label column, and pack its Arrow arrays as numpy arrays.

A label is a number, a string (a class name), a list of numbers (nested for arrays), or an object whose
fields are any of these.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from superdl.coordinator.catalog.key_list_columns import (
    MIXED,
    VARIES,
    BadRowError,
    check_rows,
    coded,
    is_text,
    other_fields,
)
from superdl.coordinator.catalog.members import narrowed
from superdl.super_wire.labels import MAX_CLASS_NAMES_BYTES, MAX_LABEL_BYTES, MAX_LABEL_FIELDS, RaggedLabels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from superdl.super_wire.labels import Labels

_NUMBERS_MAX = MAX_LABEL_BYTES // 8
_MAX_NDIM = 8
_MAX_NAME_BYTES = 200
_WHAT = "labels must all be numbers, all strings, all lists of numbers or all objects with such fields"
_MAY_VARY = 'if the length of a list varies by row, its name must end in []: "boxes[]", "label[]"'
_SHOWN = 60  # characters of an invalid label in a message


class _ClassNames:
    """Class names and their codes, in order of appearance. If names are ``given``, only these are valid."""

    def __init__(self, given: Sequence[str]) -> None:
        self.given = dict.fromkeys(given)
        self.code_of: dict[str, int] = {}
        self._bytes = 0

    def code(self, name: str) -> int:
        """Return a name's code. Raises ``ValueError`` if the name is invalid."""
        code = self.code_of.get(name)
        if code is None:
            self._bytes += len(name.encode())
            if not name:
                raise ValueError("the label is empty")
            if self.given and name not in self.given:
                raise ValueError(
                    f"the label {name[:_SHOWN]!r} is not among the {len(self.given)} given classes"
                )
            if self._bytes > MAX_CLASS_NAMES_BYTES:
                raise ValueError(f"the class names take more than {MAX_CLASS_NAMES_BYTES} bytes in total")
            code = self.code_of[name] = len(self.code_of)
        return code

    def names(self) -> tuple[str, ...]:
        """Return the names in label order: as given, or else sorted. Empty if no label is a name."""
        return tuple(self.given or sorted(self.code_of)) if self.code_of else ()

    def labels(self) -> NDArray[np.int64]:
        label_of = {name: label for label, name in enumerate(self.names())}
        return np.array([label_of[name] for name in self.code_of], dtype=np.int64)


class LabelColumn:
    """Collects labels, using a few bytes for each. If ``classes`` are given, no other names are valid."""

    def __init__(self, classes: Sequence[str] = ()) -> None:
        self._names = _ClassNames(classes)
        # By name. A label that is not an object is a field without a name.
        self._fields: dict[str, _Field] = {}

    def extend(self, labels: Any, numbers: NDArray[np.int64], *, varies: bool) -> None:
        """Add an Arrow array with the labels of some rows. With ``varies``, its lists may have any length.

        Raises ``BadRowError`` if a label is invalid or does not match the previous labels.
        """
        import pyarrow as pa

        columns = {VARIES if varies else "": labels}
        if pa.types.is_struct(labels.type) and not varies:
            columns = self._columns_of(labels, numbers)
        if not self._fields:
            self._fields = {name: _Field(name, self._names) for name in columns}
        # The first row determines the type. Otherwise, a typo would turn all numbers into class names.
        if columns.keys() != self._fields.keys():
            raise BadRowError(int(numbers[0]), other_fields(self._fields))
        sizes = np.zeros(len(labels), dtype=np.int64)
        for name, field in self._fields.items():
            try:
                sizes += field.extend(columns[name], numbers)
            except BadRowError as error:
                where = f"field {name[:_SHOWN]!r}: " if name.removesuffix(VARIES) else ""
                raise BadRowError(error.number, f"{where}{error.reason}") from error
        check_rows(
            sizes > MAX_LABEL_BYTES,
            numbers,
            lambda at: f"a label may take at most {MAX_LABEL_BYTES} bytes (8 per number), not {sizes[at]}",
        )
        if len(texts := [name for name, field in self._fields.items() if field.is_text]) > 1:
            rule = "only one field of a label may be a string (the class name)"
            raise BadRowError(int(numbers[0]), f"{rule}; these are strings: {', '.join(texts)[:400]}")

    def _columns_of(self, labels: Any, numbers: NDArray[np.int64]) -> dict[str, Any]:
        check_rows(labels.is_null(), numbers, f"{_WHAT}, not null")
        names = [labels.type.field(index).name for index in range(labels.type.num_fields)]
        columns = dict(zip(names, labels.flatten(), strict=True))
        bare = [name.removesuffix(VARIES) for name in names]
        if not 0 < len(names) <= MAX_LABEL_FIELDS:
            rule = f"a label that is an object must have 1 to {MAX_LABEL_FIELDS} fields"
            raise BadRowError(int(numbers[0]), f"{rule}, not {len(names)}")
        for name in bare:
            if not 0 < len(name.encode()) <= _MAX_NAME_BYTES or bare.count(name) > 1:
                rule = f"a field's name must be 1 to {_MAX_NAME_BYTES} bytes long and appear only once"
                raise BadRowError(int(numbers[0]), f"{rule}; got {name[:_SHOWN]!r}")
        for column in columns.values():
            check_rows(column.is_null(), numbers, f"{_WHAT}, not null")
        return columns

    def finish(self) -> tuple[Labels, tuple[str, ...]]:
        """Return all labels and the class names (none for numbers). There must be at least one label.

        Labels are int64 or float64 of shape (rows,), or (rows, ...) if each label is a list. Objects have
        a structured dtype. If the length of a list varies by row, the labels are ``RaggedLabels``.
        """
        columns, values = dict[str, NDArray[Any]](), dict[str, NDArray[Any]]()
        for field in self._fields.values():
            columns[field.name] = field.finish()
            if field.varies:
                values[field.name], columns[field.name] = columns[field.name], np.concatenate(field.counts)
        rows = columns.get("")
        if rows is None:
            dtype = [(name, column.dtype, column.shape[1:]) for name, column in columns.items()]
            rows = np.empty(len(next(iter(columns.values()))), dtype=dtype)
            for name, column in columns.items():
                rows[name] = column
        return (RaggedLabels(rows, values) if values else rows), self._names.names()

    @property
    def unseen(self) -> list[str]:
        """Return the given classes that no label belongs to."""
        return [name for name in self._names.given if name not in self._names.code_of]


class _Field:
    """A field of the labels: numbers, class names, arrays of numbers, or lists of any of these."""

    def __init__(self, name: str, names: _ClassNames) -> None:
        self.name, self.varies = name.removesuffix(VARIES), name.endswith(VARIES)
        self.is_text = False
        # Lengths of lists that vary, by batch.
        self.counts: list[NDArray[np.uint32]] = []
        self._names = names
        self._shape: tuple[int, ...] | None = None
        self._pieces: list[NDArray[Any]] = []

    def extend(self, labels: Any, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Add the labels of some rows, and return their sizes in bytes."""
        if not self.varies:
            self._add(labels, numbers)
            return np.full(len(labels), 8 * math.prod(self._shape or ()))
        bad = labels.is_null() if _is_list(labels.type) else np.ones(len(labels))
        check_rows(bad, numbers, "it is not a list, although its name ends in []")
        items, counts = _opened(labels)
        if len(items):
            self._add(items, np.repeat(numbers, counts))
        self.counts.append(counts.astype(np.uint32))
        return 4 + counts * 8 * math.prod(self._shape or ())

    def _add(self, values: Any, numbers: NDArray[np.int64]) -> None:
        import pyarrow as pa

        first, shape = int(numbers[0]), list[int]()
        while _is_list(values.type):
            check_rows(values.is_null(), numbers, f"{_WHAT}, not null")
            items, counts = _opened(values)
            known = self._shape and self._shape[len(shape) : len(shape) + 1]
            length = known[0] if known else int(counts[0])
            check_rows(
                counts != length,
                numbers,
                f"a list does not have {length} items, as those before it do; {_MAY_VARY}",
            )
            shape.append(length)
            if not 0 < math.prod(shape) <= _NUMBERS_MAX or len(shape) > _MAX_NDIM:
                raise BadRowError(
                    first,
                    f"a list must contain 1 to {_NUMBERS_MAX} numbers, in at most {_MAX_NDIM} dimensions, "
                    f"none of them empty, but this one has the shape {tuple(shape)}; {_MAY_VARY}",
                )
            values, numbers = items, np.repeat(numbers, counts)
        check_rows(values.is_null(), numbers, f"{_WHAT}, not null")
        values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
        are_texts = is_text(values.type)
        if not (are_texts or pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise BadRowError(first, f"{_WHAT}, not {str(values.type)[:_SHOWN]}")
        if are_texts and shape:
            raise BadRowError(first, f"a list of fixed length cannot contain strings; {_MAY_VARY}")
        if self._shape is None:
            self._shape, self.is_text = tuple(shape), are_texts
        if (tuple(shape), are_texts) != (self._shape, self.is_text):
            raise BadRowError(first, f"the label has a different type from those before it: {MIXED}")
        array = coded(values, numbers, self._names.code) if are_texts else _numbers_of(values, numbers)
        self._pieces.append(narrowed(array.reshape(-1, *shape)))

    def finish(self) -> NDArray[Any]:
        """Return all values as int64, or as float64 if any of them is not an integer."""
        if not self._pieces:
            return np.empty(0, dtype=np.int64)
        are_floats = any(piece.dtype.kind == "f" for piece in self._pieces)
        values = np.concatenate(self._pieces, dtype=np.float64 if are_floats else np.int64)
        return self._names.labels()[values] if self.is_text else values


def _numbers_of(values: Any, numbers: NDArray[np.int64]) -> NDArray[Any]:
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False)
    if array.dtype.kind == "f":
        check_rows(~np.isfinite(array), numbers, lambda at: f"the label {array[at]} is not finite")
        return array.astype(np.float64)
    most = np.iinfo(np.int64).max
    check_rows(array > most, numbers, lambda at: f"the label {array[at]} is greater than {most}")
    return array.astype(np.int64)


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _opened(lists: Any) -> tuple[Any, NDArray[np.int64]]:
    """Flatten lists that contain no nulls. Return the items and the length of each list."""
    import pyarrow.compute as pc

    return lists.flatten(), pc.list_value_length(lists).to_numpy().astype(np.int64)
