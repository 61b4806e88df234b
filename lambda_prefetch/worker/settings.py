"""A worker's settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from superdl.super_wire.credentials import CoordinatorCredentials

__all__ = ["WorkerSettings"]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """A worker's settings.

    Attributes:
        coordinator: the address, ``host:port`` or ``unix:/path``.
        name: shown in the coordinator's log.
        function: the function that the slots run, ``module:attribute``.
        slots: concurrent requests, each in its own process.
        nice: niceness of these processes.
        linger_s: how long to wait for an unreachable coordinator, in seconds.
        grace_s: how long running requests may take after SIGTERM, in seconds.
        credentials: token and certificates.
        store: the address of the store that it sees; empty means that of ``SUPER_STORE``.
        store_only: only restore and save, for functions that do not see the store.
        metrics_listen: where Prometheus finds metrics, ``host:port``; empty: nowhere.
        health_listen: the same for health probes.
    """

    coordinator: str
    name: str
    function: str = "superdl.lambda_prefetch.handler:handler"
    slots: int = 1
    nice: int = 0
    linger_s: float = 300.0
    grace_s: float = 30.0
    credentials: CoordinatorCredentials = field(default_factory=CoordinatorCredentials)
    store: str = ""
    store_only: bool = False
    metrics_listen: str = ""
    health_listen: str = ""
