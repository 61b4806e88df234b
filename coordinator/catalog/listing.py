"""Listing, whatever is listed: what is found, how it is counted, how it runs on threads.

Looking into directories is :mod:`superdl.coordinator.catalog.listing_file`'s, asking an object store
:mod:`superdl.coordinator.catalog.listing_s3`'s.
"""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superdl.coordinator.catalog.source import Allowed
from superdl.coordinator.catalog.strings import PackedStrings, PackedStringsBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "EXTENSIONS",
    "Folder",
    "FolderBuilder",
    "ListingCancelledError",
    "Tally",
    "is_image",
    "list_folders",
]

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The extensions of torchvision's ImageFolder; upper and lower case are one."""

_REPORT_EVERY = 500


class ListingCancelledError(Exception):
    """Whoever asked for the listing does not want it any more. It never leaves the coordinator."""


def is_image(key: str) -> bool:
    """Whether a key has the extension of an image."""
    return key.lower().endswith(EXTENSIONS)


@dataclass(frozen=True, slots=True)
class Folder:
    """What was found below one first-level folder of a source, in any order.

    ``name`` is the folder's, empty for what lies in the source itself. ``keys`` are full object keys.
    """

    name: str
    keys: PackedStrings
    versions: PackedStrings


class Tally:
    """Counts what is found, tells ``progress`` in rising order, ends the work when ``cancelled`` is set, or
    when there is more than is ``allowed``; ``warnings`` is what people are to be told of the source.
    """

    def __init__(
        self,
        progress: Callable[[int], None],
        cancelled: threading.Event,
        allowed: Allowed = Allowed(),  # noqa: B008  # frozen
    ) -> None:
        self.allowed = allowed
        self.warnings: list[str] = []
        self.abandoned = threading.Event()
        """Set to end what other threads still do for this listing."""
        self._progress = progress
        self._cancelled = cancelled
        self._lock = threading.Lock()
        self._count = 0

    def add(self, count: int) -> None:
        """Count ``count`` more; ``ListingCancelledError`` if nobody wants to know any more, ``SourceError``
        if these are too many.
        """
        self.check()
        with self._lock:
            self._count += count
            self.allowed.check_count(self._count)
            self._progress(self._count)

    def check(self) -> None:
        """Raise ``ListingCancelledError`` if nobody wants to know any more."""
        if self._cancelled.is_set() or self.abandoned.is_set():
            raise ListingCancelledError("the listing was cancelled")


class FolderBuilder:
    """Collects one folder's samples and counts them, ``every`` so many."""

    def __init__(self, name: str, tally: Tally, *, every: int = _REPORT_EVERY) -> None:
        self._name = name
        self._tally = tally
        self._every = every
        self._keys = PackedStringsBuilder()
        self._versions = PackedStringsBuilder()
        self._counted = 0

    def append(self, key: bytes, version: bytes) -> None:
        """Add one sample."""
        self._keys.append(key)
        self._versions.append(version)
        if len(self._keys) - self._counted == self._every:
            self._count()

    def build(self) -> Folder:
        """What was added."""
        self._count()
        return Folder(self._name, self._keys.build(), self._versions.build())

    def _count(self) -> None:
        self._tally.add(len(self._keys) - self._counted)
        self._counted = len(self._keys)


def list_folders(
    work: Callable[[str], Folder], names: Sequence[str], tally: Tally, *, threads: int
) -> list[Folder]:
    """Run ``work`` for every folder on so many threads; the first failure ends them all and is raised."""
    with ThreadPoolExecutor(threads, thread_name_prefix="super-list") as pool:
        futures = [pool.submit(work, name) for name in names]
        failed = True
        try:
            failed = any(future.exception() for future in wait(futures, return_when=FIRST_EXCEPTION).done)
        finally:
            if failed:  # also by an interrupt: the pool's end below would wait for every folder
                tally.abandoned.set()
                pool.shutdown(wait=False, cancel_futures=True)
    failures = [future.exception() for future in futures if not future.cancelled()]
    # What went wrong comes before what was given up because of it.
    reasons = sorted(filter(None, failures), key=lambda failure: isinstance(failure, ListingCancelledError))
    if reasons:
        raise reasons[0]
    return [future.result() for future in futures]
