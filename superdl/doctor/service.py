"""Checks that coordinator, cache and functions are reachable, permitted, large enough, and of our version."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from superdl.coordinator.executors import ExecutorError, executor_class
from superdl.doctor.checking import Finding, bad, combined, doubtful, good, skipped
from superdl.super_wire.errors import CacheError
from superdl.super_wire.executors import EXECUTORS, RunsOn
from superdl.super_wire.redaction import sized

if TYPE_CHECKING:
    from superdl.coordinator.cache.info import CacheInfo
    from superdl.coordinator.server.settings import Settings
    from superdl.doctor.checking import Case
    from superdl.super_wire.executors import ExecutorKind

_TIMEOUT_S = 5.0
_NO_ID = bytes(16)
_ONE_VERSION = "install one version of SUPER on both sides"
_ONE_PILLOW = (
    "install the same Pillow for the same kind of processor everywhere: these executors share a cache"
)


def check_coordinator(case: Case) -> Finding:
    """Check that the coordinator accepts these credentials and runs our version."""
    if not case.coordinator:
        why = "none is set, so samplers start the embedded one"
        return skipped(why, "to use one, set --coordinator or SUPER_COORDINATOR")
    from superdl.sampler.rpc import Client, Patience, checked_address
    from superdl.super_wire import coordinator_pb2 as pb
    from superdl.super_wire.protocol import installed_version

    client = Client(checked_address(case.coordinator, "--coordinator"))
    patience = Patience(attempts=3, total_s=10.0, deadline_s=5.0)  # it runs by now, or something is wrong
    with client.hold():
        answer = client.call("GetJobStats", pb.GetJobStatsRequest(), patience)
    case.budget_bytes, case.store = answer.cache.budget_bytes, answer.cache.store
    why = f"{case.coordinator} answers, {len(answer.jobs)} jobs are open"
    description = case.coordinating = answer.coordinating
    installed = installed_version()
    if description.version != installed:
        return doubtful(
            f"{why}; it runs SUPER {description.version}, but this machine has {installed}", _ONE_VERSION
        )
    return good(f"{why}; SUPER {installed}, functions: {', '.join(description.executors)}")


def check_cache(case: Case) -> Finding:
    """Check that a reader can log in to every node, and has its permissions."""
    announced = case.coordinating.cache if case.coordinating is not None else ""
    address = case.named_cache or announced
    if not address and case.coordinator:
        return skipped("the coordinator did not report its cache's address", "pass it with --cache")
    if not address:
        why = "none is set, so the embedded default starts its own"
        return skipped(why, "to use one, set --cache or SUPER_CACHE, or a coordinator that knows it")
    from superdl.super_dataset.reading import BatchReader, ReadSettings
    from superdl.super_wire.cache import CacheAddress, CacheConnection, Credentials, ErrorReply
    from superdl.super_wire.keys import cache_key, report_stream

    BatchReader(ReadSettings()).ping(address, timeout_s=_TIMEOUT_S)
    case.cache, credentials = address, Credentials.from_environment(os.environ)
    connection = CacheConnection(CacheAddress.parse(address), credentials, timeout_s=_TIMEOUT_S)
    # XADD with NOMKSTREAM on an absent stream: the permission is checked first, then nothing happens.
    report = (b"XADD", report_stream("doctor"), b"NOMKSTREAM", b"MAXLEN", b"1", b"*", b"x", b"")
    with contextlib.closing(connection):
        began_s = time.monotonic()
        connection.converse((b"GET", cache_key(_NO_ID)))
        answer_s = round(time.monotonic() - began_s, 6)
        (reported,) = connection.converse(report)
    tls = ", over TLS" if connection.address.tls else ""
    reached = f"this machine can read from {address}{tls}; an answer takes {answer_s * 1000:.2f} ms"
    findings = [_judge_report(reported.text if isinstance(reported, ErrorReply) else "")]
    if announced and address != announced:
        why = f"{reached}; the coordinator uses another address: {announced}"
        remedy = "make sure that both are the same cache: readers use the coordinator's, not SUPER_CACHE"
        return combined([doubtful(why, remedy, answer_s=answer_s), *findings])
    return combined([good(reached, answer_s=answer_s), *findings])


def _judge_report(refusal: str) -> Finding:
    if refusal.startswith("NOPERM"):
        why = f"this user may not write read reports (XADD on super:n1:*): {refusal}"
        return bad(why, "ACL SETUSER <user> %W~super:n1:* +xadd (docs/reference.md)")
    if refusal.startswith("READONLY"):
        return bad(f"it is a replica, which accepts no reports: {refusal}", "use the primary's address")
    if refusal.startswith("OOM"):
        remedy = "see the memory below; readers continue, but the coordinator gets no reports from them"
        return doubtful(f"it accepts no more writes: {refusal}", remedy)
    return good("this user may read records and write read reports")


def check_memory(case: Case) -> Finding:
    """Check the cache memory and the eviction policy that the coordinator plans with."""
    if not case.cache:
        return skipped("no cache is known")
    try:
        info = asyncio.run(_ask_info(case.cache))
    except CacheError as error:
        # A user with only a reader's rights may not query memory.
        if "NOPERM" not in str(error) and "permission" not in str(error):
            raise
        budget = f"; the coordinator plans with {sized(case.budget_bytes)}" if case.budget_bytes else ""
        remedy = "to check it, use the coordinator's user, or add +info +dbsize; a reader needs neither"
        return skipped(f"this user may not query the cache's memory (INFO){budget}", remedy)
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
    """Return the finding for a cache's memory and policy."""
    room = sized(info.budget(0))
    used = f"{sized(info.used_memory)} of {sized(info.maxmemory)} used"
    state = f"{used}, policy {info.policy}, {info.keys:,} keys"
    measured: dict[str, float | str] = {
        "used_bytes": info.used_memory,
        "maxmemory": info.maxmemory,
        "policy": info.policy,
    }
    if not info.maxmemory:
        why = f"maxmemory is not set: SUPER plans for {room}, but the server may use all memory"
        remedy = "set maxmemory (config set maxmemory 16gb), and leave a fifth of the machine's memory free"
        return doubtful(why, remedy, **measured)
    if info.policy != "noeviction":
        why = f"{state}: the server may evict records that are about to be read"
        remedy = "config set maxmemory-policy noeviction: the coordinator decides what stays"
        return doubtful(why, remedy, **measured)
    if info.evicted_keys:
        why = f"{state}; it has evicted {info.evicted_keys:,} keys since it started"
        remedy = "the policy was different before; if the number grows, maxmemory is too small"
        return doubtful(why, remedy, **measured)
    return good(f"{state}; room for {room} of records", budget_bytes=info.budget(0), **measured)


def check_function(case: Case) -> Finding:
    """Check that each executor's function starts, has our version, and decodes as this machine does."""
    settings = case.settings
    if case.elsewhere:
        executors = case.coordinating.executors if case.coordinating is not None else settings.executors
        why = f"functions ({', '.join(executors)}) are run by the coordinator"
        return skipped(f"{why}: the sample below shows whether they work, superdl stats how fast")
    return combined(
        [finding for name in settings.executors for finding in _looks(EXECUTORS[name], case, settings)]
    )


def _looks(kind: ExecutorKind, case: Case, settings: Settings) -> list[Finding]:
    is_here = kind.runs_on is RunsOn.THIS_HOST
    # Workers that call in are checked by their coordinator.
    if kind.runs_on is RunsOn.OTHER_HOSTS:
        return [
            skipped(
                f"functions run on {kind.place}, so a coordinator is needed", "pass it with --coordinator"
            )
        ]
    if not (is_here or case.cache):
        return [
            skipped(f"functions on {kind.place} need a cache that they can reach", "pass it with --cache")
        ]
    began_s = time.monotonic()
    try:
        fingerprint, capacity = _start(kind, settings, "" if is_here else case.cache)
    except ExecutorError as error:
        remedy = "see its messages on standard error above, and check that SUPER is installed completely"
        if not is_here:
            chosen = ", ".join(f"SUPER_{name.upper()}" for name in kind.chosen_by)
            remedy = f"check {chosen}, and that SUPER is installed there"
        return [bad(str(error), remedy)]
    took_s = round(time.monotonic() - began_s, 3)
    if is_here:
        started = good(f"{settings.function} starts in its own process, in {took_s:.2f} s", start_s=took_s)
    else:
        why = f"{capacity} functions can run on {kind.place} at once; it starts in {took_s:.2f} s"
        started = good(f"{why}; the lines above list what was skipped, and why", places=capacity)
    return [started, _judge_decoder(kind, settings, fingerprint)]


def _start(kind: ExecutorKind, settings: Settings, cache: str) -> tuple[str, int]:
    from superdl.coordinator.server.settings import executor_context

    executor_type = executor_class(kind.name)
    context = executor_context(replace(settings, cache=cache or settings.cache))

    async def start() -> tuple[str, int]:
        executor = executor_type(replace(settings, **executor_type.first_look), context)
        try:
            await executor.start()
            return executor.fingerprint, executor.scaling.capacity
        finally:
            await executor.close()

    return asyncio.run(start())


def _judge_decoder(kind: ExecutorKind, settings: Settings, fingerprint: str) -> Finding:
    from superdl.lambda_prefetch.decoder_fingerprint import decoder_fingerprint
    from superdl.super_wire.protocol import installed_version

    # Both are of the same images.
    same_decoder = fingerprint == decoder_fingerprint()
    if kind.runs_on is RunsOn.THIS_HOST:
        if not same_decoder:
            why = f"{settings.function} decodes images differently from SUPER's own function here"
            return doubtful(why, "expected if the function is your own; otherwise reinstall SUPER")
        return good(f"the {kind.name} function belongs to this installation, SUPER {installed_version()}")
    summary = f"on {kind.place} it is SUPER {installed_version()}, as here, and reaches the cache"
    if same_decoder:
        return good(f"{summary}; it decodes images as this machine does")
    summary += "; it decodes images differently from this machine (another Pillow or processor)"
    if any(EXECUTORS[name].runs_on is RunsOn.THIS_HOST for name in settings.executors):
        return bad(summary, _ONE_PILLOW)
    return good(f"{summary}, which is harmless while nothing here decodes for the same cache")
