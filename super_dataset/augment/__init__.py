"""Random augmentation of whole batches, after the cache."""

from __future__ import annotations

from superdl.super_dataset.augment.transform import Augment

__all__ = ["Augment"]
