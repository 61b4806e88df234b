"""Checks of the coordinator, cache and functions: access, permissions, capacity and version."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from superdl.coordinator.executors import ExecutorError, executor_class
from superdl.doctor.checking import Finding, bad, combined, doubtful, good, skipped
from superdl.super_wire.display import counted
from superdl.super_wire.executors import EXECUTORS, RunsOn
from superdl.super_wire.protocol import installed_version

if TYPE_CHECKING:
    from superdl.coordinator.server.settings import Settings
    from superdl.doctor.checking import Case
    from superdl.super_wire.executors import ExecutorKind

_TIMEOUT_S = 5.0
_NO_ID = bytes(16)
_ONE_VERSION = "install one version of SUPER on both sides"


def check_coordinator(case: Case) -> Finding:
    """Check that the coordinator accepts these credentials and runs the same version."""
    if not case.coordinator:
        why = "no coordinator is set, so samplers start the embedded one"
        return skipped(why, "to use one, set --coordinator or SUPER_COORDINATOR")
    from superdl.sampler.rpc import Client, Patience, checked_address
    from superdl.super_wire import coordinator_pb2 as pb

    client = Client(checked_address(case.coordinator, "--coordinator"))
    patience = Patience(attempts=3, total_s=10.0, deadline_s=5.0)  # it should be running by now
    with client.hold():
        stats = client.call("GetJobStats", pb.GetJobStatsRequest(), patience)
    case.store = stats.cache.store
    why = f"{case.coordinator} responds and has {counted(len(stats.jobs), 'open job')}"
    description = case.coordinating = stats.coordinating
    installed = installed_version()
    if description.version != installed:
        return doubtful(
            f"{why}; it runs SUPER {description.version}, but this machine has {installed}", _ONE_VERSION
        )
    return good(f"{why}; SUPER {installed}, functions: {', '.join(description.executors)}")


def check_cache(case: Case) -> Finding:
    """Check that a reader can log in to every cache node and has the permissions that it needs."""
    announced = case.coordinating.cache if case.coordinating is not None else ""
    address = case.named_cache or announced
    if not address and case.coordinator:
        return skipped("the coordinator did not report its cache's address", "pass it with --cache")
    if not address:
        why = "no cache is set, so the embedded default starts its own"
        return skipped(why, "to use one, set --cache or SUPER_CACHE, or a coordinator that reports it")
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
        answer_s = time.monotonic() - began_s
        (reported,) = connection.converse(report)
    tls = ", over TLS" if connection.address.tls else ""
    reached = f"this machine can read from {address}{tls}; it responds in {answer_s * 1000:.2f} ms"
    findings = [_judge_report(reported.text if isinstance(reported, ErrorReply) else "")]
    if announced and address != announced:
        why = f"{reached}; the coordinator uses another address: {announced}"
        remedy = "make sure that both are the same cache: readers use the coordinator's, not SUPER_CACHE"
        return combined([doubtful(why, remedy), *findings])
    return combined([good(reached), *findings])


def _judge_report(refusal: str) -> Finding:
    if refusal.startswith("NOPERM"):
        why = f"this user may not write read reports (XADD on super:n1:*): {refusal}"
        return bad(why, "ACL SETUSER <user> %W~super:n1:* +xadd (docs/reference.md)")
    if refusal.startswith("READONLY"):
        return bad(f"a replica accepts no reports: {refusal}", "use the primary's address")
    if refusal.startswith("OOM"):
        remedy = "readers continue, but the coordinator gets no reports from them: give it more maxmemory"
        return doubtful(f"the cache accepts no more writes: {refusal}", remedy)
    return good("this user may read records and write read reports")


def check_function(case: Case) -> Finding:
    """Check that each executor's function starts and runs the same version."""
    settings = case.settings
    if case.elsewhere:
        executors = case.coordinating.executors if case.coordinating is not None else settings.executors
        why = f"functions ({', '.join(executors)}) are run by the coordinator"
        return skipped(f"{why}: the sample below shows if they work, and superdl stats their speed")
    return combined([_look(EXECUTORS[name], case, settings) for name in settings.executors])


def _look(kind: ExecutorKind, case: Case, settings: Settings) -> Finding:
    is_here = kind.runs_on is RunsOn.THIS_HOST
    # Workers that call in are checked by their coordinator.
    if kind.runs_on is RunsOn.OTHER_HOSTS:
        return skipped(
            f"functions run on {kind.location}, so a coordinator is needed", "pass it with --coordinator"
        )
    if not (is_here or case.cache):
        return skipped(
            f"functions on {kind.location} need a cache that they can reach", "pass it with --cache"
        )
    began_s = time.monotonic()
    try:
        capacity = _start(kind, settings, "" if is_here else case.cache)
    except ExecutorError as error:
        remedy = "see its messages on standard error above, and check that SUPER is installed completely"
        if not is_here:
            variables = ", ".join(f"SUPER_{name.upper()}" for name in kind.chosen_by)
            remedy = f"check {variables}, and that SUPER is installed there"
        return bad(str(error), remedy)
    took_s = time.monotonic() - began_s
    if is_here:
        return good(f"{settings.function} starts in its own process, in {took_s:.2f} s")
    return good(
        f"functions on {kind.location} run SUPER {installed_version()}, as here, and reach the cache; "
        f"{capacity} can run at once; startup took {took_s:.2f} s"
    )


def _start(kind: ExecutorKind, settings: Settings, cache: str) -> int:
    """Start and stop an executor as a coordinator would; return how many functions can run at once."""
    from superdl.coordinator.server.settings import executor_context

    executor_type = executor_class(kind.name)
    context = executor_context(replace(settings, cache=cache or settings.cache))
    # Its worker would log each connection to the terminal.
    context = replace(context, environment={**context.environment, "SUPER_LOG_LEVEL": "WARNING"})

    async def start() -> int:
        executor = executor_type(replace(settings, **executor_type.trial_settings), context)
        try:
            await executor.start()
            return executor.scaling.capacity
        finally:
            await executor.close()

    return asyncio.run(start())
