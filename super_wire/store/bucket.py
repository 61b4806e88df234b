"""A store under an S3 prefix: one PUT for a pack, ranged GETs for records, neighbours in one of them.

The client is boto3's, or one like it, and is handed in with its timeouts and retries: nothing here imports
it, so that its errors are known by what they say. An object appears whole or not at all.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import threading
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from superdl.super_wire.errors import (
    StoreBusyError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreGoneError,
    StoreRefusedError,
)
from superdl.super_wire.ids import digest128
from superdl.super_wire.store.base import Listed, PackInProgress, Store
from superdl.super_wire.store.layout import (
    MARK,
    MAX_TEXT_BYTES,
    PACKS,
    checked_name,
    is_name,
    new_mark,
    read_mark,
    system_failure,
)
from superdl.super_wire.store.pack import new_pack_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from superdl.super_wire.store.pack import PackMeta

__all__ = ["BucketStore"]

_SPOOLED_BYTES = 2**25  # of a pack in memory; a larger one waits for its PUT in a temporary file
_NEAR_BYTES = 2**16  # a gap to read over: a request of its own takes longer
_FAR_BYTES = 2**22  # no gap to read over, however much is wanted around it
_MAX_GET_BYTES = 2**26  # of one GET for several records
_RANGE = re.compile(r"bytes ([0-9]{1,19})-[0-9]{1,19}/([0-9]{1,19})")
_GONE = frozenset({"404", "NoSuchKey", "NoSuchBucket"})
_FULL = frozenset({"507", "QuotaExceeded", "EntityTooLarge", "InsufficientStorage", "XMinioStorageFull"})
_BUSY = frozenset({"408", "429", "SlowDown", "RequestTimeout", "TooManyRequests", "ThrottlingException"})
_BEYOND_THE_END = frozenset({"416", "InvalidRange"})


class BucketStore(Store):
    """A store under an S3 prefix, for any number of threads as its client is."""

    def __init__(self, client: Any, bucket: str, prefix: str, *, read_only: bool) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._lock = threading.Lock()
        self.address = f"s3://{bucket}/{prefix}".rstrip("/")
        self.id = ""
        self.read_only = read_only
        self.requests = 0

    @classmethod
    def open(
        cls, client: Any, bucket: str, prefix: str, *, create: bool, read_only: bool = False
    ) -> BucketStore:
        """Open the store under a prefix, which ends by no slash; make it where ``create`` allows that.

        Raises:
            StoreGoneError: there is none, and it may not be made, or there is no such bucket.
            StoreFormatError: the prefix holds other things, or a store of another version.
            StoreRefusedError: permissions forbid it.
            StoreBusyError: S3 does not answer.
        """
        store = cls(client, bucket, prefix, read_only=read_only)
        try:
            mark = store._get(MARK, 0, MAX_TEXT_BYTES)
        except StoreGoneError:
            if not create or read_only:
                raise
            mark = store._make()
        store.id = read_mark(mark, store.address)
        return store

    def read_many(self, pack: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several (offset, length) of one pack, neighbours by one request. Fewer bytes as by read."""
        found = [b""] * len(spans)
        for group in _neighbours(spans):
            begin = spans[group[0]][0]
            end = max(offset + length for offset, length in (spans[place] for place in group))
            data = memoryview(self._get(_key(PACKS, pack), begin, end - begin))
            for place in group:
                offset, length = spans[place]
                found[place] = bytes(data[offset - begin : offset - begin + length])
        return found

    def begin_pack(self, meta: PackMeta) -> PackInProgress:
        """Begin to write a pack; nobody sees it before it is committed."""
        self._check_writing()
        name = new_pack_name(meta.collection)
        with self._failures(PACKS):
            file = cast("BinaryIO", tempfile.SpooledTemporaryFile(_SPOOLED_BYTES))  # noqa: SIM115 # closed below

        def publish(file: BinaryIO, size: int) -> None:
            file.seek(0)
            self._send(_key(PACKS, name), file, ContentLength=size)
            file.close()

        def discard(file: BinaryIO) -> None:
            with contextlib.suppress(OSError):
                file.close()

        return PackInProgress(
            name, file, meta, publish=publish, discard=discard, failures=lambda: self._failures(PACKS)
        )

    def _make(self) -> bytes:
        """Make a store of a prefix that holds nothing; its mark."""
        with self._failures(""):
            held = self._asked("list_objects_v2", Prefix=self._prefix, MaxKeys=1).get("Contents", [])
        if held and held[0]["Key"] != self._prefix + MARK:
            raise StoreFormatError(
                f"{self.address} is no store: it has {held[0]['Key'][:80]!r} and no {MARK}. Name a prefix "
                "that holds nothing"
            )
        # An id that all who make it at once give it: not every server knows If-None-Match.
        self._send(MARK, mark := new_mark(digest128(self.address.encode()).hex()))
        return mark

    def _asked(self, method: str, **arguments: Any) -> Any:
        with self._lock:
            self.requests += 1
        return getattr(self._client, method)(Bucket=self._bucket, **arguments)

    def _get(self, key: str, offset: int, length: int) -> bytes:
        if length <= 0:
            return b""
        span = f"bytes={offset}-{offset + length - 1}"
        with self._failures(key):
            try:
                answer = self._asked("get_object", Key=self._prefix + key, Range=span)
            except Exception as error:
                if _told_by(error) & _BEYOND_THE_END:
                    return b""
                raise
            with contextlib.closing(answer["Body"]) as body:
                data = body.read(length)
        told = _RANGE.fullmatch(answer.get("ContentRange", ""))
        begin, total = (int(told[1]), int(told[2])) if told else (0, answer["ContentLength"])
        if begin != offset or len(data) != max(0, min(length, total - offset)):
            raise StoreBusyError(f"{self.address}/{key}: {len(data)} bytes of {begin}+ came of {span}")
        return cast("bytes", data)

    def _contents(self, folder: str, name: str, most: int) -> bytes:
        return self._get(_key(folder, name), 0, most)

    def _put(self, folder: str, name: str, data: bytes) -> None:
        self._send(_key(folder, name), data)

    def _send(self, key: str, body: bytes | BinaryIO, **arguments: Any) -> None:
        self._check_writing()
        with self._failures(key):
            self._asked("put_object", Key=self._prefix + key, Body=body, **arguments)

    def _remove(self, folder: str, name: str) -> None:
        self._check_writing()
        key = _key(folder, name)
        with contextlib.suppress(StoreGoneError), self._failures(key):
            self._asked("delete_object", Key=self._prefix + key)

    def _list(self, folder: str) -> list[Listed]:
        prefix, files = f"{self._prefix}{folder}/", []
        with self._failures(folder):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            for page in pages:
                with self._lock:
                    self.requests += 1
                for found in page.get("Contents", []):
                    name = found["Key"].removeprefix(prefix)
                    if is_name(folder, name):
                        files.append(Listed(name, found["Size"], found["LastModified"].timestamp()))
        return files

    @contextlib.contextmanager
    def _failures(self, key: str) -> Iterator[None]:
        """Turn the client's errors, and those of the temporary file, into ours."""
        try:
            yield
        except Exception as error:
            kind = _meaning(error)
            if kind is None:
                raise
            raise kind(f"{self.address}/{key}: {error}") from error


def _key(folder: str, name: str) -> str:
    return f"{folder}/{checked_name(folder, name)}"


def _told_by(error: BaseException | None) -> set[str]:
    """S3's code and the status of its answer; nothing where it did not answer."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        return set()
    code = response.get("Error", {}).get("Code", "")
    return {str(code), str(response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))}


def _meaning(error: Exception) -> type[StoreError] | None:
    """Which of our errors one of the client's is; None for ours, and for faults of the program."""
    if isinstance(error, StoreError):
        return None
    told = _told_by(error)
    if not told:
        if type(error).__module__.partition(".")[0] in {"boto3", "botocore", "urllib3"}:
            lacking = "Credential" in type(error).__name__ or "Token" in type(error).__name__
            return StoreRefusedError if lacking else StoreBusyError
        return system_failure(error) if isinstance(error, OSError) else None
    for codes, kind in ((_GONE, StoreGoneError), (_FULL, StoreFullError), (_BUSY, StoreBusyError)):
        if told & codes:
            return kind
    return StoreRefusedError if any(len(code) == 3 and code[0] == "4" for code in told) else StoreBusyError  # noqa: PLR2004


def _neighbours(spans: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Places of spans that one request reads, grouped: what is read in vain is bounded."""
    group: list[int] = []
    begin = end = vain = 0
    for place in sorted(range(len(spans)), key=spans.__getitem__):
        offset, length = spans[place]
        gap, bytes_of_all = max(0, offset - end), max(end, offset + length) - begin
        near = gap <= _NEAR_BYTES or (gap <= _FAR_BYTES and vain + gap <= end - begin - vain)
        if group and not (near and bytes_of_all <= _MAX_GET_BYTES):
            yield group
            group = []
        if not group:
            begin, end, vain, gap = offset, offset, 0, 0
        group.append(place)
        end, vain = max(end, offset + length), vain + gap
    if group:
        yield group
