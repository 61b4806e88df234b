"""Imports torchvision where it is installed, also a CUDA build of it beside a CPU build of torch.

It is no dependency: benchmarks and tests compare with it where it is there, and leave it out where not
(``pip install --no-deps torchvision``).
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from superdl.experiments.torchvision_operators import declare_operators

__all__ = ["torchvision_transforms"]


@functools.cache
def torchvision_transforms() -> Any:
    """``torchvision.transforms``, or ``None`` if torchvision is not installed."""
    declare_operators()
    try:
        return importlib.import_module("torchvision.transforms")
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        return None
