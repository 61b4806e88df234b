"""Members: samples that are parts of objects, and the location of their bytes.

Catalogs whose samples are whole objects have none. Members of an object never overlap: neighbours by offset
are neighbours in the catalog, so that one GET can fetch many.
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
_MAX_ROW = 2**31 - 1  # of a row group, and of row groups in a file
_MAX_ENCODINGS = 256
_NARROW = (np.uint8, np.uint16, np.uint32)
_SHOWN = 200  # characters of a name in a message


def narrowed(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return a copy in the smallest unsigned dtype that fits; in the same dtype if negative."""
    # min() would raise on an empty array.
    if numbers.dtype.kind in "iu" and numbers.size and numbers.min() >= 0:
        largest = int(numbers.max())
        for dtype in _NARROW:
            if largest <= np.iinfo(dtype).max:
                return numbers.astype(dtype)
    return numbers.copy()


def distinct(strings: PackedStrings) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return distinct strings' first places, in byte order, and each string's place among these."""
    order = strings.sort_order()
    starts = np.ones(len(strings), dtype=np.bool_)
    np.logical_not(strings.reorder(order).equals_next(), out=starts[1:])
    which = np.empty(len(strings), dtype=np.int64)
    which[order] = np.cumsum(starts) - 1
    return order[starts], which


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Samples as members of objects, one entry per sample.

    ``objects`` give each member's object by its place among all. ``names`` are UTF-8. ``offsets`` and
    ``lengths`` are in bytes of the object, in the smallest unsigned dtype that fits. ``encodings`` index
    :data:`~superdl.super_wire.request.MEMBER_ENCODINGS` followed by ``row_encodings``, which are for rows of
    Parquet files; empty if all are the first. For a row, the offset is its row group and the length its place
    in the group. A catalog sorts samples by object, then offset, then row.
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
        """End of each member in its object, in bytes; 0 for rows, whose end the footer has."""
        ends = self.offsets.astype(np.int64) + self.lengths.astype(np.int64)
        ends[self.are_rows] = 0
        return ends

    @property
    def are_rows(self) -> NDArray[np.bool_]:
        """Mask of the members that are rows of Parquet files, not spans of bytes."""
        if not self.row_encodings:
            return np.zeros(len(self), dtype=np.bool_)
        return self.encodings >= len(MEMBER_ENCODINGS)

    def at(self, places: NDArray[np.int64]) -> tuple[list[str], list[int], list[int], list[str]]:
        """Return names, offsets, lengths and encodings at places of the catalog."""
        known, codes = (*MEMBER_ENCODINGS, *self.row_encodings), self.encodings
        encodings = [known[code] for code in codes[places]] if codes.size else [""] * len(places)
        names = [name.decode() for name in self.names.take(places)]
        return names, self.offsets[places].tolist(), self.lengths[places].tolist(), encodings

    def sort_order(self) -> NDArray[np.int64]:
        """Return the order by object, then offset, then row number within a row group."""
        within = (self.lengths,) if self.row_encodings else ()
        return np.lexsort((*within, self.offsets, self.objects))

    def reorder(self, order: NDArray[np.int64]) -> Members:
        """Return the members at ``order``, each column in its smallest dtype."""
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
    """A further field of samples: each sample's part in it is an object or a member of one.

    Until it is in a catalog, a field with ``members`` has one key and version per object.
    """

    name: str
    keys: _Strings
    versions: _Strings
    members: Members | None

    def in_order(self: Field[PackedStrings], order: NDArray[np.int64]) -> Field[Strings]:
        """Return the field as a catalog holds it, with the samples at ``order``."""
        if self.members is None:
            return Field(self.name, self.keys.reorder(order), self.versions.reorder(order), None)
        members = self.members.reorder(order)
        which = members.objects
        return Field(
            self.name, RepeatedStrings(self.keys, which), RepeatedStrings(self.versions, which), members
        )


class MemberRow(NamedTuple):
    """A member as a row of a key list spells it."""

    name: object
    offset: object
    length: object
    encoding: object


class MemberColumns:
    """Collects members row by row, a few bytes each; ``lines`` are their row numbers."""

    def __init__(self) -> None:
        self._names = PackedStringsBuilder()
        self._objects, self._offsets, self._lengths = array("Q"), array("q"), array("q")
        self._encodings = array("B")
        self._codes = {encoding: code for code, encoding in enumerate(MEMBER_ENCODINGS)}
        self.lines = array("Q")

    def __len__(self) -> int:
        return len(self.lines)

    def append(self, row: MemberRow, key: bytes, *, place: int, line: int) -> None:
        """Add a member of the ``place``-th object, ``key``; ``ValueError`` for a bad one."""
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
        """Return the number of an encoding; a Parquet column new to the rows gets a new one."""
        if isinstance(encoding, str) and encoding in self._codes:  # JSON may hold unhashable values
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
        """Return the members in row order. The ``i``-th object is ``keys[which[i]]``.

        Raises:
            ValueError: two members of one object overlap or share a name, unless they may be ``shared``.
        """
        names = self._names.build()
        offsets, lengths = np.array(self._offsets), np.array(self._lengths)
        # Sorted, whichever row came first, so that equal lists have equal fingerprints.
        row_encodings = sorted(list(self._codes)[len(MEMBER_ENCODINGS) :])
        codes = {encoding: code for code, encoding in enumerate((*MEMBER_ENCODINGS, *row_encodings))}
        encodings = np.array([codes[name] for name in self._codes], dtype=np.uint8)[self._encodings]
        objects = which[np.array(self._objects)]
        members = Members(objects, names, offsets, lengths, encodings, tuple(row_encodings))
        if shared:
            return members
        order = members.sort_order()
        # Sorted by offset, members overlap only if two neighbours do.
        overlap = members.ends[order][:-1] > offsets[order][1:]
        self._refuse(members, keys, order, overlap, "overlap")
        name_of = distinct(names)[1]
        order = np.lexsort((name_of, members.objects))
        again = name_of[order][:-1] == name_of[order][1:]
        self._refuse(members, keys, order, again, "have one name, of which their ids are made")
        return members

    def _refuse(
        self,
        found: Members,
        keys: PackedStrings,
        order: NDArray[np.int64],
        bad: NDArray[np.bool_],
        what: str,
    ) -> None:
        """Raise for the first pair of ``bad`` neighbours that belong to one object."""
        beside = np.diff(found.objects[order]) == 0
        for at in np.flatnonzero(beside & bad)[:1].tolist():
            pair = sorted(order[at : at + 2].tolist())
            (name, line), (other_name, other_line) = (
                (found.names[row].decode(), self.lines[row]) for row in pair
            )
            spans = " and ".join(f"{found.offsets[row]} to {found.ends[row]}" for row in pair)
            raise ValueError(
                f"the members {name[:_SHOWN]!r} (line {line}) and {other_name[:_SHOWN]!r} "
                f"(line {other_line}) of {_shown(keys[int(found.objects[pair[0]])])}, bytes {spans}, {what}"
            )


def _whole(value: object, what: str, *, least: int, most: int) -> int:
    # type() rather than isinstance(), because True is an int.
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what}; not {str(value)[:60]!r}")
    return value


def _shown(key: bytes) -> str:
    return repr(key.decode()[:_SHOWN])
