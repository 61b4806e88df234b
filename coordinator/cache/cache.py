"""The coordinator's cache client and cache lock."""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from superdl.coordinator.cache.info import CacheInfo, combined
from superdl.coordinator.cache.nodes import CacheNodes, string
from superdl.super_wire.cache import MAX_BULK_BYTES, Credentials, ErrorReply
from superdl.super_wire.errors import CacheError, ConfigError, RecordError
from superdl.super_wire.ids import ID_BYTES, split_ids
from superdl.super_wire.keys import (
    FINGERPRINT_KEY,
    LOCK_KEY,
    RECORD_PREFIX,
    SPENT_KEY,
    cache_keys,
)
from superdl.super_wire.record import (
    HEADER_BYTES,
    HEADER_DTYPE,
    MAGIC,
    RECORD_VERSION,
    RecordKind,
    Tombstone,
    id_prefixes,
    pack_tombstone,
    parse_header,
    verify_payload,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from numpy.typing import NDArray

    from superdl.coordinator.cache.nodes import Words

A_POINTER = 2**40  # added to the length of a record that is a pointer into the store

LOCK_TTL_S = 10
_PIPELINE_KEYS = 1000
_PART_BYTES = 4 * 2**20
_DIGEST = re.compile(rb"[0-9a-f]+")
_RECORD_KEY = re.compile(re.escape(RECORD_PREFIX) + rb"[0-9a-f]{%d}" % (2 * ID_BYTES))
_CURSORS = 2**64  # range of a server's SCAN cursors

# The lock's value is the instance in 32 hex digits, then the owner. Renew the lock if this instance holds it.
# Take it if it is free or, if ARGV[4] allows it, held by another instance of this owner. Return what was
# done, and the other lock's remaining milliseconds.
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
    """Another coordinator owns the cache. Its lock expires in ``expires_in_s`` seconds unless renewed."""

    def __init__(self, message: str, expires_in_s: float = 0.0) -> None:
        super().__init__(message)
        self.expires_in_s = expires_in_s


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _checked_reply(
    method: Callable[Concatenate[Cache, _P], Awaitable[_T]],
) -> Callable[Concatenate[Cache, _P], Coroutine[Any, Any, _T]]:
    @functools.wraps(method)
    async def call(self: Cache, /, *args: _P.args, **options: _P.kwargs) -> _T:
        with self.nodes.errors():
            return await method(self, *args, **options)

    return call


class Cache:
    """An asyncio client for Redis, Valkey or Redis Cluster. It reads credentials from the environment.
    Commands raise ``CacheError`` if a server rejects them, and ``CacheUnreachableError`` if no server
    responds or a reply is invalid.

    Args:
        address: ``redis://host:port[/db]``, ``rediss://host:port[/db]`` or ``unix:///path``, without
            credentials. In a cluster, the address of any node.
        owner: the lock's owner. A coordinator restarted with the same owner takes over the lock.
        insecure: allow unencrypted connections to other machines, as ``SUPER_INSECURE`` does.

    Raises:
        ConfigError: the address, credentials or certificates cannot be used.
    """

    def __init__(self, address: str, *, owner: str, insecure: bool = False) -> None:
        self.address = address
        self._instance = os.urandom(16).hex()
        self._owner = owner or os.urandom(16).hex()
        self._has_held_lock = False
        credentials = Credentials.from_environment(os.environ)
        self.nodes = CacheNodes(address, replace(credentials, insecure=credentials.insecure or insecure))

    @_checked_reply
    async def info(self) -> CacheInfo:
        """Return the server's statistics, combined across a cluster's masters."""
        masters = await self.nodes.masters(refresh=True)  # new shards do not announce themselves
        calls = (self.nodes.at(master.node, ("INFO",), ("DBSIZE",)) for master in masters)
        infos = [CacheInfo.of_server(*reply) for reply in await asyncio.gather(*calls)]
        hosts = len({master.node.host for master in masters})
        return combined(infos, [master.slots for master in masters], hosts) if len(infos) > 1 else infos[0]

    @_checked_reply
    async def hold_lock(self) -> bool:
        """Acquire or renew the lock. Return whether it was newly acquired.

        Raises ``LockHeldError`` if another coordinator holds it.
        """
        # Take over an owner's lock only once, because otherwise two instances would take turns.
        arguments = (self._instance, self._owner, LOCK_TTL_S * 1000, "0" if self._has_held_lock else "1")
        reply = await self.nodes.call(LOCK_KEY, "EVAL", _HOLD_LOCK, 1, LOCK_KEY, *arguments)
        done, expires_in_ms = string(reply[0]), int(reply[1])
        if done == b"refused":
            raise LockHeldError(
                f"another coordinator owns the cache at {self.address}. Stop it or use another cache. If it "
                f"has just died, wait {LOCK_TTL_S} s. Jobs that share a cache must share a coordinator: "
                "start superdl coordinator once, and set SUPER_COORDINATOR to its address",
                expires_in_ms / 1000,
            )
        if done not in (b"taken", b"renewed"):
            raise ValueError(f"unexpected reply to the request for the lock: {done[:40]!r}")
        self._has_held_lock = True
        return done == b"taken"

    async def release_lock(self) -> None:
        """Release the lock if this instance holds it."""
        if not self._has_held_lock:
            return
        await self.nodes.call(LOCK_KEY, "EVAL", _RELEASE_LOCK, 1, LOCK_KEY, self._instance + self._owner)

    @_checked_reply
    async def fingerprint(self) -> str:
        """Return the decoder fingerprint of the cached records, or an empty string if none is set."""
        agreed = await self.get(FINGERPRINT_KEY)
        if agreed and not _DIGEST.fullmatch(agreed):
            raise ValueError(f"{agreed!r} is not a digest")
        return agreed.decode()

    @_checked_reply
    async def agree_on_fingerprint(self, digest: str) -> tuple[str, bool]:
        """Set the decoder fingerprint if none is set. Return the current one, and whether it is new."""
        agreed = await self.fingerprint()
        # NX: of two concurrent coordinators, the second reads the digest of the first.
        if not agreed and await self.nodes.call(FINGERPRINT_KEY, "SET", FINGERPRINT_KEY, digest, "NX"):
            return digest, True
        return agreed or await self.fingerprint(), False

    @_checked_reply
    async def spent_usd(self) -> tuple[float, dict[str, float]]:
        """Return past spending, in total and by team. Raises ``ConfigError`` if the value is invalid."""
        written = await self.get(SPENT_KEY) or b"0"
        try:
            spent = json.loads(written)
            # Users may set a plain number, as the error below suggests.
            total_usd, by_team = (spent["usd"], spent["teams"]) if isinstance(spent, dict) else (spent, {})
            teams_usd = {str(name): float(usd) for name, usd in dict(by_team).items()}
            sums_usd = [float(total_usd), *teams_usd.values()]
        except (ValueError, TypeError, KeyError):
            sums_usd, teams_usd = [-1.0], {}
        if not all(0 <= usd < math.inf for usd in sums_usd):
            raise ConfigError(
                f"the key {SPENT_KEY.decode()} in the cache at {self.address} contains {written[:40]!r}. Set "
                "it to the US dollars spent so far, or delete it to start from 0"
            )
        return sums_usd[0], teams_usd

    async def set_spent_usd(self, usd: float, by_team: Mapping[str, float]) -> None:
        """Store spending, in total and by team, for future coordinators."""
        await self.set(SPENT_KEY, json.dumps({"usd": usd, "teams": dict(by_team)}).encode())

    @_checked_reply
    async def get(self, key: bytes) -> bytes:
        """Return a key's value, or empty bytes if the key is missing."""
        return string(await self.nodes.call(key, "GET", key) or b"")

    async def set(self, key: bytes, value: bytes) -> None:
        """Store a small value for future coordinators."""
        await self.nodes.call(key, "SET", key, value)

    @_checked_reply
    async def audit(self, ids: bytes) -> NDArray[np.int64]:
        """Return each record's length in bytes: 0 if missing, negative for a tombstone.

        ``A_POINTER`` is added to a pointer's length.
        """
        headers = np.zeros(len(ids) // ID_BYTES, dtype=HEADER_DTYPE)
        lengths = np.zeros(headers.size, dtype=np.uint64)
        keys = cache_keys(ids)
        for start in range(0, len(keys), _PIPELINE_KEYS):
            chunk = keys[start : start + _PIPELINE_KEYS]
            commands: list[Words] = []
            for key in chunk:
                commands += (("GETRANGE", key, 0, HEADER_BYTES - 1), ("STRLEN", key))
            routing_keys = [key for key in chunk for _ in range(2)]
            replies = await self.nodes.each(routing_keys, commands)
            # A value that is not a string is not a record.
            replies = [
                b"" if isinstance(reply, ErrorReply) and reply.text.startswith("WRONGTYPE") else reply
                for reply in replies
            ]
            self.nodes.checked(replies)
            raw = b"".join(
                reply if len(reply) == HEADER_BYTES else bytes(HEADER_BYTES) for reply in replies[::2]
            )
            headers[start : start + len(chunk)] = np.frombuffer(raw, dtype=HEADER_DTYPE)
            lengths[start : start + len(chunk)] = [reply or 0 for reply in replies[1::2]]
        # Anything but a record with this format and id counts as missing.
        whole = (lengths >= HEADER_BYTES) & (lengths <= MAX_BULK_BYTES)
        whole &= headers["payload_bytes"] == lengths - np.uint64(HEADER_BYTES)
        known = np.isin(headers["kind"], list(RecordKind))
        known &= headers["id_prefix"] == id_prefixes(ids)
        ours = (headers["magic"] == MAGIC) & (headers["version"] == RECORD_VERSION) & known & whole
        signed = np.where(ours, lengths, 0).astype(np.int64)
        signed[(headers["kind"] == RecordKind.POINTER) & ours] += A_POINTER
        return np.where(headers["kind"] == RecordKind.TOMBSTONE, -signed, signed)

    @_checked_reply
    async def read_back(self, ids: bytes) -> NDArray[np.int64]:
        """Verify entire records. Return lengths as :meth:`audit` does, but 0 for corrupt records."""
        lengths = await self.audit(ids)
        sample_ids = split_ids(ids)
        for index in np.flatnonzero(lengths).tolist():  # one at a time, because they may be large
            record = await self.record(sample_ids[index]) or b""
            try:
                header = parse_header(record, record_bytes=len(record), sample_id=sample_ids[index])
                verify_payload(header, record[HEADER_BYTES:])
            except RecordError:
                lengths[index] = 0
        return lengths

    @_checked_reply
    async def record(self, sample_id: bytes) -> bytes | None:
        """Return a complete record, or ``None`` if it is missing."""
        (key,) = cache_keys(sample_id)
        parts, size = list[bytes](), 0
        while not parts or len(parts[-1]) == _PART_BYTES:
            # Read in parts, to bound the size of replies.
            part = await self.nodes.call(key, "GETRANGE", key, size, size + _PART_BYTES - 1)
            parts.append(string(part))
            size += len(parts[-1])
        # A large record may have been dropped between the reads.
        gone = len(parts) > 1 and await self.nodes.call(key, "STRLEN", key) != size
        return None if gone else b"".join(parts) or None

    @_checked_reply
    async def scan_records(self, cursor: int, *, count: int) -> tuple[int, bytes]:
        """Return the next cursor (0 after the last) and about ``count`` ids, possibly with repeats."""
        shard, shard_cursor = divmod(cursor, _CURSORS)  # one master after the other
        masters = await self.nodes.masters()
        if shard >= len(masters):  # the cluster has shrunk
            return 0, b""
        scan = ("SCAN", shard_cursor, "MATCH", RECORD_PREFIX + b"*", "COUNT", count)
        ((next_cursor, keys),) = await self.nodes.at(masters[shard].node, scan)
        digits = [key.removeprefix(RECORD_PREFIX) for key in keys if _RECORD_KEY.fullmatch(key)]
        ids = bytes.fromhex(b"".join(digits).decode())
        # At 0, this master is done.
        if next_cursor := int(next_cursor):
            return shard * _CURSORS + next_cursor, ids
        return (shard + 1) % len(masters) * _CURSORS, ids

    async def drop(self, ids: bytes) -> None:
        """Delete records, ignoring any that are missing."""
        keys = cache_keys(ids)
        for start in range(0, len(keys), _PIPELINE_KEYS):
            await self.nodes.unlink(keys[start : start + _PIPELINE_KEYS])

    async def write_tombstones(
        self, ids: bytes, tombstones: Sequence[Tombstone], expires_in_s: float
    ) -> None:
        """Write expiring tombstones for ids that have no record."""
        keys, expires_in_ms = cache_keys(ids), int(expires_in_s * 1000)
        commands: list[Words] = [
            # NX: do not replace a record that has just arrived.
            ("SET", key, pack_tombstone(tombstone, sample_id), "PX", expires_in_ms, "NX")
            for key, sample_id, tombstone in zip(keys, split_ids(ids), tombstones, strict=True)
        ]
        self.nodes.checked(await self.nodes.each(keys, commands))

    async def write_note(self, ids: bytes, note: Tombstone, expires_in_s: float) -> None:
        """Write an expiring note under each id, replacing any earlier note."""
        for key, sample_id in zip(cache_keys(ids), split_ids(ids), strict=True):
            await self.nodes.call(
                key, "SET", key, pack_tombstone(note, sample_id), "PX", int(expires_in_s * 1000)
            )

    async def close(self) -> None:
        """Close all connections."""
        await self.nodes.close()
