"""The read path: from a ``BatchRef`` to one checked batch buffer."""

from __future__ import annotations

__all__: list[str] = []
