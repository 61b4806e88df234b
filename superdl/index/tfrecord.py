"""TFRecords: each record a ``tf.train.Example``, whose image lies in it as bytes.

TensorFlow is not needed: the record's frame has four fields, and of protobuf's wire format only lengths
are followed. Images are passed over unread, so checksums of whole records are not checked, those
of their lengths are.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from superdl.index.shard import Member, refuse_compressed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.index.shard import Choices, Label, Shard

__all__ = ["masked_crc32c", "tfrecord_members"]

_FRAME = struct.Struct("<QI")
_FOOT_BYTES = 4
_VARINT_BYTES = 10
_NAME_BYTES = 1024
_TEXT_BYTES = 2**16
_SHOWN = 12
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5

# What ImageNet's scripts write, and what TensorFlow Datasets does.
_IMAGES = ("image/encoded", "image")
_LABELS = ("image/class/label", "label")


class _Span(NamedTuple):
    """Where a field's value lies: of a submessage, a text or bytes without its length."""

    number: int
    wire: int
    begin: int
    end: int


def tfrecord_members(shard: Shard, choices: Choices) -> Iterator[Member]:
    """The images in a TFRecord file, each named by its record's number, and its feature where chosen.

    Raises:
        ShardError: it is cut off in a record, broken or compressed; a record is no Example of one image.
    """
    refuse_compressed(shard)
    at, number = 0, 0
    while at < shard.size:
        name = str(number)
        head = shard.read(at, _FRAME.size, name)
        length, crc = _FRAME.unpack(head)
        if masked_crc32c(head[:8]) != crc:
            raise shard.error("the checksum of its length is wrong: it is no TFRecord, or broken", name)
        begin = at + _FRAME.size
        end = begin + length
        shard.check(begin, length + _FOOT_BYTES, name)
        yield _Example(shard, name).member(begin, end, choices)
        at, number = end + _FOOT_BYTES, number + 1


class _Example:
    """One record, read field by field."""

    def __init__(self, shard: Shard, name: str) -> None:
        self._shard, self._name = shard, name

    def member(self, begin: int, end: int, choices: Choices) -> Member:
        """The image and its label."""
        features = self._features(begin, end)
        image = self._feature(features, choices.image_field, _IMAGES)
        if image is None:
            raise self._shard.error(
                f"it has no feature {choices.image_field or ' or '.join(_IMAGES)}: name the image's by "
                "--image-field; "
                f"its features are {', '.join(sorted(features)[:_SHOWN])}",
                self._name,
            )
        values = [one for kind in self._fields(*image, 1) for one in self._fields(kind.begin, kind.end, 1)]
        if len(values) != 1 or values[0].wire != _DELIMITED:
            raise self._shard.error(
                f"its image is {len(values)} values, where one of bytes is wanted", self._name
            )
        label = None
        if choices.reads_labels:
            found = self._feature(features, choices.label_field, _LABELS)
            label = None if found is None else self._label(*found)
        name = f"{choices.image_field}:{self._name}" if choices.image_field else self._name
        return Member(name, values[0].begin, values[0].end - values[0].begin, label)

    @staticmethod
    def _feature(
        features: dict[str, tuple[int, int]], field: str | None, usual: tuple[str, ...]
    ) -> tuple[int, int] | None:
        names = (field,) if field else usual
        return next((features[name] for name in names if name in features), None)

    def _features(self, begin: int, end: int) -> dict[str, tuple[int, int]]:
        """Name of each feature, and where it lies: Example.features.feature, a map."""
        found = {}
        for features in self._fields(begin, end, 1):
            for entry in self._fields(features.begin, features.end, 1):
                name, value = "", (entry.end, entry.end)
                for field in self._fields(entry.begin, entry.end):
                    if field.number == 1:
                        name = self._text(field, _NAME_BYTES)
                    else:
                        value = field.begin, field.end
                found[name] = value
        return found

    def _label(self, begin: int, end: int) -> Label:
        """The one value of a feature: bytes_list is field 1 of it, float_list 2, int64_list 3."""
        values: list[Label] = []
        for kind in self._fields(begin, end):
            for value in self._fields(kind.begin, kind.end, 1):
                if kind.number == 1:
                    values.append(self._text(value, _TEXT_BYTES))
                elif kind.number == 2:  # noqa: PLR2004  # the field's number
                    content = self._shard.read(value.begin, value.end - value.begin, self._name)
                    values += [one for (one,) in struct.iter_unpack("<f", content)]
                else:
                    values += self._integers(value.begin, value.end)
        if len(values) != 1:
            raise self._shard.error(f"its label is {len(values)} values, where one is wanted", self._name)
        return values[0]

    def _integers(self, begin: int, end: int) -> Iterator[int]:
        """Varints one behind the other, packed or a single one; negative ones as 64 bits."""
        while begin < end:
            value, begin = self._varint(begin, end)
            yield value - 2**64 if value >= 2**63 else value

    def _text(self, span: _Span, limit_bytes: int) -> str:
        length = span.end - span.begin
        if span.wire != _DELIMITED or length > limit_bytes:
            raise self._shard.error(f"a name or a text of {length:,} bytes in it is none", self._name)
        try:
            return self._shard.read(span.begin, length, self._name).decode()
        except UnicodeDecodeError as error:
            raise self._shard.error(f"a name or a label in it is not UTF-8: {error}", self._name) from error

    def _fields(self, begin: int, end: int, number: int | None = None) -> Iterator[_Span]:
        """The fields of a message, or those of one number."""
        while begin < end:
            tag, at = self._varint(begin, end)
            wire = tag & 7
            begin = at
            if wire == _DELIMITED:
                length, begin = self._varint(at, end)
                at, begin = begin, begin + length
            elif wire == _VARINT:
                _, begin = self._varint(at, end)
            elif wire in {_FIXED64, _FIXED32}:
                begin = at + (8 if wire == _FIXED64 else 4)
            else:
                raise self._broken()
            if begin > end:
                raise self._broken()
            if number is None or tag >> 3 == number:
                yield _Span(tag >> 3, wire, at, begin)

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """A number, and where the next byte is."""
        content = self._shard.read(at, min(_VARINT_BYTES, end - at), self._name)
        value = 0
        for place, byte in enumerate(content):
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:  # noqa: PLR2004  # the bit that says that more follow
                return value & (2**64 - 1), at + place + 1
        raise self._broken()

    def _broken(self) -> Exception:
        return self._shard.error("it is no tf.train.Example: its fields do not fit together", self._name)


def _table() -> list[int]:
    """CRC-32C of each byte."""
    rows = []
    for row in range(256):
        crc = row
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        rows.append(crc)
    return rows


_CRC = _table()


def masked_crc32c(content: bytes) -> int:
    """The checksum of a few bytes as TFRecords have it: CRC-32C, rotated and shifted."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
