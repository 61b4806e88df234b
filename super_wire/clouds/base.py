"""What a client of another cloud's bucket is asked for, and how a request of it fails.

A throttled request is tried again, a bounded number of times; :class:`CloudError` says what remains.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ATTEMPTS", "Cloud", "CloudError", "Fault", "Page", "fault_of"]

ATTEMPTS = 3
"""So many times one request is made, at most."""

Page = list[tuple[str, str]]
"""Keys and versions of some objects."""


class Fault(enum.Enum):
    """Why a request failed; a value names the :class:`superdl.super_wire.request.Outcome` of a sample."""

    MISSING = "missing"
    CHANGED = "changed"
    REFUSED = "refused"
    UNAVAILABLE = "unavailable"
    """The server throttles, fails, or does not answer: a later request may succeed."""
    FAILED = "source_error"
    """Anything else."""


_FAULTS = {401: Fault.REFUSED, 403: Fault.REFUSED, 404: Fault.MISSING, 410: Fault.MISSING}
_FAULTS |= {412: Fault.CHANGED, 416: Fault.CHANGED}  # another version; the object ends before the span
_FAULTS |= dict.fromkeys((408, 429), Fault.UNAVAILABLE)
_FAULTS |= dict.fromkeys({*range(500, 600)} - {501, 505}, Fault.UNAVAILABLE)


def fault_of(status: int) -> Fault:
    """Classify the HTTP status of an answer that brings no object, whichever store gave it."""
    return _FAULTS.get(status, Fault.FAILED)


class CloudError(Exception):
    """A request failed; the text gives reason and remedy, and leaves the object's name to the caller."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(why)
        self.fault = fault


class Cloud(Protocol):
    """Reads the objects of one bucket, for any number of threads. Each method raises ``CloudError``."""

    def read(
        self,
        key: str,
        *,
        version: str = "",
        begin: int = 0,
        end: int | None = None,
        before: Callable[[int], None] = lambda _: None,
    ) -> bytes:
        """The bytes of an object, or of a span of it.

        Args:
            key: the object's.
            version: an object of another is ``CHANGED``; empty: any.
            begin: where the span begins; less than 0: its last so many bytes are wanted.
            end: where it ends; fewer bytes come where the object ends before. ``None``: all.
            before: called with the number of bytes, before they are received. What it raises passes through.
        """

    def head(self, key: str) -> tuple[str, int]:
        """Version and size of an object."""

    def pages(self, prefix: str) -> Iterator[Page]:
        """All objects below a prefix that is empty or ends with ``/``."""

    def folder(self, prefix: str) -> tuple[list[str], Page] | None:
        """The prefixes of the folders that lie in such a prefix itself, and the objects that do; ``None``
        where it is not worth while to list folders apart.
        """
