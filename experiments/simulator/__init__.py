"""A deterministic world around the real core, with virtual clock, cache, functions, jobs and faults."""

from __future__ import annotations

__all__: list[str] = []
