"""The read path: from a ``BatchRef`` through packs and cache to a checked batch buffer, and its delivery."""

from __future__ import annotations

from superdl.super_dataset.reading.reader import BatchReader, ReadSettings

__all__ = ["BatchReader", "ReadSettings"]
