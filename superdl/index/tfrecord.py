"""TFRecords: each record a ``tf.train.Example``, whose image lies in it as bytes.

TensorFlow is not needed: the record's frame has four fields, and of protobuf's wire format only lengths
are followed. Images are passed over unread, so checksums of whole records are not checked, those
of their lengths are.
"""

from __future__ import annotations

import struct
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from superdl.index.shard import Member, refuse_compressed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.index.choices import Choices
    from superdl.index.shard import Label, Shard

__all__ = ["masked_crc32c", "tfrecord_members"]

_FRAME = struct.Struct("<QI")
_FOOT_BYTES = 4
_VARINT_BYTES = 10
_NAME_BYTES = 1024
_TEXT_BYTES = 2**16
_SHOWN = 12
_VARINT, _DELIMITED = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}  # by wire type
_BYTES_LIST, _FLOAT_LIST = 1, 2  # fields of a feature; 3 are integers

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
    """The images in a TFRecord file, each named by its record's number, and its feature where chosen."""
    refuse_compressed(shard)
    at, number = 0, 0
    while at < shard.size:
        name = str(number)
        head = shard.read(at, _FRAME.size, name)
        length, crc = _FRAME.unpack(head)
        if masked_crc32c(head[:8]) != crc:
            raise shard.error("the checksum of its length is wrong: it is no TFRecord, or broken", name)
        begin = at + _FRAME.size
        shard.check(begin, length + _FOOT_BYTES, name)
        yield _Example(shard, name).member(begin, begin + length, choices)
        at, number = begin + length + _FOOT_BYTES, number + 1


class _Example:
    """One record, read field by field."""

    def __init__(self, shard: Shard, name: str) -> None:
        self._shard, self._name = shard, name

    def member(self, begin: int, end: int, choices: Choices) -> Member:
        """The image and its label."""
        features = self._features(begin, end)
        images, labels = (
            [features[name] for name in ((field,) if field else usual) if name in features]
            for field, usual in ((choices.image_field, _IMAGES), (choices.label_field, _LABELS))
        )
        if not images:
            raise self._error(
                f"it has no feature {choices.image_field or ' or '.join(_IMAGES)}: name the image's by "
                f"--image-field; its features are {', '.join(sorted(features)[:_SHOWN])}"
            )
        values = self._fields(*images[0], 1, 1)
        if len(values) != 1 or values[0].wire != _DELIMITED:
            raise self._error(f"its image is {len(values)} values, where one of bytes is wanted")
        label = self._label(*labels[0]) if labels and choices.reads_labels else None
        name = f"{choices.image_field}:{self._name}" if choices.image_field else self._name
        return Member(name, values[0].begin, values[0].end - values[0].begin, label)

    def _features(self, begin: int, end: int) -> dict[str, tuple[int, int]]:
        """Name of each feature, and where it lies: Example.features.feature, a map."""
        features = {}
        for entry in self._fields(begin, end, 1, 1):
            name, value = "", (entry.end, entry.end)
            for field in self._fields(entry.begin, entry.end):
                if field.number == 1:
                    name = self._text(field, _NAME_BYTES)
                else:
                    value = field.begin, field.end
            features[name] = value
        return features

    def _label(self, begin: int, end: int) -> Label:
        """The one value of a feature."""
        values: list[Label] = []
        for kind in self._fields(begin, end):
            for value in self._fields(kind.begin, kind.end, 1):
                if kind.number == _BYTES_LIST:
                    values.append(self._text(value, _TEXT_BYTES))
                elif kind.number == _FLOAT_LIST:
                    content = self._shard.read(value.begin, value.end - value.begin, self._name)
                    values += [number for (number,) in struct.iter_unpack("<f", content)]
                else:
                    values += self._integers(value.begin, value.end)
        if len(values) != 1:
            raise self._error(f"its label is {len(values)} values, where one is wanted")
        return values[0]

    def _integers(self, begin: int, end: int) -> Iterator[int]:
        """Varints one behind the other, packed or a single one; negative ones as 64 bits."""
        while begin < end:
            value, begin = self._varint(begin, end)
            yield value - 2**64 if value >= 2**63 else value

    def _text(self, span: _Span, limit_bytes: int) -> str:
        length = span.end - span.begin
        if span.wire != _DELIMITED or length > limit_bytes:
            raise self._error(f"a name or a text of {length:,} bytes in it is none")
        try:
            return self._shard.read(span.begin, length, self._name).decode()
        except UnicodeDecodeError as error:
            raise self._error(f"a name or a label in it is not UTF-8: {error}") from error

    def _fields(self, begin: int, end: int, *path: int) -> list[_Span]:
        """The fields of a message; with a path of numbers, those that it leads to through submessages."""
        spans = list[_Span]()
        while begin < end:
            tag, at = self._varint(begin, end)
            wire = tag & 7
            if wire == _DELIMITED:
                length, at = self._varint(at, end)
                begin = at + length
            elif wire == _VARINT:
                _, begin = self._varint(at, end)
            else:
                begin = at + _FIXED_BYTES.get(wire, end)  # beyond the end: there is no other type
            if begin > end:
                raise self._broken()
            if not path or tag >> 3 == path[0]:
                spans.append(_Span(tag >> 3, wire, at, begin))
        for number in path[1:]:
            spans = [inner for span in spans for inner in self._fields(span.begin, span.end, number)]
        return spans

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
        return self._error("it is no tf.train.Example: its fields do not fit together")

    def _error(self, reason: str) -> Exception:
        return self._shard.error(reason, self._name)


# CRC-32C of each byte.
_CRC = [reduce(lambda crc, _: crc >> 1 ^ 0x82F63B78 * (crc & 1), range(8), byte) for byte in range(256)]


def masked_crc32c(content: bytes) -> int:
    """The checksum of a few bytes as TFRecords have it: CRC-32C, rotated and shifted."""
    crc = 0xFFFFFFFF ^ reduce(lambda crc, byte: _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8, content, 0xFFFFFFFF)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
