"""The coordinator's side of the cache: its budget and lock, its upkeep, and the streams that come back
through it.
"""

from __future__ import annotations

__all__: list[str] = []
