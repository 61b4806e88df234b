"""Following the stream in the cache to which functions append their outcomes, where no call brings them.

Each run of a coordinator has a stream of its own, with a name that nobody can guess. One XREAD waits on it,
however many invocations fly; what was read is deleted. An outcome may come twice, late or never: what nobody
waits for is dropped, and who waits does so for a bounded time. Entries come from the network: one that cannot
be read is logged and skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import TYPE_CHECKING

from superdl.super_wire.errors import CacheError, ConfigError
from superdl.super_wire.keys import outcome_stream
from superdl.super_wire.request import read_outcome
from superdl.super_wire.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.coordinator.cache.cache import Cache
    from superdl.super_wire.request import Answer

__all__ = ["OutcomeReader"]

_log = logging.getLogger(__name__)

_BLOCK_MS = 1000
_COUNT = 16
_PAUSE_S = 0.005  # in which outcomes gather: a read costs as much for one as for many


class OutcomeReader:
    """Brings outcomes to those who wait for them; used from one event loop.

    Attributes:
        stream: its name, which goes with each request.
        unreadable: entries that were no outcome.
        unawaited: outcomes that nobody waited for: second ones, and late ones.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.stream = outcome_stream(os.urandom(16).hex())
        self._key = self.stream.encode()
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self.unreadable = 0
        self.unawaited = 0

    async def begin(self) -> None:
        """Make the stream; ``CacheError`` if the cache does not answer or refuses.

        It outlives its coordinator for longer than a function may run, so that one that is late makes no
        stream anew, which would never expire.
        """
        await self._cache.streams.begin(self._key)

    @contextlib.contextmanager
    def expecting(self, request_id: str) -> Iterator[asyncio.Future[Answer]]:
        """The outcome of a request, for as long as the context lasts; to be entered before it is sent.

        The future fails by :class:`~superdl.super_wire.errors.CacheError` if the outcome may be lost.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        try:
            yield future
        finally:
            if self._waiting.get(request_id) is future:
                del self._waiting[request_id]
            future.cancel()

    async def keep(self) -> None:
        """Keep the stream from expiring, and see that it is still there; errors as of :meth:`begin`."""
        (is_there,) = await self._cache.streams.keep([self._key])
        if not is_there:
            await self.begin()  # first, so that what is asked for from now on finds it
            self.lost()

    def lost(self) -> None:
        """What the stream held is gone: who waits is told."""
        waiting, self._waiting = self._waiting, {}
        if waiting:
            lost = counted(len(waiting), "request")
            _log.warning("what became of %s may be lost: it is asked for again", lost)
        for future in waiting.values():
            if not future.done():
                future.set_exception(CacheError("the cache lost the stream of outcomes"))

    async def read_once(self) -> None:
        """Wait up to a second for outcomes, and hand them out; errors as of :meth:`begin`."""
        for _, entries in await self._cache.streams.take([self._key], block_ms=_BLOCK_MS, count=_COUNT):
            for entry in entries:
                self._take(entry)
            await asyncio.sleep(_PAUSE_S)

    def _take(self, entry: dict[bytes, bytes]) -> None:
        try:
            answer = read_outcome(entry)
        except ConfigError as error:
            self.unreadable += 1
            _log.warning("an outcome in the cache is skipped: %s", error)
            return
        future = self._waiting.pop(answer.request_id, None)
        if future is None or future.done():
            self.unawaited += 1
        else:
            future.set_result(answer)
