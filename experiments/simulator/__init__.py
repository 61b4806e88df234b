"""A deterministic simulation that runs the real core with a virtual clock, cache, functions and jobs."""

from __future__ import annotations

__all__: list[str] = []
