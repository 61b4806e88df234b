"""Records beside one array and tombstones: pointers into a store.

They are records like all others: the header of :mod:`superdl.super_wire.record`, with a payload of plain
bytes whose hash it names. A pointer's payload is ``<QQ`` and the pack's name: where in the pack the record
begins, how long it is, and which pack.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.super_wire.errors import RecordError
from superdl.super_wire.record import HEADER_BYTES, RecordKind, checked_payload, pack_header

if TYPE_CHECKING:
    from superdl.super_wire.record import Bytes

__all__ = ["Pointer", "pack_pointer", "read_pointer"]

_MAX_U64 = 2**64 - 1
_PLACE = struct.Struct("<QQ")

# A pack lies in its store's directory: no name may lead out of it.
_PACK_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where in a store a record lies: ``length`` bytes from ``offset`` on in the file or object ``pack``.

    Raises:
        RecordError: the name is none of a pack, or a number has more than 64 bits.
    """

    pack: str
    offset: int
    length: int

    def __post_init__(self) -> None:
        if not _PACK_NAME.fullmatch(self.pack):
            raise RecordError(
                f"a pack's name is 1 to 255 of A-Z a-z 0-9 . _ - and begins with no . or -: {self.pack!r}"
            )
        end = self.offset + self.length
        if self.offset < 0 or self.length < HEADER_BYTES or end > _MAX_U64:
            raise RecordError(f"no record of {self.length} bytes begins at byte {self.offset} of a pack")


def pack_pointer(pointer: Pointer, sample_id: bytes) -> bytes:
    """A whole pointer record."""
    payload = _PLACE.pack(pointer.offset, pointer.length) + pointer.pack.encode()
    return pack_header(RecordKind.POINTER, payload, sample_id) + payload


def read_pointer(record: Bytes, *, sample_id: bytes | None = None) -> Pointer:
    """What a pointer record says.

    Raises:
        RecordError: any of its kinds, also when the payload is no pointer.
    """
    _, payload = checked_payload(record, RecordKind.POINTER, sample_id=sample_id)
    if len(payload) <= _PLACE.size:
        raise RecordError(
            f"a pointer's payload has more than {_PLACE.size} bytes; this one has {len(payload)}"
        )
    offset, length = _PLACE.unpack_from(payload)
    return Pointer(bytes(payload[_PLACE.size :]).decode(errors="replace"), offset, length)
