"""What a reader owns in one thread of one process: a link to the cache, and what it learned.

Nothing here is inherited: after a fork the child finds another process id and starts with a state of its own,
closing its copies of the parent's sockets (which does not disturb the parent). Nothing here is shared by
threads, so that several can read at once. Nothing here is pickled.
"""

from __future__ import annotations

import os
import random
import threading
from typing import TYPE_CHECKING

import numpy as np

from superdl.super_dataset.reading.buffer import ReplyKind
from superdl.super_dataset.reading.delivery import BadSampleLog
from superdl.super_wire.cache import CacheAddress, Credentials
from superdl.super_wire.record import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from superdl.super_dataset.reading.buffer import BatchBuffer
    from superdl.super_dataset.reading.link import CacheLink, OpenLink

__all__ = ["ReaderState", "ReaderStates"]


class ReaderState:
    """One thread's share.

    ``record_bytes`` is the expected length of a record; ``uniform`` whether the last batch had one size;
    ``told_astray`` whether the log says that another sample's record came.
    """

    def __init__(self, record_bytes: int | None, clock: Callable[[], float], open_link: OpenLink) -> None:
        self.pid = os.getpid()
        # Not the random module's own state: that is the user's. Jitter guards no secret.
        self.random = random.Random()  # noqa: S311
        self.record_bytes = record_bytes
        self.uniform = True
        self.told_astray = False
        self.bad_samples = BadSampleLog(clock)
        self._open_link = open_link
        self._link: CacheLink | None = None
        self._cache = ""

    def link(self, cache: str, *, timeout_s: float) -> CacheLink:
        """The open link to ``cache``, or a new one.

        Raises:
            CacheUnreachableError: a new one was needed and could not be had.
            CacheError: the cache refused the credentials.
            ConfigError: the address or the credentials' settings are wrong.
        """
        if self._link is not None and self._cache != cache:
            self.drop()
        if self._link is None:
            credentials = Credentials.from_environment(os.environ)
            self._link = self._open_link(CacheAddress.parse(cache), credentials, timeout_s=timeout_s)
            self._cache = cache
        return self._link

    def learn(self, buffer: BatchBuffer) -> None:
        """Remember for the next batch how large records are, and whether they are of one size."""
        came = buffer.record_bytes[buffer.replies == ReplyKind.RECORD]
        if len(came):
            usual = int(came[0])
            alike = bool((came == usual).all())
            self.record_bytes = usual if alike else int(np.median(came))
            self.uniform = alike or len(buffer.own) <= len(came) // 2

    @property
    def payload_bytes(self) -> int | None:
        """The expected length of a payload, if one is known."""
        return None if self.record_bytes is None else self.record_bytes - HEADER_BYTES

    @property
    def connected(self) -> bool:
        """Whether a connection is open, as far as this side knows."""
        return self._link is not None and self._link.connected

    def drop(self) -> None:
        """Close the link, if there is one."""
        link, self._link = self._link, None
        if link is not None:
            link.close()


class ReaderStates:
    """Gives each thread of each process its own :class:`ReaderState`, lazily; it goes with the thread."""

    def __init__(self, record_bytes: int | None, clock: Callable[[], float], open_link: OpenLink) -> None:
        self._record_bytes = record_bytes
        self._clock = clock
        self._open_link = open_link
        self._local = threading.local()

    def here(self) -> ReaderState:
        """This thread's state."""
        state: ReaderState | None = getattr(self._local, "state", None)
        if state is not None and state.pid == os.getpid():
            return state
        if state is not None:  # the parent's, by a fork
            state.drop()
        self._local.state = state = ReaderState(self._record_bytes, self._clock, self._open_link)
        return state

    def __reduce__(self) -> tuple[type[ReaderStates], tuple[int | None, Callable[[], float], OpenLink]]:
        return ReaderStates, (self._record_bytes, self._clock, self._open_link)
