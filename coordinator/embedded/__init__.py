"""The embedded default's coordinator, which starts its own cache and runs while ranks are connected.

If the cache dies, the coordinator exits at once. If the coordinator dies, the kernel kills the
cache, and the worker exits because its stream breaks. The first rank whose connection closes
restarts everything.
"""

from __future__ import annotations

from superdl.coordinator.embedded.cache_server import server_binary, start_server, start_tied

__all__ = ["server_binary", "start_server", "start_tied"]
