"""The coordinator: plans every job, has samples produced ahead, and accounts for the cache.

Run it with ``superdl coordinator`` or ``python -m superdl.coordinator``.
"""

from __future__ import annotations

__all__: list[str] = []
