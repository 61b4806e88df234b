"""The embedded coordinator: a supervisor process that starts a coordinator, a cache and functions on this
host.
"""

from __future__ import annotations

from superdl.sampler.embedded.children import cache_configuration, server_binary
from superdl.sampler.embedded.run_directory import RunDirectory
from superdl.super_wire.host import available_memory_bytes, usable_cores

__all__ = ["RunDirectory", "available_memory_bytes", "cache_configuration", "server_binary", "usable_cores"]
