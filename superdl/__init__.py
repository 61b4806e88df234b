"""SUPER in one import: ``from superdl import Recipe, SuperDataset, SuperSampler``."""

from __future__ import annotations

import gc
from importlib import import_module  # noqa: TID251  # of a fixed table
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superdl.sampler import SuperSampler
    from superdl.super_dataset import (
        Augment,
        BatchInfo,
        PerSample,
        SuperDataset,
        SuperLoader,
        SuperMix,
        SuperTrainerMixin,
        split_transform,
    )
    from superdl.super_wire import Recipe

__all__ = [
    "Augment",
    "BatchInfo",
    "PerSample",
    "Recipe",
    "SuperDataset",
    "SuperLoader",
    "SuperMix",
    "SuperSampler",
    "SuperTrainerMixin",
    "split_transform",
]

# Modules of names outside super_dataset. All are imported on first use, so that superdl --help
# stays fast.
_HOMES = {"Recipe": "superdl.super_wire", "SuperSampler": "superdl.sampler"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module 'superdl' has no attribute {name!r}"
        raise AttributeError(msg)
    # What an import creates stays. A collection meanwhile would go through all of torch.
    collects = gc.isenabled()
    gc.disable()
    try:
        return getattr(import_module(_HOMES.get(name, "superdl.super_dataset")), name)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
