"""Parts of a sample: one, or one for each of its fields, and each an object or a member of one.

A request has the columns of all parts; this module checks them.
"""

from __future__ import annotations

import reprlib
from typing import Protocol

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import MAIN_FIELD, MAX_FIELDS, checked_field

MEMBER_ENCODINGS = ("", "deflate")
"""Encodings of a member: stored as is, or a raw deflate stream, as in zip archives."""

ROW_ENCODING = "parquet:"
"""Followed by the path of a column, the encoding of a row of a Parquet file. The member's offset is then the
number of its row group, and its length the number of its row in that, both from 0 on.
"""


class _Parts(Protocol):
    """The columns of parts in a prefetch request, its ids, and its fields."""

    @property
    def ids(self) -> tuple[str, ...]: ...
    @property
    def fields(self) -> tuple[str, ...]: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def versions(self) -> tuple[str, ...]: ...
    @property
    def members(self) -> tuple[str, ...]: ...
    @property
    def member_offsets(self) -> tuple[int, ...]: ...
    @property
    def member_lengths(self) -> tuple[int, ...]: ...
    @property
    def encodings(self) -> tuple[str, ...]: ...


def is_row(encoding: str) -> bool:
    """Report whether a member of this encoding is a row of a Parquet file."""
    return encoding.startswith(ROW_ENCODING) and encoding != ROW_ENCODING


def check_parts(request: _Parts) -> None:
    """Check that the columns of a request match; ``ConfigError`` names those that do not."""
    parts = len(request.ids) * (1 + len(request.fields))
    if not parts == len(request.versions) == len(request.keys):
        raise ConfigError("a prefetch request has as many keys and versions as ids, and again for each field")
    named = [MAIN_FIELD, *map(checked_field, request.fields)]
    if len(set(named)) < len(named) or len(named) > MAX_FIELDS:
        raise ConfigError(f"a prefetch request has fields that differ, at most {MAX_FIELDS}")
    count = len(request.keys) if request.members else 0
    if not count == len(request.members) == len(request.member_offsets) == len(request.member_lengths):
        raise ConfigError("a request for members has one of member, offset and length for each key")
    if request.encodings and len(request.encodings) != count:
        raise ConfigError("a request for members has an encoding for each, or none")
    used = set(request.encodings)
    rows = {encoding for encoding in used if is_row(encoding)}
    if unknown := used - rows - set(MEMBER_ENCODINGS):
        raise ConfigError(
            f"unknown encodings of members: {reprlib.repr(sorted(unknown))}; deploy one version of SUPER"
        )
    if request.members and not request.fields and not all(request.members):
        raise ConfigError("a member has a name; that a part is a whole object is said of samples with fields")
    columns = request.member_lengths, request.encodings or ("",) * count, request.members
    spans = zip(*columns, strict=True)
    lengths = [length for length, encoding, name in spans if name and encoding not in rows]
    if lengths and min(lengths) < 1:
        raise ConfigError("a member has a length of 1 or more")
