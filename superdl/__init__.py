"""SUPER in one import: ``from superdl import Recipe, SuperDataset, SuperSampler``.

The packages behind it are imported when a name is first asked for, so that ``superdl --help`` pays for none
of them.
"""

from __future__ import annotations

from importlib import import_module
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

_HOMES = {"Recipe": "superdl.super_wire", "SuperSampler": "superdl.sampler"}
"""The homes of names; all others are the dataset's."""

_ASKING = frozenset({"SuperDataset", "SuperLoader", "SuperMix"})
"""They ask a coordinator before there is a sampler, or make one. Who can is brought here, since the dataset's
home knows neither.
"""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module 'superdl' has no attribute {name!r}"
        raise AttributeError(msg)
    home = import_module(_HOMES.get(name, "superdl.super_dataset"))
    if name in _ASKING:
        home.coordinate_by(import_module("superdl.sampler"))
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
