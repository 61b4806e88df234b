"""Read shards in pieces, from files and buckets, and describe their members."""

from __future__ import annotations

import io
import os
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from superdl.super_wire.errors import SourceError
from superdl.super_wire.objects import Fault, ObjectError, Span, open_bucket, source_failures

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from superdl.coordinator.catalog import Source

Label = int | float | str | dict[str, Any]

# The remedy for a shard that is compressed as a whole.
UNPACK = "unpack it first (gunzip, unzstd, ...); compression saves hardly anything on JPEGs and PNGs"

_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_SHOWN = 200


class ShardError(SourceError):
    """A shard is corrupt or cannot be read in place. The message names the shard and the bad member."""


class Member(NamedTuple):
    """A sample in a shard. ``offset`` and ``length`` are in bytes or, in Parquet, a row group and a row."""

    name: str
    offset: int
    length: int
    # None if the shard has no labels.
    label: Label | None = None
    # Empty, deflate, or parquet:COLUMN.
    encoding: str = ""


# Bytes to fetch while headers are close together, and while they are far apart, and the threshold.
# A read from a local disk is cheap; a request to a bucket takes about as long as some megabytes.
_DISK_PIECES = 2**18, 2**12, 2**16
_BUCKET_PIECES = 2**23, 2**16, 2**20


class Shard:
    """An object that is open for reading by one thread. Reading fails if its version has changed.

    ``key`` is relative to the source. ``fetch`` takes a length and an offset, and returns those bytes.
    """

    def __init__(
        self, url: str, key: str, version: str, size: int, fetch: Callable[[int, int], bytes]
    ) -> None:
        self.url, self.key, self.version, self.size, self._fetch = url, key, version, size, fetch
        self._begin, self._piece, self._end_of_last = 0, b"", 0

    def read(self, offset: int, length: int, member: str = "") -> bytes:
        """Return exactly these bytes; raise ``ShardError`` if the shard is too short."""
        self.check(offset, length, member)
        begin = offset - self._begin
        if begin < 0 or begin + length > len(self._piece):
            block, near, far = _DISK_PIECES if self.url.startswith("/") else _BUCKET_PIECES
            # Small pieces skip large members; large blocks serve small ones with few requests.
            piece = near if abs(offset - self._end_of_last) > far else block
            end = offset + max(length, piece)
            self._piece = self._fetch(min(end, self.size) - offset, offset)
            self._begin, begin = offset, 0
        self._end_of_last = offset + length
        return self._piece[begin : begin + length]

    def whole(self, limit_bytes: int) -> bytes:
        """Return all bytes; raise ``ShardError`` if they exceed the limit."""
        if self.size > limit_bytes:
            raise self.error(f"has {self.size:,} bytes, but at most {limit_bytes:,} can be read")
        return self.read(0, self.size)

    def check(self, offset: int, length: int, member: str = "") -> None:
        """Raise ``ShardError`` unless these bytes are within the shard."""
        if offset < 0 or length < 0 or offset + length > self.size:
            wrong = f"bytes {offset:,} to {offset + length:,} are beyond its end, at {self.size:,}"
            raise self.error(f"truncated, or its headers are wrong: {wrong}", member)

    def refuse_compressed(self) -> None:
        """Raise ``ShardError`` if the shard is a single compressed stream."""
        start = self.read(0, min(8, self.size))
        if name := next((name for magic, name in _COMPRESSED.items() if start.startswith(magic)), None):
            raise self.error(f"compressed with {name}, so members cannot be read individually: {UNPACK}")

    def error(self, reason: str, member: str = "") -> ShardError:
        """Return an error about the shard, or about one of its members."""
        return ShardError(f"{self.url}: {f'member {member[:_SHOWN]!r}: ' if member else ''}{reason}")


class Shards:
    """The objects of a source. Thread-safe. Set ``stop`` to end all reading."""

    def __init__(self, source: Source, stop: threading.Event) -> None:
        from superdl.lambda_prefetch.settings import FunctionSettings

        self.root, self._stop = source, stop
        hosts = FunctionSettings.from_environment().http_hosts
        with source_failures(source.url):
            # As in functions, except that links may lead anywhere that this user may read.
            self._bucket = open_bucket(source.bucket, hosts, roots=("/",))

    def open(self, key: str) -> Shard:
        """Open an object by its key relative to the source."""
        url = self.url(key)
        with source_failures(url):
            version, size = self._bucket.head(self.root.prefix + key)
        if not version:
            raise SourceError(f"{url}: the object store returns no ETag, which is needed to detect changes")
        return Shard(url, key, version, size, partial(self.read, key, version))

    def read(self, key: str, version: str, limit_bytes: int, begin: int | None = None) -> bytes:
        """Return an object of at most ``limit_bytes`` or, with ``begin``, that many bytes starting there.

        Raises ``ShardError`` if the object is larger or cannot be read.
        """
        if self._stop.is_set():
            raise CancelledError

        def check(size_bytes: int) -> None:
            if size_bytes > limit_bytes:
                why = f"{size_bytes:,} bytes exceed the limit of {limit_bytes:,}"
                raise ShardError(f"{self.url(key)} cannot be read: {why}")

        span = None if begin is None else Span(begin, begin + limit_bytes)
        try:
            return bytes(self._bucket.read(self.root.prefix + key, version=version, span=span, before=check))
        except ObjectError as error:
            changed = error.fault is Fault.CHANGED
            why = "changed while it was being read: index it again" if changed else "cannot be read"
            raise ShardError(f"{self.url(key)} {why}: {error}") from error

    def url(self, key: str) -> str:
        """Return an object's URL or a file's path, for messages."""
        source = self.root
        return f"{source.directory.rstrip('/') if source.is_file else source.bucket}/{source.prefix}{key}"


class ShardFile(io.RawIOBase):
    """A shard as a seekable file. Each read returns at most ``limit_bytes``."""

    def __init__(self, shard: Shard, limit_bytes: int) -> None:
        super().__init__()
        self._shard, self._limit_bytes, self._at = shard, limit_bytes, 0

    def readable(self) -> bool:
        """Return ``True``."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read, which may be beyond the end."""
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._shard.size}[whence]
        if at < 0:
            raise self._shard.error("headers point before its start")
        self._at = at
        return at

    def read(self, size: int | None = -1) -> bytes:
        """Return up to ``size`` bytes, by default all that remain."""
        length = max(self._shard.size - self._at, 0)
        if size is not None and size >= 0:
            length = min(length, size)
        if length > self._limit_bytes:
            raise self._shard.error(f"a header takes up {length:,} bytes, more than {self._limit_bytes:,}")
        content = self._shard.read(self._at, length) if length else b""
        self._at += length
        return content
