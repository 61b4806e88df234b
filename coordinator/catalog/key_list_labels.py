"""The label column of a key list, packed row by row.

A label is a number, a text that names a class, a list of numbers (nested lists are arrays), or an object of
named fields that are each one of these. The first row decides which; every other row agrees with it, so that
a typing error among numbers is found instead of turning them all into class names. For the same reason a list
that has another length in each row says so in its name: ``boxes[]``, ``label[]``. How labels travel is
:mod:`superdl.super_wire.labels`'s.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.super_wire.label_dtype import MAX_LABEL_BYTES, MAX_LABEL_FIELDS
from superdl.super_wire.labels import MAX_CLASS_NAMES_BYTES, RaggedLabels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from superdl.super_wire.labels import Labels

__all__ = ["VARIES", "BadLabelError", "LabelColumn", "number_or_text"]

VARIES = "[]"
"""Ends the name of a list that has another length in each row."""

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
_MAY_VARY = '; where the length of a list varies by row, its name says so: "boxes[]", "label[]"'
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


class _ClassNames:
    """The names of classes and their codes, which count them in order of appearance until all are known.

    Only names that are ``given`` may come, in that order in the end; without any, all may come, sorted.
    """

    def __init__(self, given: Sequence[str]) -> None:
        self._given = dict.fromkeys(given)
        self._code_of: dict[str, int] = {}
        self._bytes = 0

    def code(self, name: str) -> int:
        """Return the code of a name; ``BadLabelError`` if it is none of those given, or one too many."""
        code = self._code_of.get(name)
        if code is None:
            if self._given and name not in self._given:
                raise BadLabelError(
                    f"the label {name[:_SHOWN]!r} is none of the {len(self._given)} classes that were given"
                )
            self._bytes += len(name.encode())
            if self._bytes > MAX_CLASS_NAMES_BYTES:
                raise BadLabelError(
                    "labels that are texts name classes, which have at most "
                    f"{MAX_CLASS_NAMES_BYTES} bytes together; these are {len(self._code_of)} different ones"
                )
            code = self._code_of[name] = len(self._code_of)
        return code

    def names(self) -> tuple[str, ...]:
        """Return the names by their labels; none if no name came."""
        return tuple(self._given or sorted(self._code_of)) if self._code_of else ()

    def labels(self) -> NDArray[np.int64]:
        """Return the label of each code."""
        label_of = {name: label for label, name in enumerate(self.names())}
        return np.array([label_of[name] for name in self._code_of], dtype=np.int64)

    def unseen(self) -> list[str]:
        """Return the given names that did not come."""
        return [name for name in self._given if name not in self._code_of]


class LabelColumn:
    """Collects labels row by row, a few bytes each.

    Args:
        classes: the only names of classes that may come, by their labels; empty: any, sorted.
    """

    def __init__(self, classes: Sequence[str] = ()) -> None:
        self._names = _ClassNames(classes)
        self._column: _Column | None = None

    def append(self, label: object) -> None:
        """Add one label; ``BadLabelError`` says what is wrong with it."""
        if self._column is None:
            names = self._names
            self._column = _Fields(label, names) if isinstance(label, dict) else _column_for(label, names)
        self._column.append(label)
        if self._column.row_bytes > MAX_LABEL_BYTES:
            found = self._column.row_bytes
            raise BadLabelError(f"a label has at most {MAX_LABEL_BYTES} bytes, 8 a number; this has {found}")

    @property
    def unseen(self) -> list[str]:
        """The given classes that no label has named."""
        return self._names.unseen()

    def finish(self) -> tuple[Labels, tuple[str, ...]]:
        """Return the labels of at least one row, and the class names (numbers have none).

        int64 or float64 of shape (rows,), or (rows, ...) where each label is a list; a structured dtype of
        such where it has named fields; ``RaggedLabels`` where a list has another length in each row.
        """
        if self._column is None:
            return np.empty(0, dtype=np.int64), ()
        return self._column.finish(), self._names.names()


class _Column(ABC):
    """What collects labels of one form."""

    row_bytes = 8
    """Of the row that came last."""
    is_text = False
    """Whether its labels name classes."""

    @abstractmethod
    def append(self, label: Any) -> None:
        """Take the next row's label."""

    @abstractmethod
    def finish(self) -> Any:
        """The labels, an array of shape (rows, ...), or ragged."""


def _column_for(label: object, names: _ClassNames) -> _Column:
    """Make the column for labels of this form; the column refuses what is no label at all."""
    if isinstance(label, str):
        return _Texts(names)
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
        numbers: NDArray[Any] = np.asarray(self._numbers)
        return numbers


class _Texts(_Column):
    """Names of classes."""

    is_text = True

    def __init__(self, names: _ClassNames) -> None:
        self._names = names
        self._codes = array("q")

    def append(self, label: Any) -> None:
        if isinstance(label, (int, float)) and not isinstance(label, bool):
            raise BadLabelError(f"the label {label} is a number, those before it are texts: {_ONE_KIND}")
        if not isinstance(label, str):
            raise BadLabelError(f"{_WHAT}; not {str(label)[:_SHOWN]!r}")
        if not label:
            raise BadLabelError("the label is empty")
        self._codes.append(self._names.code(label))

    def finish(self) -> NDArray[Any]:
        codes: NDArray[np.int64] = np.asarray(self._codes)
        return self._names.labels()[codes]


class _Lists(_Column):
    """Arrays of numbers, of the shape of the first."""

    def __init__(self, first: list[Any]) -> None:
        self._shape = np.array(first, dtype=object).shape
        if isinstance(next(np.array(first, dtype=object).flat, None), str):
            raise BadLabelError(
                f"{str(first)[:_SHOWN]} is a list of texts, which may vary by row: end its name in [], as in "
                "label[]"
            )
        if not 0 < math.prod(self._shape) <= _NUMBERS_MAX or len(self._shape) > _MAX_NDIM:
            raise BadLabelError(
                f"a list has 1 to {_NUMBERS_MAX} numbers, in at most {_MAX_NDIM} dimensions, none of them "
                f"empty; this has the shape {self._shape}{_MAY_VARY}"
            )
        self._numbers = _Numbers()
        self.row_bytes = 8 * math.prod(self._shape)

    def append(self, label: Any) -> None:
        numbers = np.array(label, dtype=object)
        if not isinstance(label, list) or numbers.shape != self._shape:
            raise BadLabelError(
                f"{str(label)[:_SHOWN]!r} has the shape {numbers.shape}, the first label has {self._shape}: "
                f"all have the same shape{_MAY_VARY}"
            )
        for number in numbers.flat:
            self._numbers.append(number)

    def finish(self) -> NDArray[Any]:
        return self._numbers.finish().reshape(-1, *self._shape)


class _Varying(_Column):
    """Lists of any length, whose items are of the form of the first that there is."""

    def __init__(self, names: _ClassNames) -> None:
        self._names = names
        self.counts = array("I")
        self._items: _Column | None = None

    def append(self, label: Any) -> None:
        if not isinstance(label, list):
            raise BadLabelError(f"{str(label)[:_SHOWN]!r} is no list, as the [] behind its name says it is")
        if self._items is None and label:
            self._items = _column_for(label[0], self._names)
            self.is_text = self._items.is_text
        if self._items is not None:
            self.row_bytes = 4 + len(label) * self._items.row_bytes
            for item in label:
                self._items.append(item)
        self.counts.append(len(label))

    def finish(self) -> NDArray[Any]:
        """The items of all rows."""
        if self._items is None:
            return np.empty(0, dtype=np.int64)
        items: NDArray[Any] = self._items.finish()
        return items


class _Fields(_Column):
    """Objects with the fields of the first, each a column; one of them at most may be of texts."""

    def __init__(self, first: Mapping[Any, Any], names: _ClassNames) -> None:
        if not first or len(first) > MAX_LABEL_FIELDS:
            raise BadLabelError(
                f"a label that is an object has 1 to {MAX_LABEL_FIELDS} fields; this has {len(first)}"
            )
        self._columns = {
            name: _Varying(names) if name.endswith(VARIES) else _column_for(value, names)
            for name, value in first.items()
        }
        fields = [name.removesuffix(VARIES) for name in first]
        for name in fields:
            bare = list(first) == [VARIES]
            if not (name or bare) or len(name.encode()) > _MAX_NAME or fields.count(name) > 1:
                raise BadLabelError(
                    f"a field's name has 1 to {_MAX_NAME} bytes, and is there once; not {name[:_SHOWN]!r}"
                )

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
        self.row_bytes = sum(column.row_bytes for column in self._columns.values())
        if len(texts := [name for name, column in self._columns.items() if column.is_text]) > 1:
            words = (
                f"one field of a label may be a text, which names its class; these are: {', '.join(texts)}"
            )
            raise BadLabelError(words[:400])

    def finish(self) -> Labels:
        values, columns = {}, {}
        for name, column in self._columns.items():
            finished = column.finish()
            if isinstance(column, _Varying):
                values[name.removesuffix(VARIES)] = finished
                finished = np.array(column.counts, dtype=np.uint32)
            columns[name.removesuffix(VARIES)] = finished
        if "" in columns:
            return RaggedLabels(columns[""], values)
        dtype = [(name, column.dtype, column.shape[1:]) for name, column in columns.items()]
        rows = np.empty(len(next(iter(columns.values()))), dtype=dtype)
        for name, column in columns.items():
            rows[name] = column
        return RaggedLabels(rows, values) if values else rows
