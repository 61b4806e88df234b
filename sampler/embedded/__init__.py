"""The embedded coordinator: a supervisor process that starts a coordinator, a cache and functions on this
host.
"""

from __future__ import annotations

__all__: list[str] = []
