"""``superdl worker``: run functions for a coordinator, on this machine or any other that reaches it."""

from __future__ import annotations

import logging
import os
import platform
import sys
from typing import TYPE_CHECKING

from superdl.lambda_prefetch.worker.settings import WorkerSettings
from superdl.lambda_prefetch.worker.working import work
from superdl.super_wire.errors import ConfigError
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
    add("--store", default="", help="the coordinator's store, if this host sees it (SUPER_STORE)")
    add("--store-only", action="store_true", help="restore and save alone, for functions elsewhere")
    add("--metrics-listen", default="", help="host:port where Prometheus finds metrics (nowhere)")
    add("--health-listen", default="", help="host:port, in plain text, for probes of /healthz and /livez")
    add(
        "--ray",
        nargs="?",
        const="auto",
        metavar="ADDRESS",
        help="run workers on a Ray cluster: HEAD:6379 (the one that this machine is a node of)",
    )
    add("--num", type=int, default=1, help="with --ray: the number of workers (1)")
    add("--num-cpus", type=float, default=1.0, help="with --ray: CPUs for each worker (1)")


def run(arguments: argparse.Namespace) -> int:
    """Connect and work until SIGTERM, or let a Ray cluster do so; return the exit code."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    keep_secrets_out_of_logs()
    address = arguments.coordinator or os.environ.get("SUPER_COORDINATOR", "")
    if not host_and_port(address)[1] and socket_path(address) is None:
        raise ConfigError(f"--coordinator is host:port or unix:/path; not {address!r}")
    cores = usable_cores() if arguments.ray is None else max(1, int(arguments.num_cpus))
    given = str(arguments.slots or os.environ.get("SUPER_SLOTS") or cores)
    if not given.isdecimal() or not 1 <= int(given) <= _MAX_SLOTS:
        raise ConfigError(f"--slots (SUPER_SLOTS) is 1 to {_MAX_SLOTS}; not {given[:20]!r}")
    settings = WorkerSettings(
        address,
        arguments.name or f"{platform.node()}-{os.getpid()}",
        arguments.function,
        int(given),
        arguments.nice,
        arguments.linger,
        arguments.grace,
        store=arguments.store,
        store_only=arguments.store_only,
        metrics_listen=arguments.metrics_listen,
        health_listen=arguments.health_listen,
    )
    return work(settings) if arguments.ray is None else _run_on_ray(arguments, settings)


def _run_on_ray(arguments: argparse.Namespace, settings: WorkerSettings) -> int:
    from superdl.lambda_prefetch.worker.on_ray import run_on_ray

    if settings.metrics_listen or settings.health_listen:
        raise ConfigError(
            "--metrics-listen and --health-listen are one worker's: with --ray there are several"
        )
    if arguments.num < 1 or arguments.num_cpus <= 0:
        raise ConfigError("--num is 1 or more, and --num-cpus above 0")
    return run_on_ray(arguments.ray, arguments.num, arguments.num_cpus, settings)
