"""How a worker calls in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superdl.super_wire.coordinator_credentials import CoordinatorCredentials

__all__ = ["WorkerSettings"]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker calls in.

    Attributes:
        coordinator: the address, ``host:port`` or ``unix:/path``.
        credentials: token and certificates.
        name: shown in the coordinator's log.
        linger_s: how long to wait for an unreachable coordinator, in seconds.
        grace_s: how long running requests may take after SIGTERM, in seconds.
    """

    coordinator: str
    credentials: CoordinatorCredentials
    name: str
    linger_s: float = 300.0
    grace_s: float = 30.0
