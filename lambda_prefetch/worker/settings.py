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
        coordinator: its address, ``host:port`` or ``unix:/path``.
        credentials: how it is let in.
        name: for people.
        linger_s: it ends once the coordinator has been unreachable for so long.
        grace_s: after SIGTERM, what is running may take so long.
    """

    coordinator: str
    credentials: CoordinatorCredentials
    name: str
    linger_s: float = 300.0
    grace_s: float = 30.0
