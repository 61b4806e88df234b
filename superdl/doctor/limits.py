"""Limits that are met late, when a run is large: functions at once, the cache's clients, open files."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from superdl.coordinator.executors import executor_class
from superdl.doctor.cache import cache_clients
from superdl.doctor.finding import combined, doubtful, good, skipped
from superdl.doctor.function import own_checks
from superdl.super_wire.errors import CacheError

if TYPE_CHECKING:
    from superdl.doctor.case import Case, Seen
    from superdl.doctor.finding import Found

__all__ = ["check_clients", "check_concurrency", "check_open_files"]

_COORDINATORS_OWN = 16
_FEW_FILES = 1024


def check_concurrency(case: Case, seen: Seen) -> Found:
    """Whether as many functions may run at once as the coordinator may ask for, where that is limited."""
    settings = seen.functions(case)
    checks = [module for name in settings.executors if (module := own_checks(name)) is not None]
    if not checks:
        return skipped("no function runs on a service that limits how many there are")
    return combined([module.check_concurrency(seen, settings) for module in checks])


def check_clients(case: Case, seen: Seen) -> Found:
    """Whether the cache takes as many clients as functions and readers will be."""
    if not seen.cache:
        return skipped("no cache is known")
    try:
        connected, most = cache_clients(seen.cache)
    except CacheError as error:
        if "NOPERM" not in str(error):
            raise
        return skipped(
            "this user may not ask the cache for its clients (INFO)", "to look, use the coordinator's"
        )
    settings = seen.functions(case)
    places = seen.capacities | {name: one.places for name, one in seen.started.items()}
    for name in settings.executors:
        executor = executor_class(name)
        if seen.coordinating is None or executor.told:  # else these settings are not the coordinator's
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


def check_open_files(case: Case, seen: Seen) -> Found:  # noqa: ARG001  # all checks are asked alike
    """Whether this process may open files enough: each connection and each batch in shared memory is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = "no limit" if soft == resource.RLIM_INFINITY else f"{soft:,}"
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        why = f"this process may have {shown} files open; connections and batches are files too"
        most = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
        return doubtful(
            why, f"ulimit -n {most}" if most > soft else "raise the hard limit (limits.conf, nofile)"
        )
    return good(f"ulimit -n: {shown}")
