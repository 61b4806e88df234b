"""The coordinator's process: settings, access control, the gRPC service, and the engine that runs actions."""

from __future__ import annotations

__all__: list[str] = []
