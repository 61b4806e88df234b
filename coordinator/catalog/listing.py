"""Code shared by all listings: the definition of a sample, counts, warnings and threads."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from superdl.coordinator.catalog.source import Allowed
from superdl.super_wire.display import shown
from superdl.super_wire.source_url import is_hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_Item = TypeVar("_Item")

_EXTENSIONS = ".jpg .jpeg .png .ppm .bmp .pgm .tif .tiff .webp .avif .jp2 .j2k"
# The extensions of torchvision's ImageFolder, regardless of case.
EXTENSIONS = tuple(_EXTENSIONS.split())

_SHOWN = 5  # names in a message


class Noted(StrEnum):
    """Remarks in a listing's warnings. Each is preceded by a count and followed by a few names."""

    FORBIDDEN = "symbolic links point outside it, to places that functions may not read:"
    LEADING_OUT = "symbolic links point outside it and are followed, to"
    NOWHERE = "symbolic links are broken and are skipped:"
    CIRCLES = "paths lead in circles and are skipped:"
    NO_FILES = "entries are named like images but are not files, and are skipped:"
    NOT_UTF8 = "names are not UTF-8 and are skipped, with everything below them; rename them:"
    HIDDEN = "hidden files or folders (.name, __MACOSX) are skipped:"
    LOOSE = "images are not in a class folder and are skipped:"
    NAMELESS = "images are in a folder without a name (//), which is not a class, and are skipped:"
    EMPTY = "folders contain no images and are not classes unless classes= contains them:"
    UNSEEN = "of the given classes have no samples here:"
    SPLITS = "folders are its only classes and look like splits; use one of them as the source:"


class ListingCancelledError(Exception):
    """The client cancelled the listing. This error never leaves the coordinator."""


def is_image(key: str) -> bool:
    """Return whether a key has an image extension."""
    return key.lower().endswith(EXTENSIONS)


def is_sample(key: str, prefix: str, tally: Tally, *, images_only: bool) -> bool:
    """Return whether an object is a sample of the source with this prefix."""
    # A folder's placeholder (a/) is not a sample. With images_only, samples are images that are not hidden.
    if not images_only or not is_image(key):
        return not (images_only or key.endswith("/"))
    if is_hidden(key[len(prefix) :]):
        tally.note(Noted.HIDDEN, key)
        return False
    return True


def escaped(name: str) -> str:
    """Escape a name for use in messages. The name may be invalid UTF-8."""
    return shown(name.encode(errors="surrogateescape").decode(errors="backslashreplace"))


class Tally:
    """Counts the samples of a listing and collects remarks for its warnings.

    ``progress`` is called with increasing counts, and with ``None`` once everything is listed. The listing
    stops when ``cancelled`` is set, or when there are more samples than ``allowed`` permits.
    """

    def __init__(
        self,
        progress: Callable[[int | None], None],
        cancelled: threading.Event,
        allowed: Allowed = Allowed(),  # noqa: B008  # frozen
    ) -> None:
        self.allowed = allowed
        # Set to stop the other threads of this listing.
        self.abandoned = threading.Event()
        self._progress = progress
        self._cancelled = cancelled
        self._lock = threading.Lock()
        self.count = self._reached = 0
        self._noted: Counter[Noted] = Counter()
        self._names: defaultdict[Noted, set[str]] = defaultdict(set)

    def add(self, count: int) -> None:
        """Count more samples. Raises ``ListingCancelledError``, or ``SourceError`` if there are too many."""
        with self._lock:
            self.count += count
        self.reach(self.count)

    def reach(self, count: int) -> None:
        """Report that ``count`` samples have been seen. Raises the same errors as :meth:`add`."""
        self.check()
        with self._lock:
            self.allowed.check_count(count)
            if count > self._reached:
                self._reached = count
                self._progress(count)

    def found_all(self) -> None:
        """Report that all samples have been listed. Raises the same error as :meth:`check`."""
        self.check()
        self._progress(None)

    def note(self, what: Noted, name: str) -> None:
        """Count a remark, keeping only the few names that sort first."""
        with self._lock:
            self._noted[what] += 1
            names = self._names[what]
            names.add(escaped(name))
            if len(names) > _SHOWN + 1:  # keeping the first few noted would depend on the threads
                names.remove(max(names))

    def noted(self, what: Noted) -> str:
        """Return a remark with its count and some names, or an empty string if it does not apply."""
        names = sorted(self._names[what])
        more = ", ..." if len(names) > _SHOWN else ""
        return f"{self._noted[what]:,} {what} {', '.join(names[:_SHOWN])}{more}" if names else ""

    def report(self, source: str) -> tuple[str, ...]:
        """Return one line for each remark about the source."""
        return tuple(f"{source}: {line}" for line in map(self.noted, Noted) if line)

    def check(self) -> None:
        """Raise ``ListingCancelledError`` if the listing was cancelled."""
        if self._cancelled.is_set() or self.abandoned.is_set():
            raise ListingCancelledError("the listing was cancelled")


def on_threads(work: Callable[[_Item], None], items: Iterable[_Item], tally: Tally, *, threads: int) -> None:
    """Call ``work`` on every item in a thread pool. The first failure stops the other calls and is raised."""
    with ThreadPoolExecutor(threads, thread_name_prefix="super-list") as pool:
        try:
            for future in as_completed([pool.submit(work, item) for item in items]):
                future.result()
        except BaseException:  # also after an interrupt, because leaving the pool would wait for every item
            tally.abandoned.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
