"""The label column of a key list, packed row by row.

A label is a number, a text that names a class, a list of numbers (nested lists are arrays), or an object of
named fields that are each one of these. The first row decides which; every other row agrees with it, so that
a typing error among numbers is found instead of turning them all into class names. How labels travel is
:mod:`superdl.super_wire.label_dtype`'s.
"""

from __future__ import annotations

import math
import re
from array import array
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from superdl.coordinator.catalog.catalog import MAX_CLASS_NAMES_BYTES
from superdl.super_wire.label_dtype import MAX_LABEL_BYTES, MAX_LABEL_FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

__all__ = ["BadLabelError", "LabelColumn", "number_or_text"]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INT64 = 2**63
_NUMBER_BYTES = 8
_MAX_NDIM = 8
_MAX_NAME = 200  # characters of a field's name
_ONE_KIND = (
    "write all labels as numbers, or all as texts "
    '(CSV cannot tell the text "7" from the number 7; JSONL and Parquet can)'
)
_WHAT = "a label is a number, a text, a list of numbers or an object of such fields, in all rows alike"
_SHOWN = 60  # characters of a bad label that a message shows


def number_or_text(text: str) -> int | float | str:
    """A CSV field as the number it spells, else as text."""
    stripped = text.strip()
    if len(stripped) <= _SHOWN:
        if _INTEGER.fullmatch(stripped):
            return int(stripped)
        if _NUMBER.fullmatch(stripped):
            return float(stripped)
    return text


class BadLabelError(ValueError):
    """A label is not what a label may be, or not what those before it are."""


class _Column(Protocol):
    """What collects labels of one form: a few bytes each, and one object for each class."""

    classes: tuple[str, ...]
    """Once finished: the class names sorted, if labels are texts."""

    def append(self, label: Any) -> None:
        """Add one label; ``BadLabelError`` says what is wrong with it."""

    def finish(self) -> NDArray[Any]:
        """The labels, shape (rows, ...)."""


class LabelColumn:
    """Collects labels row by row."""

    def __init__(self) -> None:
        self._column: _Column | None = None

    def append(self, label: object) -> None:
        """Add one label; ``BadLabelError`` says what is wrong with it."""
        if self._column is None:
            self._column = _Fields(label) if isinstance(label, dict) else _column_for(label)
        self._column.append(label)

    def finish(self) -> tuple[NDArray[Any], tuple[str, ...]]:
        """Labels of at least one row, and the class names sorted (numbers have none).

        int64 or float64 of shape (rows,), or (rows, ...) where each label is a list; a structured dtype of
        such where it has named fields.
        """
        if self._column is None:
            return np.empty(0, dtype=np.int64), ()
        return self._column.finish(), self._column.classes


def _column_for(label: object) -> _Column:
    """The column for labels of this one's form; what is no label at all is for the column to refuse."""
    if isinstance(label, str):
        return _Texts()
    return _Lists(label) if isinstance(label, list) else _Numbers()


class _Numbers:
    """Integers; once one of them is no integer, floats."""

    classes: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._integers = array("q")
        self._floats: array[float] | None = None

    def append(self, label: Any) -> None:
        if isinstance(label, str):
            raise BadLabelError(
                f"the label {label[:_SHOWN]!r} is a text, those before it are numbers: {_ONE_KIND}"
            )
        self.add(label)

    def add(self, number: Any) -> None:
        """Add one number, of a label or of a list."""
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise BadLabelError(f"{_WHAT}; not {str(number)[:_SHOWN]!r}")
        if isinstance(number, int) and not -_INT64 <= number < _INT64:
            raise BadLabelError(f"the label {str(number)[:_SHOWN]} does not fit into 64 bits")
        if not math.isfinite(number):
            raise BadLabelError(f"the label {number} is not finite")
        if isinstance(number, int) and self._floats is None:
            self._integers.append(number)
            return
        if self._floats is None:
            self._floats = array("d", self._integers)
        self._floats.append(number)

    def finish(self) -> NDArray[Any]:
        if self._floats is not None:
            return np.array(self._floats, dtype=np.float64)
        return np.array(self._integers, dtype=np.int64)


class _Texts:
    """Names of classes: places in order of appearance, sorted in the end."""

    classes: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._codes = array("q")
        self._code_of: dict[str, int] = {}
        self._names_bytes = 0

    def append(self, label: Any) -> None:
        if isinstance(label, (int, float)) and not isinstance(label, bool):
            raise BadLabelError(f"the label {label} is a number, those before it are texts: {_ONE_KIND}")
        if not isinstance(label, str):
            raise BadLabelError(f"{_WHAT}; not {str(label)[:_SHOWN]!r}")
        if not label:
            raise BadLabelError("the label is empty")
        code = self._code_of.get(label)
        if code is None:
            self._names_bytes += len(label.encode())
            if self._names_bytes > MAX_CLASS_NAMES_BYTES:
                raise BadLabelError(
                    "labels that are texts name classes, which have at most "
                    f"{MAX_CLASS_NAMES_BYTES} bytes together; these are {len(self._code_of)} different ones"
                )
            code = self._code_of[label] = len(self._code_of)
        self._codes.append(code)

    def finish(self) -> NDArray[Any]:
        self.classes = tuple(sorted(self._code_of))
        place_of_code = np.zeros(len(self.classes), dtype=np.int64)
        for place, name in enumerate(self.classes):
            place_of_code[self._code_of[name]] = place
        return place_of_code[np.array(self._codes, dtype=np.int64)]


class _Lists:
    """Arrays of numbers, of the shape of the first."""

    classes: tuple[str, ...] = ()

    def __init__(self, first: list[Any]) -> None:
        self._shape = _shape_of(first)
        self._numbers = _Numbers()

    def append(self, label: Any) -> None:
        for number in _flat(label, self._shape):
            if isinstance(number, str):
                raise BadLabelError(f"a list is of numbers; not {number[:_SHOWN]!r}")
            self._numbers.add(number)

    def finish(self) -> NDArray[Any]:
        return self._numbers.finish().reshape(-1, *self._shape)


class _Fields:
    """Objects with the fields of the first, each a column; one of them at most may be of texts."""

    def __init__(self, first: Mapping[Any, Any]) -> None:
        if not first or len(first) > MAX_LABEL_FIELDS:
            raise BadLabelError(
                f"a label that is an object has 1 to {MAX_LABEL_FIELDS} fields; this has {len(first)}"
            )
        self.classes: tuple[str, ...] = ()
        self._columns = {name: _column_for(value) for name, value in first.items()}
        texts = [name for name, column in self._columns.items() if isinstance(column, _Texts)]
        if len(texts) > 1:
            raise BadLabelError(
                f"one field of a label may be a text, which names its class; these are: {', '.join(texts)}"[
                    :400
                ]
            )
        for name in first:
            if not name or len(name.encode()) > _MAX_NAME:
                raise BadLabelError(f"a field's name has 1 to {_MAX_NAME} bytes; not {name[:_SHOWN]!r}")

    def append(self, label: Any) -> None:
        if not isinstance(label, dict) or label.keys() != self._columns.keys():
            found = f"the fields {', '.join(label)}" if isinstance(label, dict) else str(label)
            expected = f"those before it have the fields {', '.join(self._columns)}"
            raise BadLabelError(f"the label is {found[:_SHOWN]!r}, {expected}: all have the same"[:400])
        for name, column in self._columns.items():
            value = label[name]
            try:
                column.append(value)
            except ValueError as error:
                raise BadLabelError(f"in the field {name[:_SHOWN]!r}: {error}") from error

    def finish(self) -> NDArray[Any]:
        columns = {name: column.finish() for name, column in self._columns.items()}
        dtype = [(name, column.dtype, column.shape[1:]) for name, column in columns.items()]
        rows = np.empty(len(next(iter(columns.values()))), dtype=dtype)
        for name, column in columns.items():
            rows[name] = column
        self.classes = next((one.classes for one in self._columns.values() if one.classes), ())
        return rows


def _shape_of(label: Any) -> tuple[int, ...]:
    """The shape of nested lists by their first elements, checked to be one that a label may have."""
    shape: list[int] = []
    while isinstance(label, list) and label and len(shape) <= _MAX_NDIM:
        shape.append(len(label))
        label = label[0]
    if (
        isinstance(label, list)
        or len(shape) > _MAX_NDIM
        or math.prod(shape) * _NUMBER_BYTES > MAX_LABEL_BYTES
    ):
        raise BadLabelError(
            f"a list has 1 to {MAX_LABEL_BYTES // _NUMBER_BYTES} numbers, in at most {_MAX_NDIM} dimensions, "
            f"none of them empty; this has the shape {shape}"
        )
    return tuple(shape)


def _flat(label: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    """The numbers of nested lists; ``BadLabelError`` if they do not have the shape."""
    if not isinstance(label, list) or len(label) != shape[0]:
        found = f"a list of {len(label)}" if isinstance(label, list) else str(label)[:_SHOWN]
        raise BadLabelError(
            f"{found!r} stands where the first label has a list of {shape[0]}: all have the same shape"
        )
    if len(shape) == 1:
        yield from label
        return
    for inner in label:
        yield from _flat(inner, shape[1:])
