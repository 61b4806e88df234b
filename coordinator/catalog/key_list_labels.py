"""The label column of a key list, packed row by row.

A label is a number, a text that names a class, a list of numbers (nested lists are arrays), or an object of
named fields that are each one of these. The first row decides which; every other row agrees with it, so that
a typing error among numbers is found instead of turning them all into class names. How labels travel is
:mod:`superdl.super_wire.label_dtype`'s.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.coordinator.catalog.catalog import MAX_CLASS_NAMES_BYTES
from superdl.super_wire.label_dtype import MAX_LABEL_BYTES, MAX_LABEL_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["BadLabelError", "LabelColumn", "number_or_text"]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INT64 = 2**63
_NUMBERS_MAX = MAX_LABEL_BYTES // 8
_MAX_NDIM = 8
_MAX_NAME = 200  # bytes of a field's name
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


class LabelColumn:
    """Collects labels row by row, a few bytes each."""

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


class _Column(ABC):
    """What collects labels of one form."""

    classes: tuple[str, ...] = ()
    """Once finished: the class names sorted, if labels are texts."""

    @abstractmethod
    def append(self, label: Any) -> None:
        """Take the next row's label."""

    @abstractmethod
    def finish(self) -> NDArray[Any]:
        """The labels, shape (rows, ...)."""


def _column_for(label: object) -> _Column:
    """The column for labels of this one's form; what is no label at all is for the column to refuse."""
    if isinstance(label, str):
        return _Texts()
    return _Lists(label) if isinstance(label, list) else _Numbers()


class _Numbers(_Column):
    """Integers; once one of them is no integer, floats."""

    def __init__(self) -> None:
        self._numbers: array[Any] = array("q")

    def append(self, label: Any) -> None:
        if isinstance(label, str):
            raise BadLabelError(
                f"the label {label[:_SHOWN]!r} is a text, those before it are numbers: {_ONE_KIND}"
            )
        if isinstance(label, bool) or not isinstance(label, (int, float)):
            raise BadLabelError(f"{_WHAT}; not {str(label)[:_SHOWN]!r}")
        if isinstance(label, int) and not -_INT64 <= label < _INT64:
            raise BadLabelError(f"the label {str(label)[:_SHOWN]} does not fit into 64 bits")
        if not math.isfinite(label):
            raise BadLabelError(f"the label {label} is not finite")
        if isinstance(label, float) and self._numbers.typecode == "q":
            self._numbers = array("d", self._numbers)
        self._numbers.append(label)

    def finish(self) -> NDArray[Any]:
        return np.array(self._numbers)


class _Texts(_Column):
    """Names of classes: places in order of appearance, sorted in the end."""

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
        places: NDArray[np.int64] = np.argsort([self._code_of[name] for name in self.classes])
        return places[np.array(self._codes, dtype=np.int64)]


class _Lists(_Column):
    """Arrays of numbers, of the shape of the first."""

    def __init__(self, first: list[Any]) -> None:
        self._shape = np.array(first, dtype=object).shape
        if not 0 < math.prod(self._shape) <= _NUMBERS_MAX or len(self._shape) > _MAX_NDIM:
            raise BadLabelError(
                f"a list has 1 to {_NUMBERS_MAX} numbers, in at most {_MAX_NDIM} dimensions, none of them "
                f"empty; this has the shape {self._shape}"
            )
        self._numbers = _Numbers()

    def append(self, label: Any) -> None:
        numbers = np.array(label, dtype=object)
        if not isinstance(label, list) or numbers.shape != self._shape:
            raise BadLabelError(
                f"{str(label)[:_SHOWN]!r} has the shape {numbers.shape}, the first label has {self._shape}: "
                "all have the same shape"
            )
        for number in numbers.flat:
            self._numbers.append(number)

    def finish(self) -> NDArray[Any]:
        return self._numbers.finish().reshape(-1, *self._shape)


class _Fields(_Column):
    """Objects with the fields of the first, each a column; one of them at most may be of texts."""

    def __init__(self, first: Mapping[Any, Any]) -> None:
        if not first or len(first) > MAX_LABEL_FIELDS:
            raise BadLabelError(
                f"a label that is an object has 1 to {MAX_LABEL_FIELDS} fields; this has {len(first)}"
            )
        self._columns = {name: _column_for(value) for name, value in first.items()}
        texts = [name for name, column in self._columns.items() if isinstance(column, _Texts)]
        if len(texts) > 1:
            words = (
                f"one field of a label may be a text, which names its class; these are: {', '.join(texts)}"
            )
            raise BadLabelError(words[:400])
        for name in first:
            if not name or len(name.encode()) > _MAX_NAME:
                raise BadLabelError(f"a field's name has 1 to {_MAX_NAME} bytes; not {name[:_SHOWN]!r}")

    def append(self, label: Any) -> None:
        if not isinstance(label, dict) or label.keys() != self._columns.keys():
            found = f"the fields {', '.join(label)}" if isinstance(label, dict) else str(label)
            expected = f"those before it have the fields {', '.join(self._columns)}"
            raise BadLabelError(f"the label is {found[:_SHOWN]!r}, {expected}: all have the same"[:400])
        for name, column in self._columns.items():
            try:
                column.append(label[name])
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
