"""A worker's life, from the start of its slots to their end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from superdl.lambda_prefetch.settings import store_in
from superdl.lambda_prefetch.worker.showing import check_listening, show
from superdl.super_wire.credentials import CoordinatorCredentials
from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.protocol import host_and_port

if TYPE_CHECKING:
    from superdl.lambda_prefetch.worker.settings import WorkerSettings

__all__ = ["work"]


def work(settings: WorkerSettings) -> int:
    """Work until SIGTERM or the coordinator's goodbye, whose exit code this returns.

    Token and certificates come from the environment.

    Raises:
        SuperError: the coordinator refuses this worker, or was unreachable for too long.
    """
    credentials = CoordinatorCredentials.from_environment(os.environ)
    credentials.check_suffices(host_and_port(settings.coordinator)[0])
    settings = replace(settings, credentials=credentials)
    check_listening(settings)
    if settings.store:
        os.environ["SUPER_STORE"] = settings.store  # for the slots
    store = store_in(os.environ)
    if settings.store_only and not store:
        raise ConfigError(
            "a worker that only restores and saves has a store: name it by --store (SUPER_STORE)"
        )
    return asyncio.run(_work(replace(settings, store=store)))


async def _work(settings: WorkerSettings) -> int:
    from superdl.lambda_prefetch.worker.slots import Slots

    stop, connected, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    slots, trouble = Slots(settings.function, settings.slots, nice=settings.nice), ""
    starting, stack = asyncio.create_task(slots.start()), contextlib.ExitStack()
    try:
        await asyncio.sleep(0)  # the slots start while gRPC is imported
        from superdl.lambda_prefetch.worker.calling import serve

        await show(settings, slots, connected, stack)
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not starting.done():
            return 0
        try:
            starting.result()
        except SuperError as error:
            trouble = str(error)
        return await serve(settings, slots, stop, trouble, connected=connected)
    finally:
        stack.close()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await slots.close()
