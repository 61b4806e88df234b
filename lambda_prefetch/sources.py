"""Read samples from their source or from *blocks*, aligned pieces of shards cached on a local disk."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from superdl.super_wire.objects import ObjectError, Span
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.super_wire.objects import Bucket, Pending


class SampleFailedError(Exception):
    """A sample cannot be produced, now or ever. The pipeline prefixes ``message`` with the sample's name.

    ``reason`` is the tombstone's code. An empty reason means that the object's bytes are not at fault, so
    nothing is written to the cache and the sample is retried.
    """

    def __init__(self, outcome: Outcome, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.outcome, self.message, self.reason = outcome, message, reason

    def without_traceback(self) -> Self:
        """Return the error without its traceback and cause, which would keep received bytes alive."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


def fatal(reason: str, message: str) -> SampleFailedError:
    """Return a permanent failure for an object version whose bytes can never produce a sample.

    ``reason`` is ``empty``, ``not_an_image``, ``undecodable``, ``too_large``, ``too_small`` or
    ``unequal``.
    """
    return SampleFailedError(Outcome.TOMBSTONE, message, reason=reason)


def read_object(
    bucket: Bucket,
    key: str,
    version: str,
    *,
    limit_bytes: int,
    reserve: Callable[[int], None],
    begun: Pending | None = None,
    span: Span | None = None,
) -> bytes | bytearray:
    """Return the bytes of this exact version of an object, or a span of them, cut off at the object's end.

    Anything larger than ``limit_bytes`` is rejected before it is read. ``reserve`` is called once
    with the size in bytes before reading, and may block. ``begun`` is the result of calling
    :meth:`Bucket.begin` with this key, version and span. It is consumed.
    """

    def before(size_bytes: int) -> None:
        if size_bytes > limit_bytes:
            raise fatal("too_large", f"{size_bytes} bytes exceed the limit of {limit_bytes}")
        reserve(size_bytes)

    try:
        return bucket.read(key, version=version.strip('"'), span=span, before=before, begun=begun)
    except ObjectError as error:
        raise SampleFailedError(Outcome(error.fault.value), str(error)) from error


BLOCK_BYTES = 16 * 2**20
_READ_ALONE = 2  # number of separate reads from a block before the whole block is fetched
_IDLE_S = 600.0  # a block that was not read for this long may be replaced
_FETCHED_AT_ONCE = 16  # by all processes, each into memory; more would overload a slow link
_FULL_S = 5.0  # interval between checks for room in a full cache
_ABANDONED_S = 120.0  # a process that fetches a block for longer has died
_READS, _PARTIAL, _LOCK = ".reads", ".partial", "lock"


class ShardCache:
    """A cache of up to ``max_bytes`` in an existing directory, shared by threads and processes."""

    def __init__(self, directory: str, max_bytes: int) -> None:
        self._directory, self._max_bytes = Path(directory), max_bytes
        self._full_until_s = 0.0

    def count_read(self, bucket: Bucket, key: str, version: str, span: Span) -> bool:
        """Count a read of a shard's span. Return whether :meth:`read` should be used for it."""
        # An object without a version may change. Files are already on disk.
        if not version or span.size_bytes > BLOCK_BYTES or bucket.name.startswith("file://"):
            return False
        missing = [path for path, _ in self._blocks((bucket.name, key, version), span) if not path.exists()]
        if missing and time.monotonic() < self._full_until_s:
            return False
        # The "ski rental" rule: the total cost is never much higher than that of the better choice.
        return all(_count(path) > _READ_ALONE for path in missing)

    def read(
        self, bucket: Bucket, key: str, version: str, span: Span, reserve: Callable[[int], None]
    ) -> tuple[bytes | None, int, int]:
        """Return a shard's span, and the numbers of bytes fetched and requests made for it.

        The span is ``None`` if a block can be neither read nor fetched here, and is cut off at the end of
        the shard. ``reserve`` is called with the span's length before reading, and may block.
        """
        parts, fetched_bytes, requests = [], 0, 0
        reserve(span.size_bytes)
        for path, block in self._blocks((bucket.name, key, version), span):
            begin, end = max(span.begin, block.begin), min(span.end, block.end)
            part_slice = slice(begin - block.begin, end - block.begin)
            part = _read_cached(path, part_slice)
            if part is None:
                data = self._fetch(bucket, key, version, path, block)
                if data is None:
                    return None, fetched_bytes, requests
                part = bytes(memoryview(data)[part_slice])
                fetched_bytes, requests = fetched_bytes + len(data), requests + 1
            parts.append(part)
        return b"".join(parts), fetched_bytes, requests

    def _blocks(self, shard: tuple[str, str, str], span: Span) -> Iterator[tuple[Path, Span]]:
        """Yield the file of each block that overlaps a span, with the block's own span in the shard."""
        name = hashlib.blake2b("\0".join(shard).encode(), digest_size=16).hexdigest()
        for begin in range(span.begin // BLOCK_BYTES * BLOCK_BYTES, span.end, BLOCK_BYTES):
            yield self._directory / f"{name}-{begin}", Span(begin, begin + BLOCK_BYTES)

    def _fetch(
        self, bucket: Bucket, key: str, version: str, path: Path, block: Span
    ) -> bytes | bytearray | None:
        """Fetch and cache a block.

        Returns ``None`` if another process is fetching it, too many are being fetched, or no space is left.
        """
        partial = path.with_name(path.name + _PARTIAL)
        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context(Path(f"{path}{_READS}").open("ab"))
                # A process that is already fetching this block holds the lock.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.exists() or not self._claim(partial):
                    return None
            except OSError:
                return None
            stack.callback(partial.unlink, missing_ok=True)  # unless it is renamed
            data = read_object(
                bucket, key, version, limit_bytes=BLOCK_BYTES, reserve=lambda _: None, span=block
            )
            try:
                partial.write_bytes(data)
                partial.rename(path)
            except OSError:
                self._full_until_s = time.monotonic() + _FULL_S
            return data

    def _claim(self, partial: Path) -> bool:
        """Claim space for a block with a sparse file of its size. Remove blocks that were idle too long."""
        with (self._directory / _LOCK).open("ab") as lock:  # the coordinator has a different lock
            fcntl.flock(lock, fcntl.LOCK_EX)
            now_s, blocks, partials, used_bytes = time.time(), list[tuple[float, int, Path]](), 0, BLOCK_BYTES
            for path in self._directory.iterdir():
                if path.suffix == _READS or path.name == _LOCK:
                    continue
                status = path.stat()
                partials += path.suffix == _PARTIAL and status.st_mtime > now_s - _ABANDONED_S
                used_bytes += status.st_size
                blocks.append((status.st_mtime, status.st_size, path))
            if partials >= _FETCHED_AT_ONCE:
                return False
            for used_s, size_bytes, path in sorted(blocks):
                # With random reads, replacing a block that is still in use gains nothing.
                if used_bytes <= self._max_bytes or used_s > now_s - _IDLE_S:
                    break
                path.unlink(missing_ok=True)
                used_bytes -= size_bytes
                with contextlib.suppress(OSError):  # restart the count of its reads
                    os.truncate(f"{path}{_READS}", 0)
            if used_bytes > self._max_bytes:
                self._full_until_s = time.monotonic() + _FULL_S
                return False
            with partial.open("wb") as claimed:
                claimed.truncate(BLOCK_BYTES)  # other processes count its length
            return True


def _count(path: Path) -> int:
    """Count a read of a missing block. Return the total number of reads by all processes."""
    with contextlib.suppress(OSError), Path(f"{path}{_READS}").open("ab", buffering=0) as counter:
        counter.write(b".")  # appending keeps the counts of other processes
        return counter.tell()
    return 0


def _read_cached(path: Path, part_slice: slice) -> bytes | None:
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as block:
        os.utime(block.fileno())  # ShardCache uses this time to remove idle blocks
        return os.pread(block.fileno(), part_slice.stop - part_slice.start, part_slice.start)
    return None


@functools.lru_cache(maxsize=1)
def open_shard_cache(directory: str, max_bytes: int) -> ShardCache | None:
    """Return this process's shard cache, or ``None`` if there is no directory or no room for a block."""
    return ShardCache(directory, max_bytes) if directory and max_bytes >= BLOCK_BYTES else None
