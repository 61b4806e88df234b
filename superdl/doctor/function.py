"""The check of the function: it starts, reaches the cache, and has our version."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from superdl.coordinator.executors import ExecutorError, executor_class
from superdl.doctor.checking import Finding, bad, combined, doubtful, good, skipped
from superdl.super_wire.executors import EXECUTORS, RunsOn

if TYPE_CHECKING:
    from superdl.coordinator.server.settings import Settings
    from superdl.doctor.checking import Case
    from superdl.super_wire.executors import ExecutorKind

_ONE_PILLOW = "install one Pillow everywhere, for one kind of processor: these executors share a cache"


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
