"""Follows the cache stream to which functions append outcomes that no call returns.

Each run of a coordinator has its own stream, with an unguessable name. One XREAD waits on it, however many
invocations are in flight, and entries are deleted once read. An outcome may arrive twice, late or never:
unexpected ones are dropped, and every wait is bounded. Entries come from the network, so unreadable ones are
logged and skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import TYPE_CHECKING

from superdl.super_wire.errors import CacheError, ConfigError
from superdl.super_wire.keys import outcome_stream
from superdl.super_wire.redaction import counted
from superdl.super_wire.stream_entries import read_outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.coordinator.cache.cache import Cache
    from superdl.super_wire.request import Answer

__all__ = ["OutcomeReader"]

_log = logging.getLogger(__name__)

_BLOCK_MS = 1000
_COUNT = 16
_PAUSE_S = 0.005  # lets outcomes gather: a read costs the same for one as for many


class OutcomeReader:
    """Delivers outcomes to waiting callers; for use from one event loop.

    Attributes:
        stream: its name, which each request carries.
        unreadable: number of entries that could not be parsed.
        unawaited: number of outcomes without a waiting caller: duplicates and late ones.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.stream = outcome_stream(os.urandom(16).hex())
        self._key = self.stream.encode()
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self.unreadable = 0
        self.unawaited = 0

    async def begin(self) -> None:
        """Create the stream; ``CacheError`` if the cache does not answer or refuses.

        It outlives its coordinator for longer than a function may run. Else a late function would create the
        stream again, and it would never expire.
        """
        await self._cache.streams.begin(self._key)

    @contextlib.contextmanager
    def expecting(self, request_id: str) -> Iterator[asyncio.Future[Answer]]:
        """Yield a future for the outcome of a request. Enter this context before sending the request.

        The future fails with :class:`~superdl.super_wire.errors.CacheError` if the outcome may be lost.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        try:
            yield future
        finally:
            # A retry may have replaced this future.
            if self._waiting.get(request_id) is future:
                del self._waiting[request_id]
            future.cancel()

    async def keep(self) -> None:
        """Keep the stream from expiring, or create it again; raise like :meth:`begin`."""
        (is_there,) = await self._cache.streams.keep([self._key])
        if not is_there:
            await self.begin()  # first, so that requests from now on find it
            self.lost()

    def lost(self) -> None:
        """Fail all pending futures: the contents of the stream are lost."""
        waiting, self._waiting = self._waiting, {}
        if waiting:
            lost = counted(len(waiting), "request")
            _log.warning("what became of %s may be lost: it is asked for again", lost)
        for future in waiting.values():
            if not future.done():
                future.set_exception(CacheError("the cache lost the stream of outcomes"))

    async def read_once(self) -> None:
        """Wait up to a second for outcomes and deliver them; raise like :meth:`begin`."""
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
        # Pop it, so that a duplicate counts as unawaited.
        future = self._waiting.pop(answer.request_id, None)
        if future is None or future.done():
            self.unawaited += 1
        else:
            future.set_result(answer)
