"""Lets torchvision be imported beside a torch that was built without CUDA.

A torchvision that was built for CUDA asks torch for its own operators while it is imported, and fails where
its library did not load. Declared beforehand, they are found; nobody here calls them.
"""

from __future__ import annotations

import torch

__all__ = ["declare_operators"]

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_LIBRARIES: list[torch.library.Library] = []  # an operator lasts as long as the library that declared it


def declare_operators() -> None:
    """Declare what torchvision asks for, unless this torch has CUDA and torchvision its own."""
    if _LIBRARIES or torch.version.cuda is not None:
        return
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]  # torch's own
    for schema in _SCHEMAS:
        library.define(schema)  # type: ignore[no-untyped-call]  # the same
    _LIBRARIES.append(library)
