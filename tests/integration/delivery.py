"""What integration tests collect and compare: which samples came, in which order, with which pixels."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


def pixels_of(images: torch.Tensor) -> list[bytes]:
    """Each image of a batch [n, 3, h, w] as the bytes of its rows of RGB pixels."""
    return [np.ascontiguousarray(image).tobytes() for image in images.permute(0, 2, 3, 1).numpy()]


def collect(loader: Iterable[Any]) -> list[tuple[bytes, int]]:
    """One epoch: (pixels, label) of every sample, in the order of delivery, copied."""
    delivered = []
    for images, labels, *_ in loader:
        delivered += list(zip(pixels_of(images), labels.tolist(), strict=True))
    return delivered


def assert_exactly_once(delivered: list[tuple[bytes, int]], expected: dict[bytes, int]) -> None:
    """Every expected image came once, with its label and its exact pixels, and nothing else did."""
    assert Counter(pixels for pixels, _ in delivered) == Counter(dict.fromkeys(expected, 1))
    assert all(expected[pixels] == label for pixels, label in delivered)
