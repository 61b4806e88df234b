"""A shard as every format reads it: bytes by offset, out of a file or an object; and its members.

Formats ask for headers, one after the other. A :class:`Shard` fetches large blocks while these lie close
together, and small pieces once they lie far apart: so large members are passed over unread, and small ones
cost few requests.
"""

from __future__ import annotations

import io
import os
import stat
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.super_wire.clouds import open_cloud
from superdl.super_wire.errors import SourceError
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from superdl.coordinator.catalog import Source

__all__ = [
    "UNPACK",
    "FetchError",
    "Label",
    "Member",
    "Shard",
    "ShardError",
    "ShardFile",
    "ShardFormatError",
    "Shards",
    "refuse_compressed",
]

Label = int | float | str | dict[str, Any]

UNPACK = "unpack it first (gunzip, unzstd, ...), which costs JPEGs and PNGs hardly any room"
"""The remedy for a shard that is compressed as a whole."""

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_SHOWN = 200


class ShardError(SourceError):
    """A shard is not what its format says; the message names it, and the member where it is one's fault."""


class ShardFormatError(ShardError):
    """A shard has a form in which no member can be read in place: compressed, encrypted, unknown."""


class FetchError(Exception):
    """Bytes of an object cannot be read, or not in the version that is meant; the text says why."""

    def __init__(self, why: str, *, changed: bool) -> None:
        super().__init__(why)
        self.changed = changed


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


class _Pieces(NamedTuple):
    """The sizes of what is fetched while headers lie close together, and where they lie ``far`` apart."""

    block: int
    near: int
    far: int


# A request of a local disk costs little, and members of some size are worth passing over.
_OF_DISK = _Pieces(2**18, 2**12, 2**16)
# A request of a bucket costs about as much time as some megabytes.
_OF_BUCKET = _Pieces(2**23, 2**16, 2**20)


class Shard:
    """An object that is open for reading, by one thread.

    ``key`` is relative to the source. ``version`` is the object's; all pieces are of that version, or
    reading fails. ``fetch`` gives the bytes between two places, or raises :class:`FetchError`.
    """

    def __init__(
        self,
        url: str,
        key: str,
        version: str,
        size: int,
        fetch: Callable[[int, int], bytes],
        pieces: _Pieces = _OF_BUCKET,
    ) -> None:
        self.url, self.key, self.version, self.size = url, key, version, size
        self._fetch, self._pieces = fetch, pieces
        self._begin, self._piece, self._end_of_last = 0, b"", 0

    def read(self, offset: int, length: int, member: str = "") -> bytes:
        """Exactly these bytes; ``ShardError`` where the shard ends before."""
        self.check(offset, length, member)
        begin = offset - self._begin
        if begin < 0 or begin + length > len(self._piece):
            far = abs(offset - self._end_of_last) > self._pieces.far
            end = offset + max(length, self._pieces.near if far else self._pieces.block)
            try:
                self._piece = self._fetch(offset, min(end, self.size))
            except FetchError as error:
                why = "it was changed while it was read: index it again when it is whole"
                raise self.error(why if error.changed else f"it cannot be read: {error}") from error
            self._begin, begin = offset, 0
        self._end_of_last = offset + length
        return self._piece[begin : begin + length]

    def check(self, offset: int, length: int, member: str = "") -> None:
        """See that these bytes lie in the shard."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise self.error(
                f"it is truncated or its headers are wrong: bytes {offset:,} to {offset + length:,} lie "
                f"beyond its end, at {self.size:,}",
                member,
            )

    def error(self, reason: str, member: str = "") -> ShardError:
        """The error to be raised for a fault of the shard, or of one of its members."""
        return ShardError(self._words(reason, member))

    def refusal(self, reason: str, member: str = "") -> ShardFormatError:
        """The error to be raised for a form that cannot be read in place."""
        return ShardFormatError(self._words(reason, member))

    def _words(self, reason: str, member: str) -> str:
        return f"{self.url}: {f'member {member[:_SHOWN]!r}: ' if member else ''}{reason}"


class Shards:
    """Opens the objects of a source, from any thread. Set ``stop`` to end all reading.

    They are read as functions read them, but links may lead wherever this user may read.
    """

    def __init__(self, place: Source, stop: threading.Event) -> None:
        from superdl.lambda_prefetch.handler import open_source
        from superdl.lambda_prefetch.settings import FunctionSettings

        self._place, self._stop = place, stop
        settings = replace(FunctionSettings.from_environment(), file_roots=("/",))
        self._source = open_source(place.bucket, settings)
        self._client: Any = None
        if place.is_s3:
            from superdl.coordinator.catalog.s3_client import make_s3_client

            self._client = make_s3_client()

    def open(self, key: str) -> Shard:
        """An object by its key, relative to the source."""
        place, name = self._place, self._place.prefix + key
        url = f"{place.directory.rstrip('/')}/{key}" if place.is_file else f"{place.bucket}/{name}"
        version, size = self._head(url, name)
        if not version:
            raise SourceError(f"{url}: the object store gives no ETag, by which versions are told apart")
        fetch = partial(self._read, name, version)
        return Shard(url, key, version, size, fetch, _OF_DISK if place.is_file else _OF_BUCKET)

    def content(self, key: str, version: str, limit_bytes: int) -> bytes:
        """All bytes of a small object, in the version that was listed; raises :class:`FetchError`."""
        return self._read(self._place.prefix + key, version, limit_bytes=limit_bytes)

    def close(self) -> None:
        """Let go of connections."""
        if self._client is not None:
            self._client.close()

    def _read(self, name: str, version: str, begin: int = 0, end: int = 0, *, limit_bytes: int = 0) -> bytes:
        """Bytes between two places, or all of an object that has no more than ``limit_bytes``."""
        from superdl.lambda_prefetch.sources import SampleFailedError, Span

        if self._stop.is_set():
            raise CancelledError
        span, limit_bytes = (None, limit_bytes) if limit_bytes else (Span(begin, end), end - begin)
        try:
            content = self._source.read(
                name, version, limit_bytes=limit_bytes, reserve=lambda _: None, span=span
            )
        except SampleFailedError as error:
            raise FetchError(error.why, changed=error.outcome is Outcome.CHANGED) from error
        return bytes(content)

    def _head(self, url: str, name: str) -> tuple[str, int]:
        """Version and size of an object."""
        from superdl.coordinator.catalog.listing_cloud import cloud_failures
        from superdl.coordinator.catalog.listing_file import file_version
        from superdl.coordinator.catalog.s3_client import s3_failures

        if self._place.is_file:
            try:
                status = Path(url).stat()
            except OSError as error:
                raise SourceError(f"{url} cannot be read: {error.strerror or error}") from error
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(f"{url} cannot be read: it is no file")
            return file_version(status).decode(), status.st_size
        if self._client is None:
            with cloud_failures(url):
                return open_cloud(self._place.bucket).head(name)
        with s3_failures(url):
            head = self._client.head_object(Bucket=self._place.bucket_name, Key=name)
        return str(head.get("ETag", "")).strip('"'), int(head["ContentLength"])


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
        content = self._shard.read(self._at, length) if length else b""
        self._at += length
        return content


def refuse_compressed(shard: Shard) -> None:
    """Refuse a shard that is one stream of compressed bytes, in which no member has a place."""
    start = shard.read(0, min(8, shard.size))
    for magic, name in _COMPRESSED.items():
        if start.startswith(magic):
            raise shard.refusal(
                f"it is compressed with {name}, so that no member can be read alone: {UNPACK}"
            )
