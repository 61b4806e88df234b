"""Checks of coordinator and cache, from here, as a training job would reach them.

The credentials are this process's: see ``docs/cache.md`` and ``SECURITY.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from super_wire.errors import SuperError
from superdl.doctor.finding import Finding, Verdict

if TYPE_CHECKING:
    from super_wire.coordinator_pb2 import CacheStats

__all__ = ["check_cache", "check_coordinator"]

_COORDINATOR = "coordinator"
_CACHE = "cache"
_CACHE_TIMEOUT_S = 5.0
_FULL = 0.9


def check_coordinator(address: str) -> list[Finding]:
    """Whether it answers with these credentials, and whether its cache suffices."""
    if not address:
        why = "none is named, so that samplers start the embedded one"
        return [Finding(_COORDINATOR, Verdict.SKIPPED, why, "name one: --coordinator or SUPER_COORDINATOR")]
    from sampler.address import checked_address
    from sampler.client import FIRST_CONTACT, Client
    from super_wire import coordinator_pb2 as pb

    try:
        client = Client(checked_address(address, "--coordinator"))
        with client.hold():
            answer = client.call("GetJobStats", pb.GetJobStatsRequest(), FIRST_CONTACT)
    except SuperError as error:
        return [_refused(_COORDINATOR, error)]
    why = f"{address} answers, {len(answer.jobs)} jobs are open"
    return [Finding(_COORDINATOR, Verdict.GOOD, why), _judge_room(answer.cache)]


def _judge_room(cache: CacheStats) -> Finding:
    name = "room in the cache"
    seen = f"{cache.resident_bytes / 2**30:.1f} of {cache.budget_bytes / 2**30:.1f} GiB hold samples"
    if cache.thrashing:
        why = f"{seen}; much of what functions make now was dropped before"
        return Finding(name, Verdict.DOUBTFUL, why, f"{cache.needed_bytes / 2**30:.1f} GiB would end it")
    full = " (full: what is needed last is dropped)" if _is_full(cache) else ""
    return Finding(name, Verdict.GOOD, seen + full)


def _is_full(cache: CacheStats) -> bool:
    return cache.resident_bytes > _FULL * cache.budget_bytes


def check_cache(address: str) -> Finding:
    """Whether a reader gets in with these credentials, within seconds."""
    if not address:
        why = "no address is named; samplers get it from the coordinator, and check it"
        return Finding(_CACHE, Verdict.SKIPPED, why, "name it: --cache, or --stack with a stack's outputs")
    from super_dataset.reader import BatchReader, ReadSettings

    try:
        BatchReader(ReadSettings()).ping(address, timeout_s=_CACHE_TIMEOUT_S)
    except SuperError as error:
        return _refused(_CACHE, error)
    return Finding(_CACHE, Verdict.GOOD, f"{address} lets this machine read")


def _refused(check: str, error: SuperError) -> Finding:
    return Finding(check, Verdict.BAD, f"{type(error).__name__}: {error}")
