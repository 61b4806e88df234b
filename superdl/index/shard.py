"""A shard as every format reads it: bytes by offset, out of a file or an object; and what a member is.

Formats ask for headers, one after the other. A :class:`Shard` fetches large blocks while these lie close
together, and small pieces once they lie far apart: so large members are passed over unread, and small ones
cost few requests.
"""

from __future__ import annotations

import io
import os
import stat
from abc import ABC, abstractmethod
from concurrent.futures import CancelledError
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.super_wire.clouds import CloudError, Fault, open_cloud
from superdl.super_wire.errors import SourceError

if TYPE_CHECKING:
    import threading

    from superdl.coordinator.catalog import Source
    from superdl.super_wire.clouds import Cloud

__all__ = [
    "LABELS",
    "Choices",
    "Label",
    "Member",
    "Shard",
    "ShardError",
    "ShardFile",
    "ShardFormatError",
    "Shards",
    "refuse_compressed",
]

LABELS = ("auto", "numbers", "folder", "shard", "none", "yolo")
"""Where labels come from, as ``--labels`` names it."""

Label = int | float | str | dict[str, Any]

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_UNPACK = "unpack it first (gunzip, unzstd, ...), which costs JPEGs and PNGs hardly any room"
_SHOWN = 200


class ShardError(SourceError):
    """A shard is not what its format says; the message names it, and the member where it is one's fault."""


class ShardFormatError(ShardError):
    """A shard has a form in which no member can be read in place: compressed, encrypted, unknown."""


class Member(NamedTuple):
    """A sample in a shard.

    ``offset`` and ``length`` are bytes of the shard, in Parquet row group and row in it. ``encoding`` is
    empty, ``deflate``, or ``parquet:COLUMN``. ``label`` is ``None`` where the shard says none.
    """

    name: str
    offset: int
    length: int
    label: Label | None = None
    encoding: str = ""


@dataclass(frozen=True, slots=True)
class Choices:
    """What the user says of the samples.

    ``image_field`` and ``label_field`` name the columns, features or extensions of image and label; ``None``:
    the usual ones. ``labels`` is one of ``auto``, ``numbers``, ``folder``, ``shard``, ``none`` and ``yolo``.
    ``missing_label`` is what stands for the label file of an image that has none; ``None``: that is an error.
    ``coco`` is the path or URL of an ``instances_*.json``. ``fields`` are pairs of name and pattern, of
    samples of several files, as :mod:`superdl.index.fields` reads them. ``split`` is the folder in archives
    whose members are read. ``key_at`` says where a member's extension begins: ``first-dot`` or ``last-dot``.
    """

    image_field: str | None = None
    label_field: str | None = None
    labels: str = "auto"
    missing_label: str | None = None
    coco: str | None = None
    fields: tuple[tuple[str, str], ...] = ()
    split: str | None = None
    key_at: str = "first-dot"

    @property
    def reads_labels(self) -> bool:
        """Whether labels come out of the shards."""
        return self.labels in {"auto", "numbers"}

    @property
    def of_loose_images(self) -> bool:
        """Whether only images that are objects of their own can be meant."""
        return self.coco is not None or self.missing_label is not None or self.labels == "yolo"

    def is_image(self, name: str) -> bool:
        """Whether a file's name is an image's, or that of another field."""
        if self.fields:
            from superdl.index.fields import star_of

            return any(star_of(pattern, name) is not None for _, pattern in self.fields)
        from superdl.coordinator.catalog.listing import is_image

        return name.endswith(f".{self.image_field}") if self.image_field else is_image(name)


class Shard(ABC):
    """An object that is open for reading, by one thread.

    ``key`` is relative to the source. ``version`` is the object's; all pieces are of that version, or
    reading fails.
    """

    block_bytes: int
    """What is fetched while what is asked for lies close together."""
    near_bytes: int
    """What is fetched where it lies far apart."""
    far_bytes: int
    """Distance from which on it lies far apart."""

    def __init__(self, url: str, key: str, size: int, version: str, stop: threading.Event) -> None:
        self.url, self.key, self.size, self.version = url, key, size, version
        self._stop = stop
        self._begin, self._piece = 0, b""
        self._asked = 0

    def read(self, offset: int, length: int, member: str = "") -> bytes:
        """Exactly these bytes; ``ShardError`` where the shard ends before."""
        self.check(offset, length, member)
        begin = offset - self._begin
        if begin < 0 or begin + length > len(self._piece):
            if self._stop.is_set():
                raise CancelledError
            far = abs(offset - self._asked) > self.far_bytes
            wanted = max(length, self.near_bytes if far else self.block_bytes)
            self._piece = self._fetch(offset, min(wanted, self.size - offset))
            self._begin, begin = offset, 0
            if len(self._piece) < length:
                raise self.changed()
        self._asked = offset + length
        return self._piece[begin : begin + length]

    def check(self, offset: int, length: int, member: str = "") -> None:
        """See that these bytes lie in the shard."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise self.error(
                f"it is truncated or its headers are wrong: bytes {offset:,} to {offset + length:,} lie "
                "beyond its "
                f"end, at {self.size:,}",
                member,
            )

    def error(self, reason: str, member: str = "") -> ShardError:
        """The error to be raised for what is wrong with the shard, or with one of its members."""
        return ShardError(self._words(reason, member))

    def refusal(self, reason: str, member: str = "") -> ShardFormatError:
        """The error to be raised for a form that cannot be read in place."""
        return ShardFormatError(self._words(reason, member))

    def changed(self) -> ShardError:
        """The error for a shard that is another now."""
        return self.error("it was changed while it was read: index it again when it is whole")

    def _words(self, reason: str, member: str) -> str:
        return f"{self.url}: {f'member {member[:_SHOWN]!r}: ' if member else ''}{reason}"

    @abstractmethod
    def _fetch(self, offset: int, length: int) -> bytes:
        """These bytes, or fewer where the object has been cut off meanwhile."""

    @abstractmethod
    def close(self) -> None:
        """See that it is still the same, and let go of it."""


class _FileShard(Shard):
    # Of a local disk a request costs little, and members of some size are worth passing over.
    block_bytes, near_bytes, far_bytes = 2**18, 2**12, 2**16

    def __init__(self, path: str, key: str, stop: threading.Event) -> None:
        from superdl.coordinator.catalog.listing_file import file_version

        self._version_of = file_version
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise SourceError(f"{path} cannot be read: {error.strerror or error}") from error
        status = os.fstat(self._descriptor)
        super().__init__(path, key, status.st_size, file_version(status).decode(), stop)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise self.error("it is no file")

    def _fetch(self, offset: int, length: int) -> bytes:
        pieces = []
        try:
            while length and (piece := os.pread(self._descriptor, length, offset)):
                pieces.append(piece)
                offset, length = offset + len(piece), length - len(piece)
        except OSError as error:
            raise self.error(f"it cannot be read: {error.strerror or error}") from error
        return b"".join(pieces)

    def close(self) -> None:
        status = os.fstat(self._descriptor)
        os.close(self._descriptor)
        if self._version_of(status).decode() != self.version:
            raise self.changed()


class _BucketShard(Shard):
    # A request costs about as much time as some megabytes.
    block_bytes, near_bytes, far_bytes = 2**23, 2**16, 2**20

    def __init__(self, client: Any, bucket: str, key: str, prefix: str, stop: threading.Event) -> None:
        self._client, self._where = client, {"Bucket": bucket, "Key": prefix + key}
        url = f"s3://{bucket}/{prefix}{key}"
        with self._failures(url):
            head = client.head_object(**self._where)
        super().__init__(url, key, int(head["ContentLength"]), _etag(head), stop)
        if not self.version:
            raise self.error("the object store gives no ETag, by which versions of an object are told apart")

    def _fetch(self, offset: int, length: int) -> bytes:
        with self._failures(self.url):
            answer = self._client.get_object(**self._where, Range=f"bytes={offset}-{offset + length - 1}")
            with closing(answer["Body"]) as body:
                if _etag(answer) != self.version:
                    raise self.changed()
                return bytes(body.read(length))

    def close(self) -> None:
        """Every answer has told its version."""

    @staticmethod
    def _failures(url: str) -> Any:
        from superdl.coordinator.catalog.s3_client import s3_failures

        return s3_failures(url)


class _CloudShard(Shard):
    block_bytes, near_bytes, far_bytes = _BucketShard.block_bytes, _BucketShard.near_bytes, 2**20

    def __init__(self, cloud: Cloud, place: Source, key: str, stop: threading.Event) -> None:
        from superdl.coordinator.catalog.listing_cloud import cloud_failures

        self._cloud, self._key, self._failures = cloud, place.prefix + key, cloud_failures
        url = f"{place.bucket}/{self._key}"
        with cloud_failures(url):
            version, size = cloud.head(self._key)
        super().__init__(url, key, size, version, stop)

    def _fetch(self, offset: int, length: int) -> bytes:
        with self._failures(self.url):
            try:
                return self._cloud.read(self._key, version=self.version, begin=offset, end=offset + length)
            except CloudError as error:
                if error.fault is Fault.CHANGED:
                    raise self.changed() from error
                raise

    def close(self) -> None:
        """Every answer has told its version."""


def _etag(answer: dict[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


class Shards:
    """Opens the objects of a source, from any thread. Set ``stop`` to end what is being read."""

    def __init__(self, place: Source, stop: threading.Event) -> None:
        self._place, self._stop = place, stop
        self._client: Any = None
        self._cloud: Cloud | None = None
        if place.is_s3:
            from superdl.coordinator.catalog.s3_client import make_s3_client

            self._client = make_s3_client()
        elif not place.is_file:
            from superdl.coordinator.catalog.listing_cloud import cloud_failures

            with cloud_failures(place.url):
                self._cloud = open_cloud(place.bucket)

    def open(self, key: str) -> Shard:
        """An object by its key, relative to the source."""
        if self._place.is_file:
            return _FileShard(f"{self._place.directory.rstrip('/')}/{key}", key, self._stop)
        if self._cloud is not None:
            return _CloudShard(self._cloud, self._place, key, self._stop)
        return _BucketShard(self._client, self._place.bucket_name, key, self._place.prefix, self._stop)

    def close(self) -> None:
        """Let go of connections."""
        if self._client is not None:
            self._client.close()


class ShardFile(io.RawIOBase):
    """A shard as libraries want it: a file in which one seeks. Nothing above ``limit_bytes`` is read at
    a time.
    """

    def __init__(self, shard: Shard, limit_bytes: int) -> None:
        super().__init__()
        self._shard, self._limit_bytes, self._at = shard, limit_bytes, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next piece is read."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Read the next piece there, which may be beyond the end."""
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._shard.size}[whence]
        if at < 0:
            raise self._shard.error("its headers lead to before its beginning")
        self._at = at
        return at

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes: so many, or all up to the end."""
        length = max(self._shard.size - self._at, 0)
        if size is not None and size >= 0:
            length = min(length, size)
        if length > self._limit_bytes:
            raise self._shard.error(
                f"a header in it has {length:,} bytes; at most {self._limit_bytes:,} are read"
            )
        found = self._shard.read(self._at, length) if length else b""
        self._at += length
        return found


def refuse_compressed(shard: Shard) -> None:
    """Refuse a shard that is one stream of compressed bytes, in which no member has a place."""
    start = shard.read(0, min(8, shard.size))
    for magic, name in _COMPRESSED.items():
        if start.startswith(magic):
            raise shard.refusal(
                f"it is compressed with {name}, so that no member can be read alone: {_UNPACK}"
            )
