"""The coordinator of the embedded default. It starts its own cache, and lives as
long as ranks hold it.

If the cache dies, the coordinator ends at once. If the coordinator dies, the kernel
kills the cache, and the worker ends because its stream breaks. The first rank to
see its connection close starts all again.
"""

from __future__ import annotations

from superdl.coordinator.embedded.cache_server import server_binary, start_server, start_tied

__all__ = ["server_binary", "start_server", "start_tied"]
