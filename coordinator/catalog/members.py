"""Members: samples that are parts of objects, and where in these their bytes lie.

A catalog whose samples are objects has none of it. Members of an object never overlap: neighbours by offset
are neighbours in the catalog, so that one GET can bring many.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from superdl.coordinator.catalog.strings import (
    PackedStrings,
    PackedStringsBuilder,
    RepeatedStrings,
    Strings,
)
from superdl.super_wire.request import MEMBER_ENCODINGS, ROW_ENCODING, Limits, is_row

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Field", "MemberColumns", "MemberRow", "Members", "distinct", "narrowed"]

_Strings = TypeVar("_Strings", bound=Strings)

_MAX_NAME_BYTES = 4096
_MAX_LENGTH = Limits().object_bytes
_END = 2**63
_MAX_ROW = 2**31 - 1  # of a row group, and row groups of a file
_MAX_ENCODINGS = 256
_NARROW = (np.uint8, np.uint16, np.uint32)
_SHOWN = 200  # characters of a name in a message


def narrowed(numbers: NDArray[Any]) -> NDArray[Any]:
    """A copy in the smallest unsigned dtype that takes numbers which are not negative, else as they are."""
    if numbers.dtype.kind in "iu" and numbers.size and numbers.min() >= 0:
        largest = int(numbers.max())
        for dtype in _NARROW:
            if largest <= np.iinfo(dtype).max:
                return numbers.astype(dtype)
    return numbers.copy()


def distinct(strings: PackedStrings) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each different string is first, in the order of their bytes; and which of these each one is."""
    order = strings.sort_order()
    starts = np.ones(len(strings), dtype=np.bool_)
    np.logical_not(strings.reorder(order).equals_next(), out=starts[1:])
    which = np.empty(len(strings), dtype=np.int64)
    which[order] = np.cumsum(starts) - 1
    return order[starts], which


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Samples as members of objects, one for each sample.

    ``objects`` tell the place of each one's object among all, ``names`` are UTF-8, ``offsets`` and
    ``lengths`` are bytes of the object, in the smallest unsigned dtype that takes them. ``encodings`` are
    places in :data:`~superdl.super_wire.request.MEMBER_ENCODINGS` and behind these in ``row_encodings``,
    which are of rows of Parquet files; empty where all are the first. Of a row the offset is the row group,
    and the length the row in it. In a catalog samples are sorted by object, then by offset, then by row.
    """

    objects: NDArray[Any]
    names: PackedStrings
    offsets: NDArray[Any]
    lengths: NDArray[Any]
    encodings: NDArray[np.uint8]
    row_encodings: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.names)

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where in its object each one ends; 0 for rows, of which only the file's footer knows."""
        ends = self.offsets.astype(np.int64) + self.lengths.astype(np.int64)
        ends[self.are_rows] = 0
        return ends

    @property
    def are_rows(self) -> NDArray[np.bool_]:
        """Which are rows of Parquet files, not spans of bytes."""
        if not self.row_encodings:
            return np.zeros(len(self), dtype=np.bool_)
        return self.encodings >= len(MEMBER_ENCODINGS)

    def at(self, places: NDArray[np.int64]) -> tuple[list[str], list[int], list[int], list[str]]:
        """Names, offsets, lengths and encodings at places of the catalog."""
        known, codes = (*MEMBER_ENCODINGS, *self.row_encodings), self.encodings
        encodings = [known[code] for code in codes[places]] if codes.size else [""] * len(places)
        names = [name.decode() for name in self.names.take(places)]
        return names, self.offsets[places].tolist(), self.lengths[places].tolist(), encodings

    def sort_order(self) -> NDArray[np.int64]:
        """The order by object and offset, and of rows that share a row group by their numbers."""
        within = (self.lengths,) if self.row_encodings else ()
        return np.lexsort((*within, self.offsets, self.objects))

    def reorder(self, order: NDArray[np.int64]) -> Members:
        """The members at ``order``, each column in its smallest dtype."""
        return Members(
            narrowed(self.objects[order]),
            self.names.reorder(order),
            narrowed(self.offsets[order]),
            narrowed(self.lengths[order]),
            self.encodings[order] if self.encodings.any() else self.encodings[:0],
            self.row_encodings,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Field(Generic[_Strings]):
    """A further field of samples: the part that each has in it, an object or a member of one.

    Before it is in a catalog, with ``members``, keys and versions are of their objects.
    """

    name: str
    keys: _Strings
    versions: _Strings
    members: Members | None

    def in_order(self: Field[PackedStrings], order: NDArray[np.int64]) -> Field[Strings]:
        """As a catalog has it, whose samples are at ``order`` here."""
        if self.members is None:
            return Field(self.name, self.keys.reorder(order), self.versions.reorder(order), None)
        members = self.members.reorder(order)
        which = members.objects
        return Field(
            self.name, RepeatedStrings(self.keys, which), RepeatedStrings(self.versions, which), members
        )


class MemberRow(NamedTuple):
    """What a row of a key list says of a member, as it is written."""

    name: object
    offset: object
    length: object
    encoding: object


class MemberColumns:
    """Collects members row by row, a few bytes each; ``lines`` are the numbers of their rows."""

    def __init__(self) -> None:
        self._names = PackedStringsBuilder()
        self._objects, self._offsets, self._lengths = array("Q"), array("q"), array("q")
        self._encodings = array("B")
        self._codes = {encoding: code for code, encoding in enumerate(MEMBER_ENCODINGS)}
        self.lines = array("Q")

    def __len__(self) -> int:
        return len(self.lines)

    def append(self, row: MemberRow, key: bytes, *, place: int, line: int) -> None:
        """Add a member of the object ``key``, the ``place``-th; ``ValueError`` says what is wrong."""
        name = row.name
        if not isinstance(name, str) or not name or "\0" in name or len(name.encode()) > _MAX_NAME_BYTES:
            raise ValueError(
                f"a member of {_shown(key)} has a name of 1 to {_MAX_NAME_BYTES} bytes, without NUL; not "
                f"{str(name)[:60]!r}"
            )
        who = f"the member {name[:_SHOWN]!r} of {_shown(key)}"
        code = self._code_of(row.encoding, who)
        if code >= len(MEMBER_ENCODINGS):
            offset = _whole(row.offset, f"{who} has a row group from 0 on", least=0, most=_MAX_ROW)
            length = _whole(row.length, f"{who} has a row from 0 on", least=0, most=_MAX_ROW)
        else:
            offset = _whole(row.offset, f"{who} has an offset from 0 on", least=0, most=_END - _MAX_LENGTH)
            what = f"{who} has a length from 1 to {_MAX_LENGTH} bytes"
            length = _whole(row.length, what, least=1, most=_MAX_LENGTH)
        self._names.append(name.encode())
        self._objects.append(place)
        self._offsets.append(offset)
        self._lengths.append(length)
        self._encodings.append(code)
        self.lines.append(line)

    def _code_of(self, encoding: object, who: str) -> int:
        """The number of an encoding, a new one for a column that no row has named before."""
        if isinstance(encoding, str) and encoding in self._codes:  # JSON may hold what no dict looks up
            return self._codes[encoding]
        if not isinstance(encoding, str) or not is_row(encoding) or len(encoding.encode()) > _MAX_NAME_BYTES:
            raise ValueError(
                f"{who} has the encoding {str(encoding)[:60]!r}, which this SUPER does not know: leave it "
                "empty for bytes as they are, write 'deflate' for those of a compressed zip archive, or "
                f"'{ROW_ENCODING}' and a column for a row of a Parquet file"
            )
        if len(self._codes) == _MAX_ENCODINGS:
            raise ValueError(f"{who} has one encoding more than the {_MAX_ENCODINGS} of a key list")
        return self._codes.setdefault(encoding, len(self._codes))

    def finish(self, keys: PackedStrings, which: NDArray[np.int64], *, shared: bool = False) -> Members:
        """The members in the order of their rows; the object that was the ``i``-th is ``keys[which[i]]``.

        Raises:
            ValueError: two of one object overlap, or have one name; not where they may be ``shared``.
        """
        names = self._names.build()
        offsets, lengths = np.array(self._offsets), np.array(self._lengths)
        # In the order of their names, whatever row came first: equal lists have equal fingerprints.
        row_encodings = sorted(list(self._codes)[len(MEMBER_ENCODINGS) :])
        codes = {encoding: code for code, encoding in enumerate((*MEMBER_ENCODINGS, *row_encodings))}
        encodings = np.array([codes[name] for name in self._codes], dtype=np.uint8)[self._encodings]
        objects = which[np.array(self._objects)]
        found = Members(objects, names, offsets, lengths, encodings, tuple(row_encodings))
        if shared:
            return found
        order = found.sort_order()
        overlap = found.ends[order][:-1] > offsets[order][1:]
        self._refuse(found, keys, order, overlap, "overlap")
        name_of = distinct(names)[1]
        order = np.lexsort((name_of, found.objects))
        again = name_of[order][:-1] == name_of[order][1:]
        self._refuse(found, keys, order, again, "have one name, of which their ids are made")
        return found

    def _refuse(
        self,
        found: Members,
        keys: PackedStrings,
        order: NDArray[np.int64],
        bad: NDArray[np.bool_],
        what: str,
    ) -> None:
        """Raise for the first pair of ``bad`` neighbours that are of one object."""
        beside = np.diff(found.objects[order]) == 0
        for at in np.flatnonzero(beside & bad)[:1].tolist():
            pair = sorted(order[at : at + 2].tolist())
            (one, this), (other, that) = ((found.names[row].decode(), self.lines[row]) for row in pair)
            spans = " and ".join(f"{found.offsets[row]} to {found.ends[row]}" for row in pair)
            raise ValueError(
                f"the members {one[:_SHOWN]!r} (line {this}) and {other[:_SHOWN]!r} (line {that}) of "
                f"{_shown(keys[int(found.objects[pair[0]])])}, bytes {spans}, {what}"
            )


def _whole(value: object, what: str, *, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what}; not {str(value)[:60]!r}")
    return value


def _shown(key: bytes) -> str:
    return repr(key.decode()[:_SHOWN])
