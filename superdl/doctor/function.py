"""The function: whether it is there, runs, reaches the cache, is the SUPER that is installed here, and how
many of it run at once.

Each executor is started for a moment, with one function, or with all nodes of a Ray cluster. One whose class
names checks of its own is asked by those: on Lambda the configuration is looked at, and one event is sent.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast

from superdl.coordinator.executors import ExecutorError, executor_class
from superdl.doctor.checking import Finding, Started, bad, combined, doubtful, good, skipped
from superdl.super_wire.executors import EXECUTORS, RunsOn

if TYPE_CHECKING:
    from superdl.coordinator.server.settings import Settings
    from superdl.doctor.checking import Case
    from superdl.super_wire.executors import ExecutorKind

__all__ = ["OwnChecks", "check_concurrency", "check_function", "check_version"]

_ONE_PILLOW = "install one Pillow everywhere, for one kind of processor: these executors share a cache"


class OwnChecks(Protocol):
    """A module with checks of one executor: what its class names as ``own_checks``."""

    def check_function(self, case: Case) -> Finding:
        """Whether its function is there."""

    def start_function(self, case: Case) -> Started | Finding:
        """Have one function answer: what it told, or why it did not."""

    def check_concurrency(self, case: Case) -> Finding:
        """Whether as many functions may run at once as are wanted."""


def check_function(case: Case) -> Finding:
    """Whether each executor's function is there."""
    settings = case.functions()
    return combined([_there(EXECUTORS[name], case, settings) for name in settings.executors])


def check_version(case: Case) -> Finding:
    """Whether it is our version, decodes as this machine does, and reaches the cache."""
    settings = case.functions()
    return combined([_version(EXECUTORS[name], case, settings) for name in settings.executors])


def check_concurrency(case: Case) -> Finding:
    """Whether as many functions may run at once as the coordinator may ask for, where that is limited."""
    own = [checks for name in case.functions().executors if (checks := _own_checks(name)) is not None]
    if not own:
        return skipped("no function runs on a service that limits how many there are")
    return combined([checks.check_concurrency(case) for checks in own])


def _own_checks(executor: str) -> OwnChecks | None:
    module = executor_class(executor).own_checks
    return cast("OwnChecks", importlib.import_module(module)) if module else None


def _there(kind: ExecutorKind, case: Case, settings: Settings) -> Finding:
    if (checks := _own_checks(kind.name)) is not None:
        return checks.check_function(case)
    if case.elsewhere:
        return _elsewhere(kind, settings)
    is_here = kind.runs_on is RunsOn.THIS_HOST
    if not (is_here or case.cache):
        return skipped(f"functions on {kind.place} need a cache that they reach", "name it: --cache")
    try:
        started = case.started[kind.name] = _start(kind, settings, "" if is_here else case.cache)
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


def _start(kind: ExecutorKind, settings: Settings, cache: str) -> Started:
    """Start an executor and end it.

    Raises:
        ExecutorError: it does not start.
    """
    from superdl.coordinator.server.settings import executor_context

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


def _version(kind: ExecutorKind, case: Case, settings: Settings) -> Finding:
    measured = {}
    if (checks := _own_checks(kind.name)) is not None:
        started = checks.start_function(case)
        if isinstance(started, Finding):
            return started
        measured = {"answer_s": round(started.answer_s, 3)}
    elif case.elsewhere:
        return _elsewhere(kind, settings)
    elif kind.name in case.started:
        started = case.started[kind.name]
    else:
        return skipped(f"no function was started on {kind.place}")
    return _judge_version(kind, case, settings, started, measured)


def _judge_version(
    kind: ExecutorKind, case: Case, settings: Settings, started: Started, measured: dict[str, float]
) -> Finding:
    """What the decoder's fingerprint means, beside what this process makes of the same images."""
    from superdl.lambda_prefetch.decoder_fingerprint import decoder_fingerprint
    from superdl.super_wire.protocol import installed_version

    alike = started.fingerprint == decoder_fingerprint()
    if kind.runs_on is RunsOn.THIS_HOST:
        if not alike:
            why = f"{settings.function} decodes images otherwise than SUPER's own function does here"
            return doubtful(why, "expected of a function of your own; else install SUPER again")
        return good(f"the {kind.name} function is this installation's, SUPER {installed_version()}")
    reach = "reaches the cache" if case.cache else "was not asked to reach a cache, since none is known"
    words = f"on {kind.place} it is SUPER {installed_version()} as here, and {reach}"
    if measured:
        words += f"; it answers in {started.answer_s * 1000:.0f} ms"
    if alike:
        return good(f"{words}; it decodes images as this machine does", **measured)
    words += "; it decodes images otherwise than this machine (another Pillow or processor)"
    if any(EXECUTORS[name].runs_on is RunsOn.THIS_HOST for name in settings.executors):
        return bad(words, _ONE_PILLOW)
    return good(f"{words}, which does no harm while nothing here decodes for the same cache", **measured)


def _elsewhere(kind: ExecutorKind, settings: Settings) -> Finding:
    """Of a coordinator that runs elsewhere only the first executor's functions are tried, by the sample."""
    where, first = f"run by the coordinator on {kind.place}", settings.executors[0]
    if kind.runs_on is RunsOn.THIS_HOST:
        where = kind.runs_on.value
    if kind.name == first:
        return skipped(f"functions are {where}: the sample below shows whether they work")
    return skipped(
        f"functions are {where}: not tried, one executor makes the sample below, {first} if it can; see "
        "superdl stats"
    )
