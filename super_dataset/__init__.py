"""The dataset for torch's ``DataLoader``, and ``SuperLoader``."""

from __future__ import annotations

from superdl.super_dataset.augment import Augment
from superdl.super_dataset.dataset import SuperDataset
from superdl.super_dataset.loader import SuperLoader
from superdl.super_dataset.mixing import SuperMix
from superdl.super_dataset.per_sample import PerSample
from superdl.super_dataset.reading.delivery import BatchInfo
from superdl.super_dataset.splitting import SplitTransform, split_transform
from superdl.super_dataset.transformers_trainer import SuperTrainerMixin
from superdl.super_wire.recipe import Recipe

__all__ = [
    "Augment",
    "BatchInfo",
    "PerSample",
    "Recipe",
    "SplitTransform",
    "SuperDataset",
    "SuperLoader",
    "SuperMix",
    "SuperTrainerMixin",
    "split_transform",
]
