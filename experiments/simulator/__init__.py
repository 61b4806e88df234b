"""A deterministic world around the real core: virtual clock, cache, functions, jobs, faults."""

from __future__ import annotations

__all__: list[str] = []
