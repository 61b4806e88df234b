"""Colour jitter for batches, using torchvision's formulas."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
import torch

from superdl.super_dataset.augment.geometry import below, unit_interval

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from superdl.super_dataset.augment.geometry import BatchRandom

# The operations, by the names of ColorJitter's arguments.
JITTERS = ("brightness", "contrast", "saturation", "hue")

_GREY = (0.299, 0.587, 0.114)
_WHITE = 255.0
# As in torchvision, the operations run in a separate random order for each sample.
_ORDERS = np.array(list(permutations(range(len(JITTERS)))), dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class JitterValues:
    """The random jitter values of a batch, on the CPU."""

    factors: NDArray[np.float32]  # (4, samples)
    orders: NDArray[np.int64]  # (samples, 4), indices into JITTERS

    def only(self, first: int, end: int) -> JitterValues:
        """Return the values for samples ``first`` to ``end - 1``."""
        return JitterValues(self.factors[:, first:end], self.orders[first:end])


class Jitter:
    """Random colour jitter. ``ranges`` holds a (low, high) pair or ``None`` for each of :data:`JITTERS`."""

    def __init__(self, ranges: tuple[tuple[float, float] | None, ...]) -> None:
        self._ranges = ranges

    def __bool__(self) -> bool:
        return any(self._ranges)

    def draw(self, draws: BatchRandom) -> JitterValues:
        """Draw uniform factors within their ranges and a random order of operations for each sample."""
        bits = draws.bits("jitter", len(JITTERS) + 1)
        spans = np.array([span or (0.0, 0.0) for span in self._ranges])[:, :, None]
        factors = spans[:, 0] + (spans[:, 1] - spans[:, 0]) * unit_interval(bits[:-1])
        return JitterValues(
            factors.astype(np.float32), _ORDERS[below(bits[-1], np.array(len(_ORDERS), dtype=np.int64))]
        )

    def apply(self, images: torch.Tensor, drawn: JitterValues) -> None:
        """Apply the jitter in place to float32 images of shape (samples, 3, height, width), from 0 to 255."""
        factors = torch.from_numpy(drawn.factors).to(images.device)[:, :, None, None, None]
        # Pixels stay float between operations. torchvision rounds to uint8 after each operation.
        for turn in drawn.orders.T:
            for number, change in enumerate(_CHANGES):
                chosen = np.flatnonzero(turn == number)
                if self._ranges[number] is None or not len(chosen):
                    continue
                if len(chosen) == len(images):
                    change(images, factors[number])
                    continue
                rows = torch.from_numpy(chosen).to(images.device)
                # Indexing by a tensor copies, so write the changed rows back.
                chosen_images = images[rows]
                change(chosen_images, factors[number, rows])
                images[rows] = chosen_images


def _brightness(images: torch.Tensor, factors: torch.Tensor) -> None:
    images.mul_(factors).clamp_(0, _WHITE)


def _contrast(images: torch.Tensor, factors: torch.Tensor) -> None:
    means = _grey(images.mean(dim=(2, 3), keepdim=True))
    images.mul_(factors).add_(means.mul_(1 - factors)).clamp_(0, _WHITE)


def _saturation(images: torch.Tensor, factors: torch.Tensor) -> None:
    grey = _grey(images)
    images.mul_(factors).add_(grey.mul_(1 - factors)).clamp_(0, _WHITE)


def _hue(images: torch.Tensor, factors: torch.Tensor) -> None:
    """Shift the HSV hue, where 1 is a full circle. Value and chroma stay the same."""
    red, green, blue = torch.split(images, 1, dim=1)
    value, chroma = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    chroma = torch.sub(value, chroma, out=chroma)
    # The hue in sixths of the circle: by the largest channel, and the difference of the other two.
    scale = chroma.clamp(min=1e-6).reciprocal_()
    if_red = torch.sub(green, blue).mul_(scale)
    if_green = torch.sub(blue, red).mul_(scale).add_(2)
    if_blue = torch.sub(red, green).mul_(scale).add_(4)
    sixths = torch.where(value == red, if_red, torch.where(value == green, if_green, if_blue))
    sixths.add_(factors * 6)
    for channel, shift in zip((red, green, blue), (5, 3, 1), strict=True):
        turned = torch.remainder(sixths + shift, 6)
        share = torch.minimum(turned, 4 - turned).clamp_(0, 1)
        channel.copy_(torch.addcmul(value, chroma, share, value=-1))


def _grey(images: torch.Tensor) -> torch.Tensor:
    red, green, blue = torch.split(images, 1, dim=1)
    return (red * _GREY[0]).add_(green, alpha=_GREY[1]).add_(blue, alpha=_GREY[2])


_CHANGES: tuple[Callable[[torch.Tensor, torch.Tensor], None], ...] = (
    _brightness,
    _contrast,
    _saturation,
    _hue,
)
