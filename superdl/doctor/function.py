"""The function: whether it is there, runs, reaches the cache, and is the SUPER that is installed here.

Each executor is started for a moment, with one function, or with all nodes of a Ray cluster. One whose class
names checks of its own is asked by those: on Lambda the configuration is looked at, and one event is sent.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superdl.coordinator.executors import ExecutorError, executor_class
from superdl.doctor.case import Started
from superdl.doctor.finding import Found, bad, combined, doubtful, good, skipped
from superdl.super_wire.executors import EXECUTORS, RunsOn

if TYPE_CHECKING:
    from superdl.coordinator.server.settings import Settings
    from superdl.doctor.case import Case, Seen
    from superdl.super_wire.executors import ExecutorKind

__all__ = ["check_function", "check_version", "own_checks"]

_THEIRS = "functions are {}: the sample below shows whether they work"
_NOT_TRIED = (
    "functions are {}: not tried, one executor makes the sample below, {} if it can; see superdl stats"
)
_ONE_PILLOW = "install one Pillow everywhere, for one kind of processor: these executors share a cache"


def check_function(case: Case, seen: Seen) -> Found:
    """Whether each executor's function is there."""
    settings = seen.functions(case)
    return combined([_check_function(EXECUTORS[name], case, seen, settings) for name in settings.executors])


def check_version(case: Case, seen: Seen) -> Found:
    """Whether it is our version, decodes as this machine does, and reaches the cache."""
    settings = seen.functions(case)
    return combined([_check_version(EXECUTORS[name], case, seen, settings) for name in settings.executors])


def own_checks(executor: str) -> Any:
    """The module with what only this executor has checked; ``None`` if there is none."""
    module = executor_class(executor).own_checks
    return importlib.import_module(module) if module else None


def _check_function(kind: ExecutorKind, case: Case, seen: Seen, settings: Settings) -> Found:
    if (checks := own_checks(kind.name)) is not None:
        found: Found = checks.check_function(case, seen, settings)
        return found
    if case.elsewhere:
        return _elsewhere(kind, settings)
    is_here = kind.runs_on is RunsOn.THIS_HOST
    if not (is_here or seen.cache):
        return skipped(f"functions on {kind.place} need a cache that they reach", "name it: --cache")
    try:
        started = seen.started[kind.name] = _start(kind, settings, "" if is_here else seen.cache)
    except ExecutorError as error:
        remedy = "see what it says on standard error above; is SUPER installed as a whole?"
        if not is_here:
            chosen = ", ".join(f"SUPER_{name.upper()}" for name in kind.chosen_by)
            remedy = f"see {chosen}, and that SUPER is installed there"
        return bad(str(error), remedy)
    if is_here:
        why = f"{settings.function} starts in a process of its own, {started.answer_s:.2f} s"
        return good(why, start_s=started.answer_s)
    why = f"{started.places} functions fit on {kind.place} at once, {started.answer_s:.2f} s"
    return good(f"{why}; what was left out is told above, with the reason", places=started.places)


def _check_version(kind: ExecutorKind, case: Case, seen: Seen, settings: Settings) -> Found:
    measured = {}
    if (checks := own_checks(kind.name)) is not None:
        started: Started | Found | None = checks.start_function(case, seen, settings)
        if isinstance(started, Started):
            measured = {"answer_s": round(started.answer_s, 3)}
    elif case.elsewhere:
        return _elsewhere(kind, settings)
    else:
        started = seen.started.get(kind.name)
    if started is None:
        return skipped(f"no function was started on {kind.place}")
    return started if isinstance(started, Found) else _judge_version(kind, seen, settings, started, measured)


def _judge_version(
    kind: ExecutorKind, seen: Seen, settings: Settings, started: Started, measured: dict[str, float]
) -> Found:
    from superdl.lambda_prefetch.decoder_fingerprint import decoder_fingerprint
    from superdl.super_wire.protocol import installed_version

    alike = started.fingerprint == decoder_fingerprint()
    if kind.runs_on is RunsOn.THIS_HOST:
        if not alike:
            why = f"{settings.function} decodes images otherwise than SUPER's own function does here"
            return doubtful(why, "expected of a function of your own; else install SUPER again")
        return good(f"the {kind.name} function is this installation's, SUPER {installed_version()}")
    reach = "reaches the cache" if seen.cache else "was not asked to reach a cache, since none is known"
    words = f"on {kind.place} it is SUPER {installed_version()} as here, and {reach}"
    if measured:
        words += f"; it answers in {started.answer_s * 1000:.0f} ms"
    if alike:
        return good(f"{words}; it decodes images as this machine does", **measured)
    words += "; it decodes images otherwise than this machine (another Pillow or processor)"
    if any(EXECUTORS[name].runs_on is RunsOn.THIS_HOST for name in settings.executors):
        return bad(words, _ONE_PILLOW)
    return good(f"{words}, which does no harm while nothing here decodes for the same cache", **measured)


def _start(kind: ExecutorKind, settings: Settings, cache: str) -> Started:
    """Start an executor and end it.

    Raises:
        ExecutorError: it does not start.
    """
    from superdl.coordinator.server.trust import executor_context

    executor_type = executor_class(kind.name)
    context = executor_context(replace(settings, cache=cache or settings.cache))

    async def start() -> Started:
        executor = executor_type.of(replace(settings, **executor_type.first_look), context)
        began_s = time.monotonic()
        try:
            await executor.start()
            took_s = round(time.monotonic() - began_s, 3)
            return Started(executor.fingerprint, executor.scaling.capacity, took_s)
        finally:
            await executor.close()

    return asyncio.run(start())


def _elsewhere(kind: ExecutorKind, settings: Settings) -> Found:
    """Of a coordinator that runs elsewhere only the first executor's functions are tried, by the sample."""
    where, first = f"run by the coordinator on {kind.place}", settings.executors[0]
    if kind.runs_on is RunsOn.THIS_HOST:
        where = kind.runs_on.value
    return skipped(_THEIRS.format(where) if kind.name == first else _NOT_TRIED.format(where, first))
