"""The interface of all buckets, and the mapping of their failures to SUPER's errors."""

from __future__ import annotations

import enum
import re
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, Self

from superdl.super_wire.errors import (
    ConfigError,
    SourceBusyError,
    SourceError,
    SourceForbiddenError,
    SourceNotFoundError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreGoneError,
    StoreRefusedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# Attempts for a request that fails temporarily, before ObjectError is raised.
ATTEMPTS = 3


class Fault(enum.Enum):
    """The cause of a failed request, with the name of its ``Outcome`` and the errors for source and store."""

    MISSING = "missing", SourceNotFoundError, StoreGoneError
    CHANGED = "changed", SourceError, StoreGoneError  # also if the object ends before the requested span
    REFUSED = "refused", SourceForbiddenError, StoreRefusedError
    UNAVAILABLE = "unavailable", SourceBusyError, StoreBusyError  # a later request may succeed
    FAILED = "source_error", SourceError, StoreRefusedError  # anything else

    source_error: type[SourceError]
    store_error: type[StoreError]

    def __new__(cls, name: str, source_error: type[SourceError], store_error: type[StoreError]) -> Self:
        """Use only the first value as the member's value."""
        fault = object.__new__(cls)
        fault._value_, fault.source_error, fault.store_error = name, source_error, store_error
        return fault


_FAULTS = {401: Fault.REFUSED, 403: Fault.REFUSED, 404: Fault.MISSING, 410: Fault.MISSING}
# If-Match failed, or the object ends before the range.
_FAULTS |= {412: Fault.CHANGED, 416: Fault.CHANGED}
_FAULTS |= dict.fromkeys((408, 429), Fault.UNAVAILABLE)
# 501 and 505 mean that the server does not support the request at all.
_FAULTS |= dict.fromkeys({*range(500, 600)} - {501, 505}, Fault.UNAVAILABLE)


CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


def fault_of(status: int) -> Fault:
    """Return the fault for the HTTP status of a response without an object."""
    return _FAULTS.get(status, Fault.FAILED)


class ObjectError(Exception):
    """A failed request. The message states the reason and the remedy, but not the object's name."""

    def __init__(self, fault: Fault, why: str, *, unreachable: bool = False, full: bool = False) -> None:
        super().__init__(why)
        self.fault = fault
        self.unreachable = unreachable  # no route to the server
        self.full = full  # no space left to write

    def of_source(self, what: str) -> SourceError:
        """Return the error for a source. ``what`` is the name of the object or bucket."""
        summaries = {
            Fault.MISSING: f"{what} does not exist",
            Fault.REFUSED: f"this machine may not read {what}",
            Fault.UNAVAILABLE: f"{what} could not be read in up to {ATTEMPTS} attempts",
        }
        return self.fault.source_error(f"{summaries.get(self.fault, f'{what} cannot be read')} ({self})")

    def of_store(self, what: str) -> StoreError:
        """Return the error for a store. ``what`` is the name of the object."""
        kind = StoreFullError if self.full else self.fault.store_error
        return kind(f"{what}: {self}")


class Span(NamedTuple):
    """The bytes of an object from ``begin`` up to ``end``. Use (-n, 0) for the last n bytes."""

    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        """The number of bytes."""
        return self.end - self.begin

    @property
    def header(self) -> str:
        """The value of the HTTP Range header."""
        return f"bytes={self.begin}" if self.begin < 0 else f"bytes={self.begin}-{self.end - 1}"

    def within(self, size_bytes: int) -> Span:
        """Clip the span to an object's size. The result is empty if the object ends before the span."""
        if self.begin < 0:
            return Span(max(size_bytes + self.begin, 0), size_bytes)
        return Span(self.begin, max(min(self.end, size_bytes), self.begin))


class Listed(NamedTuple):
    """An object in a listing."""

    key: str
    version: str  # empty if the server sends none
    size: int
    modified: str = ""  # a time in ISO 8601, only set by S3


class Page(NamedTuple):
    """A page of a listing: objects, and the prefixes of unexpanded folders."""

    objects: list[Listed]
    folders: Sequence[str] = ()


class Pending(Protocol):
    """A requested object. Use :mod:`select` to wait for its response."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the response begins."""

    def close(self) -> None:
        """Abandon the request."""


class Bucket(ABC):
    """A thread-safe client for the objects in one bucket. All methods can raise :class:`ObjectError`."""

    name: str  # as in source URLs
    threads: int = 16  # the best number of reader threads
    in_flight: int = 1  # objects that each thread should request at once
    lists_folders: bool = True  # whether to list each folder separately
    # Held while a page of a listing is parsed. Parsing in many threads would block others and gain nothing.
    page_lock: AbstractContextManager[object] = nullcontext()

    def begin(self, key: str, version: str, span: Span | None = None) -> Pending | None:  # noqa: ARG002
        """Request an object, or a span of it, for a later :meth:`read`. Returns ``None`` if not supported."""
        return None

    def read(
        self,
        key: str,
        *,
        version: str = "",
        span: Span | None = None,
        before: Callable[[int], None] = lambda _: None,
        begun: Pending | None = None,  # noqa: ARG002
    ) -> bytes | bytearray:
        """Return the bytes of an object, or of a span of it, clipped to the end of the object.

        Raises the fault ``CHANGED`` if the object has a different ``version``. An empty version matches any.
        Calls ``before`` once with the number of bytes, before receiving them, and propagates its errors.
        ``begun`` is the result of :meth:`begin` for the same arguments. It can be used only once.
        """
        return self._fetch(key, version, span, before)

    @abstractmethod
    def _fetch(
        self, key: str, version: str, span: Span | None, before: Callable[[int], None]
    ) -> bytes | bytearray:
        """Read an object that was not requested with :meth:`begin`. Takes the arguments of :meth:`read`."""

    @abstractmethod
    def head(self, key: str) -> tuple[str, int]:
        """Return the version and size of an object."""

    def pages(self, prefix: str, *, folders: bool = False) -> Iterator[Page]:  # noqa: ARG002
        """Yield all objects below a prefix, which must be empty or end with ``/``.

        With ``folders``, yield only the objects directly below the prefix, and the prefixes of its folders.
        """
        raise ConfigError(f"{self.name} cannot be listed by this client")

    def put(self, key: str, body: bytes | BinaryIO, *, content_type: str = "", md5: str = "") -> None:  # noqa: ARG002
        """Write an object atomically, from bytes or from the start of a file.

        The server verifies ``md5``, a base64 digest. ``content_type`` is for HTTP readers.
        """
        raise self._read_only()

    def delete(self, key: str) -> None:  # noqa: ARG002
        """Remove an object. A missing object is not an error."""
        raise self._read_only()

    def _read_only(self) -> ConfigError:
        return ConfigError(f"{self.name} is read-only: objects can only be written to s3:// or a directory")


def check_version(actual: str, version: str) -> None:
    """Raise the fault ``CHANGED`` unless ``actual`` is the catalog's version, which is part of sample ids."""
    if actual != version:
        raise ObjectError(Fault.CHANGED, f"the version is {actual}, but the catalog lists {version}")


def check_range(content_range: str, size_bytes: int, span: Span) -> None:
    """Raise the fault ``FAILED`` unless a response matches the span, clipped to the object."""
    match = CONTENT_RANGE.fullmatch(content_range)
    first, last, total = map(int, match.groups()) if match else (-1, -1, -1)
    if (first, last + 1) != span.within(total) or size_bytes != last + 1 - first:
        raise ObjectError(
            Fault.FAILED,
            f"the server does not support range requests: for {span.header}, it returned {size_bytes} bytes "
            f"with Content-Range {content_range[:60]!r}",
        )
