"""The interface of every kind of bucket, and the one table of what its failures mean to SUPER.

A request that fails for a passing reason is retried a bounded number of times; :class:`ObjectError` reports
what remains.
"""

from __future__ import annotations

import enum
import re
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

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

__all__ = [
    "ATTEMPTS",
    "Bucket",
    "Fault",
    "Listed",
    "ObjectError",
    "Page",
    "Pending",
    "Span",
    "check_range",
    "check_version",
    "fault_of",
]

ATTEMPTS = 3
"""How many times one request is made, at most."""


class Fault(enum.Enum):
    """Why a request failed; a value names the :class:`superdl.super_wire.request.Outcome` of a sample."""

    MISSING = "missing"
    CHANGED = "changed"
    """It has another version, or ends before the span that was requested."""
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    """The server throttles, fails, or does not answer: a later request may succeed."""
    FAILED = "source_error"
    """Anything else."""

    @property
    def source_error(self) -> type[SourceError]:
        """The error to raise for a source."""
        return _KINDS[self][0]

    @property
    def store_error(self) -> type[StoreError]:
        """The error to raise for a store."""
        return _KINDS[self][1]


_KINDS: dict[Fault, tuple[type[SourceError], type[StoreError]]] = {
    Fault.MISSING: (SourceNotFoundError, StoreGoneError),
    Fault.CHANGED: (SourceError, StoreGoneError),
    Fault.REFUSED: (SourceForbiddenError, StoreRefusedError),
    Fault.UNAVAILABLE: (SourceBusyError, StoreBusyError),
    Fault.FAILED: (SourceError, StoreRefusedError),
}

_FAULTS = {401: Fault.REFUSED, 403: Fault.REFUSED, 404: Fault.MISSING, 410: Fault.MISSING}
_FAULTS |= {412: Fault.CHANGED, 416: Fault.CHANGED}
_FAULTS |= dict.fromkeys((408, 429), Fault.UNAVAILABLE)
_FAULTS |= dict.fromkeys({*range(500, 600)} - {501, 505}, Fault.UNAVAILABLE)


_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


def fault_of(status: int) -> Fault:
    """Classify the HTTP status of an answer that brings no object, whichever store gave it."""
    return _FAULTS.get(status, Fault.FAILED)


class ObjectError(Exception):
    """A request failed; the text gives reason and remedy, and leaves the object's name to the caller.

    ``unreachable`` is set where no way leads to the server, ``full`` where there is no room for what was to
    be written.
    """

    def __init__(self, fault: Fault, why: str, *, unreachable: bool = False, full: bool = False) -> None:
        super().__init__(why)
        self.fault = fault
        self.unreachable = unreachable
        self.full = full

    def of_source(self, what: str) -> SourceError:
        """The error of the source whose object or bucket is ``what``."""
        words = {
            Fault.MISSING: f"{what} does not exist",
            Fault.REFUSED: f"this machine may not read {what}",
            Fault.UNAVAILABLE: f"{what} cannot be read, by up to {ATTEMPTS} attempts",
        }
        return self.fault.source_error(f"{words.get(self.fault, f'{what} cannot be read')} ({self})")

    def of_store(self, what: str) -> StoreError:
        """The error of the store in which the object ``what`` is read or written."""
        kind = StoreFullError if self.full else self.fault.store_error
        return kind(f"{what}: {self}")


class Span(NamedTuple):
    """The bytes of an object from ``begin`` up to ``end``; from -n to 0, its last n."""

    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        """How many these are."""
        return self.end - self.begin

    @property
    def header(self) -> str:
        """The value of the header that requests it."""
        return f"bytes={self.begin}" if self.begin < 0 else f"bytes={self.begin}-{self.end - 1}"

    def within(self, size_bytes: int) -> Span:
        """What an object of so many bytes has of it; nothing, if it ends before the span begins."""
        if self.begin < 0:
            return Span(max(size_bytes + self.begin, 0), size_bytes)
        return Span(self.begin, max(min(self.end, size_bytes), self.begin))


class Listed(NamedTuple):
    """An object in a listing; its ``version`` is empty where the server gives none.

    ``modified`` is a time as in ISO 8601, and S3's alone.
    """

    key: str
    version: str
    size: int
    modified: str = ""


class Page(NamedTuple):
    """A part of a listing: objects, and prefixes of ``folders`` that are not looked into."""

    objects: list[Listed]
    folders: Sequence[str] = ()


class Pending(Protocol):
    """An object that was requested; :mod:`select` can wait for its answer to begin."""

    def fileno(self) -> int:
        """The descriptor to wait for."""

    def close(self) -> None:
        """Give up."""


def _nothing(_size_bytes: int) -> None:
    pass


class Bucket(ABC):
    """The objects of one bucket, for any number of threads. Each method raises :class:`ObjectError`.

    Attributes:
        name: as in sources.
        threads: how many threads read it best.
        in_flight: how many objects each of them should have begun at a time.
        lists_folders: whether each folder is best listed by itself.
        page_lock: held while a page of a listing is worked on. Many threads that compute would keep the
            interpreter from all others, and are no faster.
    """

    name: str
    threads: int = 16  # each waits for one answer
    in_flight: int = 1
    lists_folders: bool = True
    page_lock: AbstractContextManager[object] = nullcontext()

    def begin(self, key: str, version: str, span: Span | None = None) -> Pending | None:  # noqa: ARG002
        """Request an object, or a span of it, whose bytes :meth:`read` is to return later.

        Returns ``None`` if it cannot be requested ahead.
        """
        return None

    @abstractmethod
    def read(
        self,
        key: str,
        *,
        version: str = "",
        span: Span | None = None,
        before: Callable[[int], None] = _nothing,
        begun: Pending | None = None,
    ) -> bytes | bytearray:
        """The bytes of an object, or of a span of it.

        Args:
            key: the object's.
            version: an object of another is ``CHANGED``; empty: any.
            span: fewer bytes come where the object ends before; ``None``: all.
            before: called once with the number of bytes, before they are received. What it raises passes
                through.
            begun: what :meth:`begin` returned for this key, version and span; it is used up.
        """

    @abstractmethod
    def head(self, key: str) -> tuple[str, int]:
        """Version and size of an object."""

    def pages(self, prefix: str, *, folders: bool = False) -> Iterator[Page]:  # noqa: ARG002
        """All objects below a prefix that is empty or ends with ``/``.

        With ``folders``, only those that lie in it itself, and the prefixes of the folders that do.
        """
        raise ConfigError(f"{self.name} cannot be listed by this client")

    def put(self, key: str, body: bytes | BinaryIO, *, content_type: str = "", md5: str = "") -> None:  # noqa: ARG002
        """Write an object, whole or not at all.

        Args:
            key: the object's.
            body: its bytes, or a file that is read from its beginning.
            content_type: for those that read it by HTTP.
            md5: the digest of the bytes in base64; others are refused.
        """
        raise self._read_only()

    def delete(self, key: str) -> None:  # noqa: ARG002
        """Remove an object; it is no error if there is none."""
        raise self._read_only()

    def _read_only(self) -> ConfigError:
        return ConfigError(f"{self.name} is only read: objects are written to s3:// or a directory")


def check_version(found: str, version: str) -> None:
    """Refuse an object of another version than the catalog lists, since its id would lie."""
    if found != version:
        raise ObjectError(Fault.CHANGED, f"its version is {found}; the catalog lists {version}")


def check_range(told: str, size_bytes: int, span: Span) -> None:
    """Refuse bytes that are not those of a span, cut off at most where the object ends."""
    found = _CONTENT_RANGE.fullmatch(told)
    first, last, total = map(int, found.groups()) if found else (-1, -1, -1)
    if (first, last + 1) != span.within(total) or size_bytes != last + 1 - first:
        raise ObjectError(
            Fault.FAILED,
            f"asked for {span.header}, the server gave {size_bytes} bytes and called them {told[:60]!r}: it "
            "does not answer ranges",
        )
