"""The read path, from a ``BatchRef`` through packs and cache to tensors."""

from __future__ import annotations

from superdl.super_dataset.reading.reader import BatchReader, ReadSettings

__all__ = ["BatchReader", "ReadSettings"]
