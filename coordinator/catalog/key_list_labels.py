"""The label column of a key list, packed row by row.

A label is a number, a text that names a class, a list of numbers (nested lists are arrays), or an object of
named fields that are each one of these. The first row decides, and every other row must agree, so that a typo
among numbers raises an error instead of turning all of them into class names. For the same reason a list
whose length varies by row must be marked in its name: ``boxes[]``, ``label[]``.
:mod:`superdl.super_wire.labels` defines the wire form.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from superdl.super_wire.labels import MAX_CLASS_NAMES_BYTES, MAX_LABEL_BYTES, MAX_LABEL_FIELDS, RaggedLabels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from superdl.super_wire.labels import Labels

__all__ = ["VARIES", "BadLabelError", "LabelColumn", "number_or_text"]

VARIES = "[]"
"""Suffix of the name of a list whose length varies by row."""

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
    """Return a CSV field as a number if it spells one, else as text."""
    stripped = text.strip()
    # Longer texts are no sensible numbers, and int() is slow on huge ones.
    if len(stripped) <= _SHOWN:
        if _INTEGER.fullmatch(stripped):
            return int(stripped)
        if _NUMBER.fullmatch(stripped):
            return float(stripped)
    return text


class BadLabelError(ValueError):
    """A label that is invalid, or inconsistent with the labels before it."""


class _ClassNames:
    """Class names and their codes, numbered in order of appearance until all names are known.

    With ``given`` names, only these are accepted and they keep that order in the end. Without, any name is
    accepted and the names are sorted.
    """

    def __init__(self, given: Sequence[str]) -> None:
        self._given = dict.fromkeys(given)
        self._code_of: dict[str, int] = {}
        self._bytes = 0

    def code(self, name: str) -> int:
        """Return the code of a name; ``BadLabelError`` if it is not given, or names are too long."""
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
        """Return the names by label; empty if no name appeared."""
        return tuple(self._given or sorted(self._code_of)) if self._code_of else ()

    def labels(self) -> NDArray[np.int64]:
        """Return the label of each code."""
        label_of = {name: label for label, name in enumerate(self.names())}
        return np.array([label_of[name] for name in self._code_of], dtype=np.int64)

    def unseen(self) -> list[str]:
        """Return the given names that did not appear."""
        return [name for name in self._given if name not in self._code_of]


class LabelColumn:
    """Collects labels row by row, a few bytes each.

    Args:
        classes: the only class names to accept, by label; empty: any, sorted.
    """

    def __init__(self, classes: Sequence[str] = ()) -> None:
        self._names = _ClassNames(classes)
        self._column: _Column | None = None

    def append(self, label: object) -> None:
        """Add one label; ``BadLabelError`` describes what is wrong with it."""
        if self._column is None:
            names = self._names
            self._column = _Fields(label, names) if isinstance(label, dict) else _column_for(label, names)
        self._column.append(label)
        if self._column.row_bytes > MAX_LABEL_BYTES:
            row_bytes = self._column.row_bytes
            raise BadLabelError(
                f"a label has at most {MAX_LABEL_BYTES} bytes, 8 a number; this has {row_bytes}"
            )

    @property
    def unseen(self) -> list[str]:
        """The given classes that no label has named."""
        return self._names.unseen()

    def finish(self) -> tuple[Labels, tuple[str, ...]]:
        """Return the labels of at least one row, and the class names (none for numbers).

        int64 or float64 of shape (rows,), or (rows, ...) if each label is a list; a structured dtype of these
        if labels have named fields; ``RaggedLabels`` if the length of a list varies by row.
        """
        if self._column is None:
            return np.empty(0, dtype=np.int64), ()
        return self._column.finish(), self._names.names()


class _Column(ABC):
    """Base of the collectors of labels of one form."""

    row_bytes = 8
    """Bytes of the latest row."""
    is_text = False
    """True if its labels name classes."""

    @abstractmethod
    def append(self, label: Any) -> None:
        """Add the next row's label."""

    @abstractmethod
    def finish(self) -> Any:
        """Return the labels as an array of shape (rows, ...), or ragged."""


def _column_for(label: object, names: _ClassNames) -> _Column:
    """Make the column for labels of this form. It refuses values that are no labels."""
    if isinstance(label, str):
        return _Texts(names)
    return _Lists(label) if isinstance(label, list) else _Numbers()


class _Numbers(_Column):
    """Integers; floats from the first label that is not an integer."""

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
    """Class names."""

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
    """Arrays of numbers, all of the first one's shape."""

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
    """Lists of any length. All items have the form of the first item."""

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
        """Return the items of all rows."""
        if self._items is None:
            return np.empty(0, dtype=np.int64)
        items: NDArray[Any] = self._items.finish()
        return items


class _Fields(_Column):
    """Objects with the first one's fields, each in a column. At most one field may hold text."""

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
            actual = f"the fields {', '.join(label)}" if isinstance(label, dict) else str(label)
            expected = f"those before it have the fields {', '.join(self._columns)}"
            raise BadLabelError(f"the label is {actual[:_SHOWN]!r}, {expected}: all have the same"[:400])
        for name, column in self._columns.items():
            try:
                column.append(label[name])
            except ValueError as error:
                raise BadLabelError(f"in the field {name[:_SHOWN]!r}: {error}") from error
        self.row_bytes = sum(column.row_bytes for column in self._columns.values())
        if len(texts := [name for name, column in self._columns.items() if column.is_text]) > 1:
            message = (
                f"one field of a label may be a text, which names its class; these are: {', '.join(texts)}"
            )
            raise BadLabelError(message[:400])

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
