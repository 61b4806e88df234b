"""A worker's settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from superdl.super_wire.credentials import CoordinatorCredentials

__all__ = ["WorkerSettings"]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """A worker's settings."""

    coordinator: str  # host:port or unix:/path
    name: str  # in the coordinator's log
    function: str = "superdl.lambda_prefetch.handler:handler"  # that the slots run, module:attribute
    slots: int = 1  # concurrent requests, each in its own process
    nice: int = 0  # of these processes
    linger_s: float = 300.0  # to wait for an unreachable coordinator
    grace_s: float = 30.0  # that running requests may take after SIGTERM
    credentials: CoordinatorCredentials = field(default_factory=CoordinatorCredentials)
    store: str = ""  # the address of the store that it sees; empty means that of SUPER_STORE
    store_only: bool = False  # only restore and save, for functions that do not see the store
    metrics_listen: str = ""  # where Prometheus finds metrics, host:port; empty: nowhere
    health_listen: str = ""  # the same for health probes
