"""The label column of a key list: numbers stay numbers, texts become classes.

The first row decides between the two, so that a typing error among numbers is found instead of turning them
all into class names.
"""

from __future__ import annotations

import math
import re
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.catalog.catalog import MAX_CLASS_NAMES_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LabelColumn", "number_or_text"]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INT64 = 2**63
_ONE_KIND = (
    "write all labels as numbers, or all as texts "
    '(CSV cannot tell the text "7" from the number 7; JSONL and Parquet can)'
)
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


class LabelColumn:
    """Collects labels row by row: a few bytes each, and one object for each class."""

    def __init__(self) -> None:
        self._integers = array("q")
        self._floats: array[float] | None = None  # all numbers, once one was no integer
        self._codes = array("q")  # of texts: places in order of appearance
        self._classes: dict[str, int] = {}
        self._class_names_bytes = 0

    def append(self, label: object) -> None:
        """Add one label; ``ValueError`` says what is wrong with it."""
        if isinstance(label, bool) or not isinstance(label, (int, float, str)):
            msg = f"a label is a number or a text; not {str(label)[:_SHOWN]!r}"
            raise ValueError(msg)  # noqa: TRY004  # it is a fault of the file, like all the others here
        if isinstance(label, str):
            self._append_text(label)
        else:
            self._append_number(label)

    def finish(self) -> tuple[NDArray[Any], tuple[str, ...]]:
        """Labels, int64 or float64 of shape (rows,), and the class names sorted (numbers have none)."""
        if self._floats is not None:
            return np.array(self._floats, dtype=np.float64), ()
        if self._integers:
            return np.array(self._integers, dtype=np.int64), ()
        names = sorted(self._classes)
        place_of_code = np.zeros(len(names), dtype=np.int64)
        for place, name in enumerate(names):
            place_of_code[self._classes[name]] = place
        return place_of_code[np.array(self._codes, dtype=np.int64)], tuple(names)

    def _append_text(self, label: str) -> None:
        if self._integers or self._floats:
            msg = f"the label {label[:_SHOWN]!r} is a text, those before it are numbers: {_ONE_KIND}"
            raise ValueError(msg)
        if not label:
            msg = "the label is empty"
            raise ValueError(msg)
        code = self._classes.get(label)
        if code is None:
            self._class_names_bytes += len(label.encode())
            if self._class_names_bytes > MAX_CLASS_NAMES_BYTES:
                msg = (
                    "labels that are texts name classes, which have at most "
                    f"{MAX_CLASS_NAMES_BYTES} bytes together; these are {len(self._classes)} different ones"
                )
                raise ValueError(msg)
            code = self._classes[label] = len(self._classes)
        self._codes.append(code)

    def _append_number(self, label: float) -> None:
        if self._codes:
            msg = f"the label {label} is a number, those before it are texts: {_ONE_KIND}"
            raise ValueError(msg)
        if isinstance(label, int) and not -_INT64 <= label < _INT64:
            msg = f"the label {str(label)[:_SHOWN]} does not fit into 64 bits"
            raise ValueError(msg)
        if not math.isfinite(label):
            msg = f"the label {label} is not finite"
            raise ValueError(msg)
        if isinstance(label, int) and self._floats is None:
            self._integers.append(label)
            return
        if self._floats is None:
            self._floats = array("d", self._integers)
        self._floats.append(label)
