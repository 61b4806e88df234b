"""The embedded default's coordinator. It starts its own cache and runs as long as ranks are connected.

If the cache dies, the coordinator exits at once. If the coordinator dies, the kernel kills the
cache, and the worker exits when its stream breaks. The first rank to lose its connection restarts
everything.
"""

from __future__ import annotations

from superdl.coordinator.embedded.cache_server import server_binary, start_server, start_tied

__all__ = ["server_binary", "start_server", "start_tied"]
