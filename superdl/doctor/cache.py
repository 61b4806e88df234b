"""The coordinator and its cache, from here, with a reader's credentials: reached, allowed, large enough.

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

from superdl.coordinator.executors import executor_class
from superdl.doctor.checking import bad, doubtful, good, size_text, skipped
from superdl.super_wire.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from superdl.coordinator.cache.info import CacheInfo
    from superdl.doctor.checking import Case, Finding
    from superdl.super_wire.cache import CacheConnection, Reply
    from superdl.super_wire.coordinator_pb2 import CacheStats

__all__ = [
    "check_cache",
    "check_clients",
    "check_coordinator",
    "check_memory",
    "check_rights",
    "check_room",
    "judge_memory",
    "judge_room",
]

_TIMEOUT_S = 5.0
_PINGS = 5
_NO_ID = bytes(16)
_FULL = 0.9
_COORDINATORS_OWN = 16
_ONE_VERSION = "install one version of SUPER on both sides"


def check_coordinator(case: Case) -> Finding:
    """Whether it answers with these credentials, and is the SUPER that is installed here."""
    if not case.coordinator:
        why = "none is named, so that samplers start the embedded one"
        return skipped(why, "name one: --coordinator or SUPER_COORDINATOR")
    from superdl.sampler.rpc import Client, Patience, checked_address
    from superdl.super_wire import coordinator_pb2 as pb
    from superdl.super_wire.protocol import installed_version

    client = Client(checked_address(case.coordinator, "--coordinator"))
    patience = Patience(attempts=3, total_s=10.0, deadline_s=5.0)  # it is there now, or something is wrong
    with client.hold():
        client.call("GetJobStats", pb.GetJobStatsRequest(), patience)  # also connects
        asked_s = time.time()
        answer = client.call("GetJobStats", pb.GetJobStatsRequest(), patience)
        took_s = time.time() - asked_s
    case.stats, case.budget_bytes = answer.cache, answer.cache.budget_bytes
    why = f"{case.coordinator} answers in {took_s * 1000:.1f} ms, {len(answer.jobs)} jobs are open"
    if not answer.HasField("coordinating"):
        return doubtful(f"{why}; it does not tell what it is, so it is an older SUPER", _ONE_VERSION)
    told = case.coordinating = answer.coordinating
    case.capacities = {one.name: one.capacity for one in answer.executors}
    if told.clock_s:
        case.note_clock("the coordinator", told.clock_s, asked_s)
    ours = installed_version()
    if told.version != ours:
        return doubtful(f"{why}; it is SUPER {told.version}, this machine has {ours}", _ONE_VERSION)
    return good(f"{why}; SUPER {ours}, functions: {', '.join(told.executors)}", answer_s=round(took_s, 6))


def check_room(case: Case) -> Finding:
    """Whether the coordinator's cache suffices for the jobs that it has."""
    if case.stats is None:
        return skipped("no coordinator has told it" if case.coordinator else "no coordinator is named")
    return judge_room(case.stats)


def judge_room(cache: CacheStats) -> Finding:
    """What the cache's figures mean."""
    told = f"{size_text(cache.resident_bytes)} of {size_text(cache.budget_bytes)} hold samples"
    if cache.thrashing:
        enough = f"a cache with {size_text(cache.needed_bytes)} for records"
        why = f"{told}; much of what functions make now was dropped before"
        return doubtful(why, f"{enough} would end it, or fewer jobs at a time")
    if cache.spending == "stopped":
        why = f"{told}; the cap on spending is reached: what is not in the cache fails"
        return bad(why, "raise the coordinator's --max-usd, or start it anew")
    if cache.resident_bytes > _FULL * cache.budget_bytes:
        told += " (full: what is needed last is dropped)"
    return good(told, resident_bytes=cache.resident_bytes, budget_bytes=cache.budget_bytes)


def check_cache(case: Case) -> Finding:
    """Whether a reader gets in with these credentials, at every node, and how long an answer takes."""
    told = case.coordinating.cache if case.coordinating is not None else ""
    address = case.named_cache or told
    if not address and case.coordinator:
        return skipped("the coordinator has not told its cache's address", "name it: --cache")
    if not address:
        why = "none is named: the embedded default starts its own"
        return skipped(why, "name one: --cache or SUPER_CACHE, or a coordinator that knows it")
    from superdl.super_dataset.reading import BatchReader, ReadSettings
    from superdl.super_wire.keys import cache_key

    BatchReader(ReadSettings()).ping(address, timeout_s=_TIMEOUT_S)
    case.cache = address
    with _connection(address) as connection:
        waits_s = []
        for _ in range(_PINGS):
            began_s = time.monotonic()
            connection.converse((b"GET", cache_key(_NO_ID)))
            waits_s.append(time.monotonic() - began_s)
        answer_s = round(statistics.median(waits_s), 6)
        asked_s = time.time()
        with contextlib.suppress(CacheError):  # a reader need not be told the time
            seconds, micros = (float(word) for word in _words(connection.ask(b"TIME")))
            case.note_clock("the cache", seconds + micros / 1e6, asked_s)
        tls = ", by TLS" if connection.address.tls else ""
    why = f"{address} lets this machine read{tls}, an answer takes {answer_s * 1000:.2f} ms"
    if told and address != told:
        why = f"{why}; the coordinator names another address: {told}"
        remedy = "see that both are the same cache: readers get the coordinator's address, not SUPER_CACHE"
        return doubtful(why, remedy, answer_s=answer_s)
    return good(why, answer_s=answer_s)


def check_rights(case: Case) -> Finding:
    """Whether this user may do what a reader does; nothing is written."""
    if not case.cache:
        return skipped("no cache is known")
    from superdl.super_wire.cache import ErrorReply
    from superdl.super_wire.keys import report_stream

    # To reach the cache meant to read from it. A stream that is not there is not made: the right is looked at
    # first, and then nothing happens.
    report = (b"XADD", report_stream("doctor"), b"NOMKSTREAM", b"MAXLEN", b"1", b"*", b"x", b"")
    with _connection(case.cache) as connection:
        (reported,) = connection.converse(report)
    said = reported.text if isinstance(reported, ErrorReply) else ""
    if said.startswith("NOPERM"):
        why = f"this user may not leave read reports (XADD on super:n1:*): {said}"
        return bad(why, "ACL SETUSER <user> %W~super:n1:* +xadd (docs/cache.md)")
    if said.startswith("READONLY"):
        why = f"{case.cache} is a replica, which takes no reports: {said}"
        return bad(why, "name the primary's address")
    if said.startswith("OOM"):
        remedy = "see the memory below; readers go on, but the coordinator learns nothing of them"
        return doubtful(f"the cache takes nothing more: {said}", remedy)
    return good("this user may read records and leave read reports")


def check_memory(case: Case) -> Finding:
    """Memory and policy: what the coordinator plans with."""
    if not case.cache:
        return skipped("no cache is known")
    try:
        info = asyncio.run(_ask_info(case.cache))
    except CacheError as error:
        if "NOPERM" not in str(error) and "permission" not in str(error):
            raise
        told = f"; the coordinator plans with {size_text(case.budget_bytes)}" if case.budget_bytes else ""
        remedy = "to look, use the coordinator's user, or +info +dbsize; a reader needs neither"
        return skipped(f"this user may not ask the cache for its memory (INFO){told}", remedy)
    case.budget_bytes = case.budget_bytes or info.budget(case.settings.cache_bytes)
    return judge_memory(info)


async def _ask_info(address: str) -> CacheInfo:
    from superdl.coordinator.cache.cache import Cache

    cache = Cache(address, owner="doctor")
    try:
        async with asyncio.timeout(2 * _TIMEOUT_S):
            return await cache.info()
    finally:
        await cache.close()


def judge_memory(info: CacheInfo) -> Finding:
    """What a cache's memory and policy mean."""
    room = size_text(info.budget(0))
    used = f"{size_text(info.used_memory)} of {size_text(info.maxmemory)} used"
    told = f"{used}, policy {info.policy}, {info.keys:,} keys"
    measured: dict[str, float | str] = {
        "used_bytes": info.used_memory,
        "maxmemory": info.maxmemory,
        "policy": info.policy,
    }
    if not info.maxmemory:
        why = f"maxmemory is not set: SUPER plans with {room}, the server with all there is"
        remedy = "set maxmemory (config set maxmemory 16gb), with a fifth of the machine left over"
        return doubtful(why, remedy, **measured)
    if info.policy != "noeviction":
        why = f"{told}: the server drops what it likes, also what is about to be read"
        remedy = "config set maxmemory-policy noeviction: the coordinator decides what stays"
        return doubtful(why, remedy, **measured)
    if info.evicted_keys:
        why = f"{told}; it has dropped {info.evicted_keys:,} keys by itself since it started"
        remedy = "the policy was another one before; if the number grows, maxmemory is too small"
        return doubtful(why, remedy, **measured)
    return good(f"{told}; room for {room} of records", budget_bytes=info.budget(0), **measured)


def check_clients(case: Case) -> Finding:
    """Whether the cache takes as many clients as functions and readers will be."""
    if not case.cache:
        return skipped("no cache is known")
    try:
        connected, most = _clients(case.cache)
    except CacheError as error:
        if "NOPERM" not in str(error):
            raise
        remedy = "to look, use the coordinator's"
        return skipped("this user may not ask the cache for its clients (INFO)", remedy)
    settings = case.functions()
    places = case.capacities | {name: one.places for name, one in case.started.items()}
    for name in settings.executors:
        executor = executor_class(name)
        if case.coordinating is None or executor.told:  # else these settings are not the coordinator's
            places[name] = executor.functions_at_once(settings) or places.get(name, 0)
    unknown = [name for name in settings.executors if not places.get(name)]
    if unknown:
        words = f"how many functions run at once is not known of {', '.join(unknown)}"
        return skipped(words, "see superdl stats, or the coordinator's log")
    functions = sum(places[name] for name in settings.executors)
    more = functions + case.workers + _COORDINATORS_OWN
    words = f"{connected} clients are connected"
    if not most:
        return skipped(f"{words}; how many it takes is not told")
    words += (
        f", it takes {most:,}; {functions} functions, {case.workers} readers of a trainer and a coordinator "
        f"are up to {more}"
    )
    if connected + more > most:
        remedy = "raise maxclients (and the server's limit of open files), or lower --lambda-concurrency"
        return doubtful(f"{words}: too many", remedy, connected=connected, maxclients=most)
    return good(words, connected=connected, maxclients=most)


def _clients(address: str) -> tuple[int, int]:
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
    with contextlib.closing(connection):
        yield connection
