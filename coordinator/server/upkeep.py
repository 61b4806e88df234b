"""Upkeep of the cache while a coordinator is serving: its lock, identity, memory and streams."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from superdl.coordinator.cache.cache import LOCK_TTL_S, LockHeldError
from superdl.coordinator.cache.sweeping import Sweep, known_ids
from superdl.coordinator.core import CacheEvicted, CacheGrew, CacheReset, CacheResized
from superdl.super_wire.cancelling import cancel_and_wait
from superdl.super_wire.errors import CacheError, CacheUnreachableError, ConfigError
from superdl.super_wire.ids import ID_BYTES
from superdl.super_wire.keys import FINGERPRINT_KEY

if TYPE_CHECKING:
    from superdl.coordinator.cache.cache import Cache
    from superdl.coordinator.cache.info import CacheInfo
    from superdl.coordinator.cache.streams import ReportReader
    from superdl.coordinator.cache.sweeping import Ids
    from superdl.coordinator.executors.connected_workers import Workers
    from superdl.coordinator.executors.manager import ExecutorManager
    from superdl.coordinator.server.engine import Engine

_log = logging.getLogger(__name__)

_REACH_TIMEOUT_S = 10.0
_DROPPED_AT_ONCE = 2000
_RETRY_S = 0.2
_LOOK_TIMEOUT_S = LOCK_TTL_S / 2  # a hanging node must not let the lock on another one expire
_BUFFER_SHARE = 0.25
_SETTLED_S = 60.0
_CROWDED_SHARE = 0.9
_FOREIGN_SHARE = 0.125
_SHORT_SHARE = 1 / 32  # of the budget; with less free, the core soon drops more
_FREED_SHARE = 1 / 16
_EVEN_S = 15.0  # for averages of the nodes' CPU
_RENEWED_S = 0.5  # a later expiry by more than this is a renewal


async def take_over(cache: Cache) -> CacheInfo:
    """Connect to the cache and take its lock, within a limited time.

    Raises ``LockHeldError`` if another coordinator holds it, ``CacheUnreachableError`` if the cache does not
    respond, and ``CacheError`` if it refuses access.
    """
    clock = asyncio.get_running_loop().time
    reach_until_s, wait_until_s = clock() + _REACH_TIMEOUT_S, clock() + LOCK_TTL_S + _REACH_TIMEOUT_S
    first_expiry_s = None
    while True:
        try:
            info = await cache.info()
            await cache.hold_lock()
            await cache.audit(bytes(ID_BYTES))  # may records be read?
        except LockHeldError as error:
            expiry_s = clock() + error.expires_in_s
            first_expiry_s = expiry_s if first_expiry_s is None else first_expiry_s
            # A renewed lock has a live owner. Otherwise wait until it expires.
            if expiry_s > first_expiry_s + _RENEWED_S or clock() > wait_until_s:
                raise
        except CacheUnreachableError:
            if clock() > reach_until_s:
                raise
        else:
            return info
        await asyncio.sleep(_RETRY_S)


async def warm_and_take_over(
    manager: ExecutorManager, cache: Cache, workers: Workers | None = None, decoder: str = ""
) -> CacheInfo:
    """Start functions and take over the cache concurrently where possible, because both take a while."""
    chooses = workers is not None and workers.patience_s is not None
    # Functions that cost money start only once the cache is taken, which another coordinator may own.
    info = await take_over(cache) if manager.remote or chooses else None
    if workers is not None and chooses and (digest := decoder or await cache.fingerprint()):
        workers.use(digest)
    warming = asyncio.create_task(manager.start(), name="warm")
    try:
        if info is None:
            info = await take_over(cache)
        while not (await asyncio.wait([warming], timeout=LOCK_TTL_S / 4))[0]:
            with contextlib.suppress(CacheUnreachableError):  # upkeep reports it
                await cache.hold_lock()
        await warming
    finally:
        await cancel_and_wait(warming)
    if workers is not None and chooses and await _replace_decoder(cache, workers.fingerprint):
        info = await cache.info()
    return info


async def agree_on_fingerprint(cache: Cache, digest: str) -> bool:
    """Return whether the cache was new. Raises ``ConfigError`` if a different decoder wrote its records."""
    agreed, is_new = await cache.agree_on_fingerprint(digest)
    # Ask twice: it never changes, but a reply may be garbled.
    if agreed != digest and (await cache.agree_on_fingerprint(digest))[0] != agreed:
        raise CacheUnreachableError(
            f"the cache at {cache.address} returned two decoder fingerprints: its replies are garbled"
        )
    if agreed != digest:
        raise ConfigError(
            f"the functions have the decoder {digest}, but the records in {cache.address} are by {agreed}: "
            "use one version of SUPER and Pillow, or empty the cache"
        )
    return is_new


class DecoderReplacedError(Exception):
    """The coordinator must restart with a different ``decoder``."""

    def __init__(self, decoder: str) -> None:
        super().__init__(f"switching to workers with the decoder {decoder}")
        self.decoder = decoder


async def _replace_decoder(cache: Cache, digest: str) -> bool:
    """Drop records written by any other decoder. Return whether there may have been any."""
    earlier = await cache.fingerprint()
    if earlier in ("", digest):
        return False
    _log.warning(
        "workers have the decoder %s: dropping the records of %s in %s", digest, earlier, cache.address
    )
    cursor, first = 0, True
    while cursor or first:
        cursor, ids = await cache.scan_records(cursor, count=_DROPPED_AT_ONCE)
        first = False
        await cache.drop(ids)
        await cache.hold_lock()
    await cache.set(FINGERPRINT_KEY, digest.encode())  # last, so that it always matches
    return True


class Upkeep:
    """Holds the cache's lock, monitors its identity and memory, and reports changes to the core.

    ``info`` is the initial state of the server, ``fingerprint`` identifies the decoder, and ``cache_bytes``
    is the maximum amount of memory to use, where 0 means all of it.
    """

    def __init__(
        self,
        cache: Cache,
        engine: Engine,
        reports: ReportReader,
        *,
        info: CacheInfo,
        fingerprint: str,
        cache_bytes: int = 0,
    ) -> None:
        self._cache = cache
        self._engine = engine
        self._core = engine.core
        self._reports = reports
        self._sweep = Sweep(cache, self._known)
        self._clock = asyncio.get_running_loop().time
        self._settled_at_s = self._clock() + _SETTLED_S
        self._nodes = info.nodes
        self._evicted_keys = info.evicted_keys
        self._measured, self._measured_at_s = info, self._clock()
        self._is_new = False
        self._fingerprint = fingerprint
        self._cache_bytes = cache_bytes
        self._silent_since = ""
        self._asked = self._dropped = 0
        self._kept_usd = engine.core.state.ledger.total_usd

    async def once(self) -> None:
        """Check the cache once. If it does not respond, the next check tries again.

        Raises ``LockHeldError`` if another coordinator has taken over the cache, and ``ConfigError`` if that
        coordinator has a different decoder.
        """
        try:
            was_taken = await self._cache.hold_lock()
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                self._is_new |= await agree_on_fingerprint(self._cache, self._fingerprint)
                await self._reports.renew(self._clock())
                info = await self._cache.info()  # last, or new records would count as foreign
        except LockHeldError:
            raise
        except (CacheError, TimeoutError) as error:
            reason = str(error) or "it does not respond in time"
            if not self._engine.cache_trouble:
                _log.warning("waiting for the cache: %s", reason)
                self._silent_since = time.strftime("%H:%M:%S UTC", time.gmtime())
            self._engine.cache_trouble = f"no answer and no read reports since {self._silent_since}: {reason}"
            return
        if self._engine.cache_trouble:
            _log.info("the cache responds again")
        self._engine.cache_trouble = ""
        self._note_load(info)
        if info.nodes == self._nodes and info.evicted_keys > self._evicted_keys:  # perhaps the digest
            _log.warning(
                "the cache has evicted %d keys by itself: other programs fill it, or its maxmemory is too "
                "small for the budget. Its policy is %s; set it to noeviction",
                info.evicted_keys - self._evicted_keys,
                info.policy,
            )
            self._engine.post(CacheEvicted())
        elif self._is_new or info.nodes != self._nodes:
            self._lost(info.nodes)
        elif was_taken:
            _log.warning("the lock on the cache had expired and was taken again: this process had stalled")
        self._evicted_keys = info.evicted_keys
        self._is_new = False
        await self._watch_memory(info)
        await self.keep_spent()

    async def keep_spent(self) -> None:
        """Save the amount spent if it has changed, because caps apply across restarts."""
        usd = self._core.spent_usd
        if usd == self._kept_usd:
            return
        try:
            teams = self._core.state.teams
            await self._cache.set_spent_usd(usd, {team.facts.name: team.usd for team in teams if team.usd})
        except CacheError as error:  # the next check retries
            _log.warning("could not save the amount spent, so a restart would lose it: %s", error)
        else:
            self._kept_usd = usd

    def _lost(self, nodes: frozenset[str]) -> None:
        self._kept_usd = 0.0
        if self._nodes & nodes and len(nodes) > 1:
            _log.warning(
                "%d of the cache's %d nodes are new, or one was emptied: looking for missing records, which "
                "are produced again when needed",
                len(nodes - self._nodes),
                len(nodes),
            )
            self._engine.post(CacheEvicted())
        else:
            _log.warning("the cache was restarted or emptied: its records are produced again when needed")
            self._engine.post(CacheReset())
        self._nodes = nodes

    def _note_load(self, info: CacheInfo) -> None:
        load = replace(self._engine.cache_load, fullest_share=info.fullest_share)
        if info.nodes == self._nodes:
            evicted_keys = load.evicted_keys + max(0, info.evicted_keys - self._evicted_keys)
            load = replace(load, evicted_keys=evicted_keys)
        if (passed_s := self._clock() - self._measured_at_s) >= _EVEN_S:
            load = replace(load, busiest_share=info.busiest_share(self._measured, passed_s))
            self._measured, self._measured_at_s = info, self._clock()
        self._engine.cache_load = load

    async def _watch_memory(self, info: CacheInfo) -> None:
        core, budget_bytes = self._core, info.budget(self._cache_bytes)
        if budget_bytes != core.state.budget_bytes:
            sizes = (budget_bytes, core.state.budget_bytes, info.maxmemory, info.used_memory)
            _log.warning(
                "the cache's memory has changed: %.1f MiB are for records instead of %.1f MiB "
                "(maxmemory %.1f MiB, %.1f MiB used)",
                *(size / 2**20 for size in sizes),
            )
        self._engine.post(CacheResized(budget_bytes))
        if not info.maxmemory:
            return
        # Others' memory may take part of the headroom. The rest is for buffers.
        headroom_bytes = int((1 - _BUFFER_SHARE) * (info.maxmemory - core.state.budget_bytes))
        used_bytes = info.used_memory - headroom_bytes
        foreign_bytes = used_bytes - core.state.resident_bytes
        self._engine.post(CacheGrew(foreign_bytes))
        needed_bytes = self._needed_bytes()
        # Jobs return within seconds of a restart, and their records must not be swept.
        if (
            needed_bytes > 0
            and used_bytes > _CROWDED_SHARE * core.state.budget_bytes
            and foreign_bytes > _FOREIGN_SHARE * core.state.budget_bytes
            and self._clock() >= self._settled_at_s
        ):
            each_bytes = info.used_memory / max(1, info.keys)
            await self._sweep.step(self._clock(), math.ceil(needed_bytes / each_bytes))

    def _needed_bytes(self) -> float:
        """Return the number of bytes that open jobs need beyond the free memory."""
        core = self._core
        requests = sum(member.requests for member in core.state.fleet.executors)
        producing = bool(core.state.requests) or requests > self._asked
        dropping = core.state.dropped_samples > self._dropped
        self._asked, self._dropped = requests, core.state.dropped_samples
        # Only if samples were dropped since the last check, or requested while there was hardly any room.
        short = core.state.free_bytes < _SHORT_SHARE * core.state.budget_bytes
        if not core.jobs or not (dropping or (producing and short)):
            return 0.0
        return _FREED_SHARE * core.state.budget_bytes - core.state.free_bytes

    def _known(self) -> list[Ids] | None:
        core, now_s = self._core, self._engine.now_s()
        return known_ids(self._engine.datasets, is_read=core.state.is_read, held=core.held, now_s=now_s)
