"""The coordinator: knows every job's plan, has samples produced ahead of time, and accounts for the cache.

Run it with ``superdl coordinator`` or ``python -m superdl.coordinator``.
"""

from __future__ import annotations

__all__: list[str] = []
