"""The coordinator, as a training job would reach it from here: whether it answers, what it is, and what its
cache has room for.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from superdl.doctor.finding import bad, doubtful, good, size_text, skipped

if TYPE_CHECKING:
    from superdl.doctor.case import Case, Seen
    from superdl.doctor.finding import Found
    from superdl.super_wire.coordinator_pb2 import CacheStats

__all__ = ["check_coordinator", "check_room", "judge_room"]

_FULL = 0.9


def check_coordinator(case: Case, seen: Seen) -> Found:
    """Whether it answers with these credentials, and is the SUPER that is installed here."""
    if not case.coordinator:
        why = "none is named, so that samplers start the embedded one"
        return skipped(why, "name one: --coordinator or SUPER_COORDINATOR")
    from superdl.sampler.rpc.client import Client, Patience
    from superdl.sampler.rpc.connection import checked_address
    from superdl.super_wire import coordinator_pb2 as pb
    from superdl.super_wire.protocol import installed_version

    client = Client(checked_address(case.coordinator, "--coordinator"))
    patience = Patience(attempts=3, total_s=10.0, deadline_s=5.0)  # it is there now, or something is wrong
    with client.hold():
        client.call("GetJobStats", pb.GetJobStatsRequest(), patience)  # also connects
        asked_s = time.time()
        answer = client.call("GetJobStats", pb.GetJobStatsRequest(), patience)
        took_s = time.time() - asked_s
    seen.stats = answer.cache
    seen.budget_bytes = answer.cache.budget_bytes
    why = f"{case.coordinator} answers in {took_s * 1000:.1f} ms, {len(answer.jobs)} jobs are open"
    if not answer.HasField("coordinating"):
        remedy = "install one version of SUPER on both sides"
        return doubtful(f"{why}; it does not tell what it is, so it is an older SUPER", remedy)
    told = seen.coordinating = answer.coordinating
    seen.capacities = {one.name: one.capacity for one in answer.executors}
    if told.clock_s:
        seen.clock("the coordinator", told.clock_s, asked_s)
    ours = installed_version()
    if told.version != ours:
        why = f"{why}; it is SUPER {told.version}, this machine has {ours}"
        return doubtful(why, "install one version of SUPER on both sides")
    return good(f"{why}; SUPER {ours}, functions: {', '.join(told.executors)}", answer_s=round(took_s, 6))


def check_room(case: Case, seen: Seen) -> Found:
    """Whether the coordinator's cache suffices for the jobs that it has."""
    if seen.stats is None:
        return skipped("no coordinator has told it" if case.coordinator else "no coordinator is named")
    return judge_room(seen.stats)


def judge_room(cache: CacheStats) -> Found:
    """What the cache's figures mean."""
    told = f"{size_text(cache.resident_bytes)} of {size_text(cache.budget_bytes)} hold samples"
    if cache.thrashing:
        why = f"{told}; much of what functions make now was dropped before"
        return doubtful(
            why,
            f"a cache with {size_text(cache.needed_bytes)} for records would end it, or fewer jobs at a time",
        )
    if cache.spending == "stopped":
        why = f"{told}; the cap on spending is reached: what is not in the cache fails"
        return bad(why, "raise the coordinator's --max-usd, or start it anew")
    full = (
        " (full: what is needed last is dropped)" if cache.resident_bytes > _FULL * cache.budget_bytes else ""
    )
    return good(told + full, resident_bytes=cache.resident_bytes, budget_bytes=cache.budget_bytes)
