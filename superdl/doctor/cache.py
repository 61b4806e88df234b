"""The cache, from here, with a reader's credentials: reached, allowed, large enough, with clients to spare.

The credentials are this process's: see ``docs/cache.md`` and ``SECURITY.md``. A user with a reader's rights
alone may not ask for memory, clients or the time: what is not told is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from typing import TYPE_CHECKING

from superdl.doctor.finding import bad, doubtful, good, size_text, skipped
from superdl.super_wire.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.coordinator.cache.info import CacheInfo
    from superdl.doctor.case import Case, Seen
    from superdl.doctor.finding import Found
    from superdl.super_wire.cache import CacheConnection, Reply

__all__ = ["cache_clients", "check_cache", "check_memory", "check_rights"]

_TIMEOUT_S = 5.0
_PINGS = 5
_JOB = "doctor"
_NO_ID = bytes(16)


def check_cache(case: Case, seen: Seen) -> Found:
    """Whether a reader gets in with these credentials, at every node, and how long an answer takes."""
    told = seen.coordinating.cache if seen.coordinating is not None else ""
    address = case.cache or told
    if not address:
        if case.coordinator:
            why, remedy = "the coordinator has not told its cache's address", "name it: --cache"
        else:
            why = "none is named: the embedded default starts its own"
            remedy = "name one: --cache or SUPER_CACHE, or a coordinator that knows it"
        return skipped(why, remedy)
    from superdl.super_dataset.reading import BatchReader, ReadSettings

    BatchReader(ReadSettings()).ping(address, timeout_s=_TIMEOUT_S)
    seen.cache = address
    with _connection(address) as connection:
        waits_s = [_answer_s(connection) for _ in range(_PINGS)]
        asked_s = time.time()
        with contextlib.suppress(CacheError):  # a reader need not be told the time
            seconds, micros = (float(word) for word in _words(connection.ask(b"TIME")))
            seen.clock("the cache", seconds + micros / 1e6, asked_s)
        tls = ", by TLS" if connection.address.tls else ""
    middle_s = statistics.median(waits_s)
    why = f"{address} lets this machine read{tls}, an answer takes {middle_s * 1000:.2f} ms"
    if case.cache and told and case.cache != told:
        return doubtful(
            f"{why}; the coordinator names another address: {told}",
            "see that both are the same cache: readers get the coordinator's address, not SUPER_CACHE",
            answer_s=round(middle_s, 6),
        )
    return good(why, answer_s=round(middle_s, 6))


def check_rights(case: Case, seen: Seen) -> Found:  # noqa: ARG001  # all checks are asked alike
    """Whether this user may do what a reader does; nothing is written."""
    if not seen.cache:
        return skipped("no cache is known")
    from superdl.super_wire.cache import ErrorReply
    from superdl.super_wire.keys import cache_key, report_stream

    # A stream that is not there is not made: the right is looked at first, and then nothing happens.
    report = (b"XADD", report_stream(_JOB), b"NOMKSTREAM", b"MAXLEN", b"1", b"*", b"x", b"")
    with _connection(seen.cache) as connection:
        got, reported = connection.converse((b"GET", cache_key(_NO_ID)), report)
    for answer, words, rule in (
        (got, "read records (GET on super:r1:*)", "%R~super:r1:* +get"),
        (reported, "leave read reports (XADD on super:n1:*)", "%W~super:n1:* +xadd"),
    ):
        said = answer.text if isinstance(answer, ErrorReply) else ""
        if said.startswith("NOPERM"):
            return bad(f"this user may not {words}: {said}", f"ACL SETUSER <user> {rule} (docs/cache.md)")
        if said.startswith("READONLY"):
            return bad(
                f"{seen.cache} is a replica, which takes no reports: {said}", "name the primary's address"
            )
        if said.startswith("OOM"):
            remedy = "see the memory below; readers go on, but the coordinator learns nothing of them"
            return doubtful(f"the cache takes nothing more: {said}", remedy)
    return good("this user may read records and leave read reports")


def check_memory(case: Case, seen: Seen) -> Found:
    """Memory and policy: what the coordinator plans with."""
    if not seen.cache:
        return skipped("no cache is known")
    try:
        info = asyncio.run(_ask_info(seen.cache))
    except CacheError as error:
        if "NOPERM" not in str(error) and "permission" not in str(error):
            raise
        told = f"; the coordinator plans with {size_text(seen.budget_bytes)}" if seen.budget_bytes else ""
        remedy = "to look, use the coordinator's user, or +info +dbsize; a reader needs neither"
        return skipped(f"this user may not ask the cache for its memory (INFO){told}", remedy)
    seen.budget_bytes = seen.budget_bytes or info.budget(case.settings.cache_bytes)
    return judge_memory(info)


def judge_memory(info: CacheInfo) -> Found:
    """What a cache's memory and policy mean."""
    budget = info.budget(0)
    told = (
        f"{size_text(info.used_memory)} of {size_text(info.maxmemory)} used, policy {info.policy}, "
        f"{info.keys:,} keys"
    )
    measured: dict[str, float | str] = {
        "used_bytes": info.used_memory,
        "maxmemory": info.maxmemory,
        "policy": info.policy,
    }
    if not info.maxmemory:
        why = f"maxmemory is not set: SUPER plans with {size_text(budget)}, the server with all there is"
        return doubtful(
            why,
            "set maxmemory (config set maxmemory 16gb), with a fifth of the machine left over",
            **measured,
        )
    if info.policy != "noeviction":
        why = f"{told}: the server drops what it likes, also what is about to be read"
        return doubtful(
            why, "config set maxmemory-policy noeviction: the coordinator decides what stays", **measured
        )
    if info.evicted_keys:
        why = f"{told}; it has dropped {info.evicted_keys:,} keys by itself since it started"
        return doubtful(
            why, "the policy was another one before; if the number grows, maxmemory is too small", **measured
        )
    return good(f"{told}; room for {size_text(budget)} of records", budget_bytes=budget, **measured)


async def _ask_info(address: str) -> CacheInfo:
    from superdl.coordinator.cache.cache import Cache

    cache = Cache(address, owner=_JOB)
    try:
        async with asyncio.timeout(2 * _TIMEOUT_S):
            return await cache.info()
    finally:
        await cache.close()


def cache_clients(address: str) -> tuple[int, int]:
    """How many clients a cache has, and how many it takes at most; 0 where it does not tell.

    Raises:
        CacheError: it refuses to tell anything.
    """
    with _connection(address) as connection:
        told = connection.ask(b"INFO", b"clients")
        lines = told.decode(errors="replace").splitlines() if isinstance(told, bytes) else []
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        most = int(fields.get("maxclients", 0))
        if not most:  # older servers tell it by their configuration alone
            with contextlib.suppress(CacheError):  # which managed services keep to themselves
                most = int((_words(connection.ask(b"CONFIG", b"GET", b"maxclients")) or [b"", b"0"])[1])
    return int(fields.get("connected_clients", 0)), most


def _words(reply: Reply) -> list[bytes]:
    """The texts of an array; none where the reply is something else."""
    return [word for word in reply if isinstance(word, bytes)] if isinstance(reply, list) else []


@contextlib.contextmanager
def _connection(address: str) -> Iterator[CacheConnection]:
    from superdl.super_wire.cache import CacheAddress, CacheConnection, Credentials

    credentials = Credentials.from_environment(os.environ)
    connection = CacheConnection(CacheAddress.parse(address), credentials, timeout_s=_TIMEOUT_S)
    try:
        yield connection
    finally:
        connection.close()


def _answer_s(connection: CacheConnection) -> float:
    from superdl.super_wire.keys import cache_key

    began_s = time.monotonic()
    connection.converse((b"GET", cache_key(_NO_ID)))
    return time.monotonic() - began_s
