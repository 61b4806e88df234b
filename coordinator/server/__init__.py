"""The coordinator process: settings, access control, the gRPC service and the engine."""

from __future__ import annotations

__all__: list[str] = []
