"""Reads decoded samples from the cache into tensors: the dataset that a torch ``DataLoader`` is given, and
``SuperLoader``, which reads by threads instead.

It knows nothing of the coordinator: a ``SuperSampler`` binds it and yields the ``BatchRef`` s that index it.
"""

from __future__ import annotations

from super_dataset.augment import Augment
from super_dataset.dataset import SuperDataset
from super_dataset.info import BatchInfo
from super_dataset.loader import SuperLoader
from super_dataset.trainer import SuperTrainerMixin
from super_wire.recipe import Recipe

__all__ = ["Augment", "BatchInfo", "Recipe", "SuperDataset", "SuperLoader", "SuperTrainerMixin"]
