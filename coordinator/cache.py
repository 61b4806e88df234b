"""The coordinator's side of the cache: what it asks, deletes and buries there, the lock it holds, what the
server says of itself.

Records are written by functions and read by readers; the report streams are read in
:mod:`coordinator.reports`. Commands raise :class:`~super_wire.errors.CacheError` where the server refuses and
:class:`~super_wire.errors.CacheUnreachableError` where nobody answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from super_wire.errors import CacheError, CacheUnreachableError
from super_wire.ids import ID_BYTES
from super_wire.keys import GOLDEN_KEY, LOCK_KEY, RECORD_PREFIX, cache_keys
from super_wire.record import (
    HEADER_BYTES,
    HEADER_DTYPE,
    MAGIC,
    RECORD_VERSION,
    Kind,
    Tombstone,
    pack_tombstone,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["LOCK_TTL_S", "Cache", "CacheInfo", "LockHeldError"]

LOCK_TTL_S = 10
_PIPELINE_KEYS = 1000
_RECORD_KEY = re.compile(re.escape(RECORD_PREFIX) + rb"[0-9a-f]{%d}" % (2 * ID_BYTES))
_TIMEOUT_S = 10.0
_HEADROOM_SHARE = 0.1
_HEADROOM_BYTES = 64 * 2**20
_UNLIMITED_SHARE = 0.25
_LOGIN_ERRORS = (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError)

# The lock's value is 32 hex digits of this instance, then the owner. Renew it if it is ours; take it if none
# holds it or, where ARGV[4] says so, another instance of our owner. Only taking needs memory: a full cache
# still renews. Answers what was done, and in how many milliseconds another's lock expires.
_HOLD_LOCK = """
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] .. ARGV[2] then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {'renewed', 0}
end
if held and not (ARGV[4] == '1' and string.sub(held, 33) == ARGV[2]) then
  return {'refused', redis.call('PTTL', KEYS[1])}
end
redis.call('SET', KEYS[1], ARGV[1] .. ARGV[2], 'PX', ARGV[3])
return {'taken', 0}
"""
_RELEASE_LOCK = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class LockHeldError(CacheError):
    """Another coordinator owns the cache; its lock expires in ``expires_in_s`` unless it renews it."""

    def __init__(self, message: str, expires_in_s: float = 0.0) -> None:
        super().__init__(message)
        self.expires_in_s = expires_in_s


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """What the server says of itself; sizes in bytes, ``maxmemory`` 0 where it has none."""

    run_id: str
    used_memory: int
    maxmemory: int
    policy: str
    system_memory: int
    keys: int
    evicted_keys: int = 0
    """Keys that it has dropped of its own accord since it started."""

    def budget(self, wanted: int) -> int:
        """Memory for records: what was asked for, else what maxmemory leaves after headroom for client
        buffers.
        """
        limit = self.maxmemory or int(self.system_memory * _UNLIMITED_SHARE)
        headroom = int(max(limit * _HEADROOM_SHARE, min(_HEADROOM_BYTES, limit * 0.25)))
        available = limit - headroom
        return min(wanted, available) if wanted and self.maxmemory else wanted or available


class Cache:
    """An asyncio client of one Redis or Valkey server.

    Args:
        address: ``redis://host:port[/db]`` or ``unix:///path``, without credentials.
        owner: whose lock it is; a coordinator that is restarted under the same owner takes its lock over.
    """

    def __init__(self, address: str, *, owner: str) -> None:
        self.address = address
        self._instance = os.urandom(16).hex()
        self._owner = owner or os.urandom(16).hex()
        self._has_held_lock = False
        self._redis: redis.asyncio.Redis = redis.asyncio.Redis.from_url(
            address,
            username=os.environ.get("SUPER_CACHE_USERNAME") or None,
            password=os.environ.get("SUPER_CACHE_PASSWORD") or None,
            socket_connect_timeout=_TIMEOUT_S,
            socket_timeout=_TIMEOUT_S,
            # Once, for a connection that broke while it was idle; whoever wants more patience has his own.
            retry=Retry(NoBackoff(), 1),
            protocol=2,
        )

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Map redis-py's errors to ours; each names the address. A cancellation stays one."""
        try:
            yield
        except redis.exceptions.ResponseError as error:
            raise self._refused(error) from error
        except (redis.exceptions.RedisError, OSError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error  # closing the connection failed, and hid the reason
            # Over a unix socket redis-py hides the refusal of a login behind a ConnectionError.
            for reason in (error, error.__cause__):
                if isinstance(reason, _LOGIN_ERRORS):
                    raise self._refused(reason) from error
            msg = f"the cache at {self.address} does not answer: {error}"
            raise CacheUnreachableError(msg) from error

    def _refused(self, reason: BaseException) -> CacheError:
        return CacheError(f"the cache at {self.address} refuses: {reason}")

    async def info(self) -> CacheInfo:
        """Memory, policy and identity of the server."""
        with self.errors():
            info: dict[str, Any] = await self._redis.info()
            keys = await self._redis.dbsize()
        return CacheInfo(
            run_id=str(info["run_id"]),
            used_memory=int(info["used_memory"]),
            maxmemory=int(info["maxmemory"]),
            policy=str(info["maxmemory_policy"]),
            system_memory=int(info.get("total_system_memory", 0)),
            keys=int(keys),
            evicted_keys=int(info.get("evicted_keys", 0)),
        )

    async def hold_lock(self) -> bool:
        """Take or renew the lock; ``True`` if it had to be taken.

        The first call takes it from an earlier coordinator of the same owner; later ones do not take it back.

        Raises:
            LockHeldError: another coordinator holds it.
        """
        may_take_over = "0" if self._has_held_lock else "1"
        ttl_ms = LOCK_TTL_S * 1000
        with self.errors():
            reply: Any = await self._redis.eval(
                _HOLD_LOCK, 1, LOCK_KEY, self._instance, self._owner, ttl_ms, may_take_over
            )
        done, expires_in_ms = bytes(reply[0]), int(reply[1])
        if done == b"refused":
            msg = (
                f"another coordinator owns the cache at {self.address}: end it, give this one another cache, "
                f"or wait {LOCK_TTL_S} s if it has just died"
            )
            raise LockHeldError(msg, expires_in_ms / 1000)
        self._has_held_lock = True
        return done == b"taken"

    async def release_lock(self) -> None:
        """Let the lock go, if it is ours."""
        if not self._has_held_lock:
            return
        with self.errors():
            await self._redis.eval(_RELEASE_LOCK, 1, LOCK_KEY, self._instance + self._owner)

    async def agree_on_golden(self, digest: str) -> tuple[str, bool]:
        """The golden digest that records in this cache agree with, and whether it was written just now.

        It never expires: a cache without one is new or was emptied.
        """
        with self.errors():
            agreed: Any = await self._redis.get(GOLDEN_KEY)
            is_new = agreed is None and bool(await self._redis.set(GOLDEN_KEY, digest, nx=True))
        return digest if is_new else bytes(agreed or b"").decode("ascii", "replace"), is_new

    async def audit(self, ids: bytes) -> NDArray[np.int64]:
        """Record length of each sample in bytes; 0 where there is none (or none that we read), negative for a
        tombstone.
        """
        headers = np.zeros(len(ids) // ID_BYTES, dtype=HEADER_DTYPE)
        lengths = np.zeros(headers.size, dtype=np.uint64)
        keys = cache_keys(ids)
        for at in range(0, len(keys), _PIPELINE_KEYS):
            some = keys[at : at + _PIPELINE_KEYS]
            with self.errors():
                pipeline = self._redis.pipeline(transaction=False)
                for key in some:
                    pipeline.getrange(key, 0, HEADER_BYTES - 1)
                    pipeline.strlen(key)
                replies = [_or_absent(reply) for reply in await pipeline.execute(raise_on_error=False)]
            raw = b"".join(
                reply if len(reply) == HEADER_BYTES else bytes(HEADER_BYTES) for reply in replies[::2]
            )
            headers[at : at + len(some)] = np.frombuffer(raw, dtype=HEADER_DTYPE)
            lengths[at : at + len(some)] = [reply or 0 for reply in replies[1::2]]
        whole = (lengths >= HEADER_BYTES) & (headers["payload_bytes"] == lengths - np.uint64(HEADER_BYTES))
        known = np.isin(headers["kind"], (Kind.DATA, Kind.TOMBSTONE))
        ours = (headers["magic"] == MAGIC) & (headers["version"] == RECORD_VERSION) & known & whole
        signed = np.where(ours, lengths, 0).astype(np.int64)
        return np.where(headers["kind"] == Kind.TOMBSTONE, -signed, signed)

    async def scan_records(self, cursor: int, *, count: int) -> tuple[int, bytes]:
        """Ids of about ``count`` records, some perhaps twice, and where to go on; 0 begins and ends it."""
        with self.errors():
            reply: Any = await self._redis.scan(cursor, match=RECORD_PREFIX + b"*", count=count)
        following, keys = reply
        digits = [key.removeprefix(RECORD_PREFIX) for key in keys if _RECORD_KEY.fullmatch(key)]
        return int(following), bytes.fromhex(b"".join(digits).decode())

    async def drop(self, ids: bytes) -> None:
        """Delete records; what is not there is no error."""
        keys = cache_keys(ids)
        for at in range(0, len(keys), _PIPELINE_KEYS):
            with self.errors():
                await self._redis.unlink(*keys[at : at + _PIPELINE_KEYS])

    async def bury(self, ids: bytes, tombstones: Sequence[Tombstone], expires_in_s: float) -> None:
        """Write tombstones that expire, where there is no record."""
        with self.errors():
            pipeline = self._redis.pipeline(transaction=False)
            for key, tombstone in zip(cache_keys(ids), tombstones, strict=True):
                pipeline.set(key, pack_tombstone(tombstone), px=int(expires_in_s * 1000), nx=True)
            await pipeline.execute()

    async def read_streams(
        self, positions: dict[bytes, bytes], *, block_ms: int, count: int
    ) -> Iterable[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
        """Entries after ``positions`` of several streams, waiting up to ``block_ms`` for the first."""
        with self.errors():
            streams: dict[Any, Any] = dict(positions)
            found: Any = await self._redis.xread(streams, count=count, block=block_ms)
        answer: Iterable[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]] = found or []
        return answer

    async def empty_stream(self, stream: bytes, expires_in_s: float) -> bytes:
        """Make a stream, or empty it, and let it expire; the id after which its entries come."""
        with self.errors():
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.xadd(stream, {b"x": b""}, maxlen=0, approximate=False)
            pipeline.pexpire(stream, int(expires_in_s * 1000))
            last: bytes = (await pipeline.execute())[0]
        return last

    async def keep_streams(self, streams: Sequence[bytes], expires_in_s: float) -> None:
        """Let streams expire later; what is not there is no error."""
        for at in range(0, len(streams), _PIPELINE_KEYS):
            with self.errors():
                pipeline = self._redis.pipeline(transaction=False)
                for stream in streams[at : at + _PIPELINE_KEYS]:
                    pipeline.pexpire(stream, int(expires_in_s * 1000))
                await pipeline.execute()

    async def ring(self, stream: bytes) -> None:
        """Append an empty entry to a stream, so that whoever waits on it looks up."""
        with self.errors():
            await self._redis.xadd(stream, {b"x": b""}, maxlen=1, approximate=False)

    async def delete(self, *names: bytes) -> None:
        """Delete streams."""
        if names:
            with self.errors():
                await self._redis.unlink(*names)

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()


def _or_absent(reply: Any) -> Any:
    """A reply to a pipelined read; what holds no string at all is as good as absent."""
    if isinstance(reply, redis.exceptions.ResponseError) and str(reply).startswith("WRONGTYPE"):
        return b""
    if isinstance(reply, Exception):
        raise reply
    return reply
