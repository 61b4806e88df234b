"""The coordinator's process: settings, who is let in, the gRPC service, and the engine that carries actions
out.
"""

from __future__ import annotations

__all__: list[str] = []
