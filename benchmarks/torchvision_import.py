"""Imports torchvision where it is installed, also a CUDA build of it beside a CPU build of torch.

It is no dependency: benchmarks and tests compare with it where it is there, and leave it out where not
(``pip install --no-deps torchvision``).
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch

__all__ = ["torchvision_transforms"]

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


@functools.cache
def torchvision_transforms() -> Any:
    """``torchvision.transforms``, or ``None`` if torchvision is not installed."""
    if torch.version.cuda is None:
        _declare_operators()
    try:
        return importlib.import_module("torchvision.transforms")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        return None


@functools.cache
def _declare_operators() -> torch.library.Library:
    """Declare what a CUDA build of torchvision looks for at import; kept, since it would be undone."""
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]
    return library
