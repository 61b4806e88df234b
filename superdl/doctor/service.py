"""Checks of coordinator, cache and function: reachable, permitted, large enough, and of our version."""

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
_ONE_PILLOW = "install one Pillow everywhere, for one kind of processor: these executors share a cache"


def check_coordinator(case: Case) -> Finding:
    """Check that it answers these credentials, and has our version."""
    if not case.coordinator:
        why = "none is named, so that samplers start the embedded one"
        return skipped(why, "name one: --coordinator or SUPER_COORDINATOR")
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
            f"{why}; it is SUPER {description.version}, this machine has {installed}", _ONE_VERSION
        )
    return good(f"{why}; SUPER {installed}, functions: {', '.join(description.executors)}")


def check_cache(case: Case) -> Finding:
    """Check that a reader can log in at every node, with its permissions."""
    announced = case.coordinating.cache if case.coordinating is not None else ""
    address = case.named_cache or announced
    if not address and case.coordinator:
        return skipped("the coordinator did not report its cache's address", "name it: --cache")
    if not address:
        why = "none is named: the embedded default starts its own"
        return skipped(why, "name one: --cache or SUPER_CACHE, or a coordinator that knows it")
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
    tls = ", by TLS" if connection.address.tls else ""
    reached = f"{address} lets this machine read{tls}, an answer takes {answer_s * 1000:.2f} ms"
    findings = [_judge_report(reported.text if isinstance(reported, ErrorReply) else "")]
    if announced and address != announced:
        why = f"{reached}; the coordinator names another address: {announced}"
        remedy = "see that both are the same cache: readers get the coordinator's address, not SUPER_CACHE"
        return combined([doubtful(why, remedy, answer_s=answer_s), *findings])
    return combined([good(reached, answer_s=answer_s), *findings])


def _judge_report(refusal: str) -> Finding:
    if refusal.startswith("NOPERM"):
        why = f"this user lacks the right to write read reports (XADD on super:n1:*): {refusal}"
        return bad(why, "ACL SETUSER <user> %W~super:n1:* +xadd (docs/reference.md)")
    if refusal.startswith("READONLY"):
        return bad(f"it is a replica, which takes no reports: {refusal}", "name the primary's address")
    if refusal.startswith("OOM"):
        remedy = "see the memory below; readers go on, but the coordinator learns nothing of them"
        return doubtful(f"it takes nothing more: {refusal}", remedy)
    return good("this user may read records and leave read reports")


def check_memory(case: Case) -> Finding:
    """Check the memory and policy that the coordinator plans with."""
    if not case.cache:
        return skipped("no cache is known")
    try:
        info = asyncio.run(_ask_info(case.cache))
    except CacheError as error:
        # A user with only a reader's rights may not query memory.
        if "NOPERM" not in str(error) and "permission" not in str(error):
            raise
        budget = f"; the coordinator plans with {sized(case.budget_bytes)}" if case.budget_bytes else ""
        remedy = "to look, use the coordinator's user, or +info +dbsize; a reader needs neither"
        return skipped(f"this user may not ask the cache for its memory (INFO){budget}", remedy)
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
        remedy = "set maxmemory (config set maxmemory 16gb), with a fifth of the machine left over"
        return doubtful(why, remedy, **measured)
    if info.policy != "noeviction":
        why = f"{state}: the server may evict records that are about to be read"
        remedy = "config set maxmemory-policy noeviction: the coordinator decides what stays"
        return doubtful(why, remedy, **measured)
    if info.evicted_keys:
        why = f"{state}; it has dropped {info.evicted_keys:,} keys by itself since it started"
        remedy = "the policy was another one before; if the number grows, maxmemory is too small"
        return doubtful(why, remedy, **measured)
    return good(f"{state}; room for {room} of records", budget_bytes=info.budget(0), **measured)


def check_function(case: Case) -> Finding:
    """Check that each executor's function starts, has our version, decodes alike."""
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
        return [skipped(f"functions run on {kind.place} at a coordinator", "name it: --coordinator")]
    if not (is_here or case.cache):
        return [skipped(f"functions on {kind.place} need a cache that they reach", "name it: --cache")]
    began_s = time.monotonic()
    try:
        fingerprint, capacity = _start(kind, settings, "" if is_here else case.cache)
    except ExecutorError as error:
        remedy = "see what it says on standard error above; is SUPER installed as a whole?"
        if not is_here:
            chosen = ", ".join(f"SUPER_{name.upper()}" for name in kind.chosen_by)
            remedy = f"see {chosen}, and that SUPER is installed there"
        return [bad(str(error), remedy)]
    took_s = round(time.monotonic() - began_s, 3)
    if is_here:
        started = good(f"{settings.function} starts in a process of its own, {took_s:.2f} s", start_s=took_s)
    else:
        why = f"{capacity} functions run on {kind.place} at once, it starts in {took_s:.2f} s"
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
            return doubtful(why, "expected of a function of your own; else install SUPER again")
        return good(f"the {kind.name} function is this installation's, SUPER {installed_version()}")
    summary = f"on {kind.place} it is SUPER {installed_version()} as here, and reaches the cache"
    if same_decoder:
        return good(f"{summary}; it decodes images as this machine does")
    summary += "; it decodes images otherwise than this machine (another Pillow or processor)"
    if any(EXECUTORS[name].runs_on is RunsOn.THIS_HOST for name in settings.executors):
        return bad(summary, _ONE_PILLOW)
    return good(f"{summary}, which does no harm while nothing here decodes for the same cache")
