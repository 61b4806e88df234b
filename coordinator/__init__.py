"""The coordinator: knows every job's plan, has samples produced ahead of them, and keeps the cache's account.

:mod:`superdl.coordinator.core` decides and does no I/O; the modules beside it carry its decisions out:
catalogs, executors, cache upkeep, the gRPC service. Run it with ``superdl coordinator`` or ``python -m
superdl.coordinator``.
"""

from __future__ import annotations

__all__: list[str] = []
