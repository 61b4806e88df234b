"""Reads decoded samples from the cache into tensors: the dataset that a torch ``DataLoader`` is given, and
``SuperLoader``, which reads by threads instead.

It knows nothing of the coordinator: a ``SuperSampler`` binds it and yields the ``BatchRef`` s that index it.
"""

from __future__ import annotations

from superdl.super_dataset.augment import Augment
from superdl.super_dataset.dataset import SuperDataset
from superdl.super_dataset.listed_source import coordinate_by
from superdl.super_dataset.loader import SuperLoader
from superdl.super_dataset.mixing import SuperMix
from superdl.super_dataset.per_sample import PerSample
from superdl.super_dataset.reading import BatchInfo
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
    "coordinate_by",
    "split_transform",
]
