"""The page headers of a Parquet column chunk, which determine what pyarrow allocates."""

from __future__ import annotations

from typing import Any, Protocol

# pyarrow ignores the footer's sizes: a page's own header sizes the buffer for the unpacked page.
_PAGES_MAX = 2**16
_VALUE_BYTES = 16  # pyarrow's overhead per dictionary value, or per length in an encoded list of lengths
_INT32_END = 2**31
_VARINT_BYTES = 10
_DEPTH = 3  # page header, data page header, statistics
_FIELD_MAX = 2**15 - 1  # Thrift truncates larger numbers to 16 bits, which could alias another field
# Field numbers of a page header, and of its nested headers: number of values, encoding.
_UNPACKED, _PACKED = 2, 3
_NESTED = {5: (1, 2), 7: (1, 2), 8: (1, 4)}
# Plain, both dictionary encodings, delta lengths, and number encodings. In others, a page may have far
# more values than its bytes suggest.
_ENCODINGS = frozenset({0, 2, 3, 5, 6, 8, 9})
# Type codes of a compact struct.
_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, 12


class Bytes(Protocol):
    """A sequence of bytes. Indexing past the end raises ``IndexError``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> int: ...


class PagesError(ValueError):
    """Pages are too large to decode, or cannot be checked."""

    def __init__(self, reason: str, *, is_large: bool = False) -> None:
        super().__init__(reason)
        self.is_large = is_large


def check_pages(chunk: Bytes, unpacked_bytes: int, limit_bytes: int) -> int:
    """Check the pages of a column chunk, and return its number of values.

    Raises ``PagesError`` if the pages unpack to more than ``unpacked_bytes``, a page's values do not fit into
    ``limit_bytes``, or a header is corrupt.
    """
    at, pages, total_bytes, total_values = 0, 0, 0, 0
    while at < len(chunk):
        try:
            header, at = _struct(chunk, at, _DEPTH)
            size_bytes, packed_bytes = _size(header[_UNPACKED]), _size(header[_PACKED])
            nested = [(header[number], *numbers) for number, numbers in _NESTED.items() if number in header]
            values = max((_size(fields[count]) for fields, count, _ in nested), default=0)
            encodings = {fields[encoding] for fields, _, encoding in nested}
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise PagesError(f"the file has a corrupt page header: {error!r:.80}") from error
        if not encodings <= _ENCODINGS:
            raise PagesError(f"the file uses unsupported encodings (it has {encodings}): write plain values")
        at += packed_bytes
        pages += 1
        total_bytes += size_bytes
        total_values += values
        if total_bytes > unpacked_bytes or size_bytes + values * _VALUE_BYTES > limit_bytes:
            raise PagesError(
                f"the pages unpack to {total_bytes} bytes or more, with {values} values in one page, but the "
                f"file's footer states {unpacked_bytes} bytes and the limit is {limit_bytes}",
                is_large=True,
            )
        if pages > _PAGES_MAX:
            raise PagesError(f"the row group has more than {_PAGES_MAX} pages", is_large=True)
    return total_values


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _INT32_END:
        raise ValueError(f"not a valid size: {value!r:.40}")
    return value


def _struct(data: Bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return a compact Thrift struct's fields by number, and its end. Strings and doubles are skipped."""
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        kind, step = head & 15, head >> 4
        if step:
            number += step
        else:
            number, at = _integer(data, at)
        value: Any = None
        if kind in _INTEGERS:
            value, at = _integer(data, at)
        elif kind == _STRUCT and depth > 1:
            value, at = _struct(data, at, depth - 1)
        elif kind == _BINARY:
            length, at = _varint(data, at)
            at += length
        elif kind in {_BYTE, _DOUBLE}:
            at += 1 if kind == _BYTE else 8
        elif kind not in {_TRUE, _FALSE}:
            raise ValueError(f"unknown field type {kind}")
        if number in fields or not 0 <= number <= _FIELD_MAX:  # Thrift would use the repeated field
            raise ValueError(f"field {number} is repeated or out of range")
        fields[number] = value
    return fields, at + 1


def _integer(data: Bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: Bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES):
        byte = data[at + index]
        value |= (byte & 127) << (7 * index)
        if byte < 128:  # noqa: PLR2004 # the highest bit means that more bytes follow
            return value, at + index + 1
    raise ValueError("a number is too long")
