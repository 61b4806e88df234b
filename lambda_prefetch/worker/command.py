"""``superdl worker``: run functions for a coordinator, on this machine or any other that reaches it."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import signal
import sys
from typing import TYPE_CHECKING

from superdl.lambda_prefetch.worker.settings import WorkerSettings
from superdl.super_wire.coordinator_credentials import CoordinatorCredentials
from superdl.super_wire.errors import ConfigError, SuperError
from superdl.super_wire.host import usable_cores
from superdl.super_wire.protocol import host_and_port, socket_path
from superdl.super_wire.redaction import keep_secrets_out_of_logs

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "run"]

_FUNCTION = "superdl.lambda_prefetch.handler:handler"
_MAX_SLOTS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add = parser.add_argument
    add("--coordinator", help="host:port or unix:/path (SUPER_COORDINATOR)")
    add(
        "--slots",
        type=int,
        help="requests at once, each in a process of its own (SUPER_SLOTS, else the cores)",
    )
    add("--name", help="what the coordinator's log calls it (host and process id)")
    add("--nice", type=int, default=0, help="niceness of the slots: 19 gives way to all else (0)")
    add(
        "--linger",
        type=float,
        default=300.0,
        metavar="S",
        help="end once no coordinator answers for so long (300)",
    )
    add("--grace", type=float, default=30.0, metavar="S", help="after SIGTERM, finish for so long (30)")
    add("--function", default=_FUNCTION, help=f"module:attribute that the slots run ({_FUNCTION})")


def run(arguments: argparse.Namespace) -> int:
    """Call in and work until SIGTERM."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    keep_secrets_out_of_logs()
    address = arguments.coordinator or os.environ.get("SUPER_COORDINATOR", "")
    host, port = host_and_port(address)
    if not port and socket_path(address) is None:
        raise ConfigError(f"--coordinator is host:port or unix:/path; not {address!r}")
    credentials = CoordinatorCredentials.from_environment(os.environ)
    credentials.check_suffices(host)
    given = str(arguments.slots or os.environ.get("SUPER_SLOTS") or usable_cores())
    if not given.isdecimal() or not 1 <= int(given) <= _MAX_SLOTS:
        raise ConfigError(f"--slots (SUPER_SLOTS) is 1 to {_MAX_SLOTS}; not {given[:20]!r}")
    name = arguments.name or f"{platform.node()}-{os.getpid()}"
    settings = WorkerSettings(address, credentials, name, arguments.linger, arguments.grace)
    asyncio.run(_work(settings, arguments.function, int(given), arguments.nice))
    return 0


async def _work(settings: WorkerSettings, function: str, count: int, nice: int) -> None:
    from superdl.lambda_prefetch.worker.slots import Slots

    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    slots, trouble = Slots(function, count, nice=nice), ""
    starting = asyncio.create_task(slots.start())
    try:
        await asyncio.sleep(0)  # the slots start while gRPC is imported
        from superdl.lambda_prefetch.worker.calling import serve

        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if starting.done():
            try:
                starting.result()
            except SuperError as error:
                trouble = str(error)
            await serve(settings, slots, stop, trouble)
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await slots.close()
