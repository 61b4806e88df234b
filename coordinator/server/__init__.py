"""The coordinator's process: settings, access control, the gRPC service, the engine."""

from __future__ import annotations

__all__: list[str] = []
