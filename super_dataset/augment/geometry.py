"""Random resized crops and flips of a batch. Random numbers depend only on seed, epoch and sample.

The CPU and device versions filter like Pillow's bilinear resize with a box: antialiased, first along rows,
then along columns. Both round to integer grey levels after each step, so results differ only by rounding.

The random numbers come from the counter-based generator Philox4x32-10: Salmon, Moraes, Dror and Shaw,
"Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import interpolate

from superdl.super_wire.ids import ID_BYTES, digest128

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TRIES = 10
# Rounds halves up like Pillow, even if float32 falls short.
_HALF_UP = 0.5 + 2**-12
_DRAWS = 2 * _TRIES + 2  # area and aspect for each try; top and left


def random_boxes(
    draws: BatchRandom,
    heights: NDArray[np.int64],
    widths: NDArray[np.int64],
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> NDArray[np.int64]:
    """Draw crop boxes like torchvision's RandomResizedCrop. Returns int64 pixels of shape (4, samples).

    The rows are top, left, height and width. A box's share of the image area is uniform in ``scale``, and the
    logarithm of its aspect ratio is uniform between the logarithms of ``ratio``. ``heights`` and ``widths``
    are the sizes of the images in pixels, of shape (samples,).
    """
    bits = draws.bits("crop", _DRAWS)
    area_draws, aspect_draws = unit_interval(bits[:_TRIES]), unit_interval(bits[_TRIES : 2 * _TRIES])
    areas = heights * widths * (scale[0] + (scale[1] - scale[0]) * area_draws)
    log_low, log_high = math.log(ratio[0]), math.log(ratio[1])
    aspects = np.exp(log_low + (log_high - log_low) * aspect_draws)
    tried_widths = np.rint(np.sqrt(areas * aspects)).astype(np.int64)
    tried_heights = np.rint(np.sqrt(areas / aspects)).astype(np.int64)
    fits = (tried_widths > 0) & (tried_widths <= widths) & (tried_heights > 0) & (tried_heights <= heights)
    # argmax finds the first try that fits. If none fits, use the largest central box.
    first, every = fits.argmax(axis=0), np.arange(len(draws))
    fitted = fits[first, every]
    central_heights, central_widths = _central(heights, widths, ratio)
    height = np.where(fitted, tried_heights[first, every], central_heights)
    width = np.where(fitted, tried_widths[first, every], central_widths)
    top = np.where(fitted, below(bits[-2], heights - height + 1), (heights - height) // 2)
    left = np.where(fitted, below(bits[-1], widths - width + 1), (widths - width) // 2)
    return np.stack([top, left, height, width])


def _central(
    heights: NDArray[np.int64], widths: NDArray[np.int64], ratio: tuple[float, float]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    aspects = widths / heights
    narrow = np.maximum(np.rint(widths / ratio[0]), 1).astype(np.int64)
    wide = np.maximum(np.rint(heights * ratio[1]), 1).astype(np.int64)
    return np.where(aspects < ratio[0], narrow, heights), np.where(aspects > ratio[1], wide, widths)


def crop_resize(image: torch.Tensor, box: tuple[int, int, int, int], size: tuple[int, int]) -> torch.Tensor:
    """Crop a uint8 image (channels, height, width) to a box (top, left, height, width) and resize it.

    Returns uint8 of shape (1, channels, height, width).
    """
    top, left, height, width = box
    # Slice as (height, width, channels), whose strides are channels_last, so that the kernel is fast.
    part = image.movedim(0, -1)[None, top : top + height, left : left + width].movedim(-1, 1)
    if (height, width) == size:
        return part
    # One image at a time, since a batched grid_sample is ten times slower on the CPU and not antialiased.
    return interpolate(part, size=size, mode="bilinear", antialias=True)


def crop_resize_by_products(
    images: torch.Tensor, sides: torch.Tensor, flips: torch.Tensor, size: tuple[int, int]
) -> torch.Tensor:
    """Crop and resize each image with two matrix products, and flip those marked in ``flips``.

    Returns integer-valued float32 from 0 to 255.

    Args:
        images: integer-valued float32 of shape (samples, channels, height, width).
        sides: top, left, height and width of the boxes, of shape (4, samples), on the images' device.
        flips: bool of shape (samples,), on the images' device.
        size: height and width of the results.
    """
    samples, channels, height, width = images.shape
    top, left, box_height, box_width = sides.to(torch.float32)
    across = _weights(left, box_width, width, size[1])
    across = torch.where(flips[:, None, None], across.flip(1), across)
    down = _weights(top, box_height, height, size[0])
    rows = torch.bmm(images.reshape(samples, channels * height, width), across.transpose(1, 2))
    rows = rows.add_(_HALF_UP).floor_().view(samples, channels, height, size[1])
    return torch.matmul(down[:, None], rows).add_(_HALF_UP).floor_().clamp_(0, 255)


def _weights(start: torch.Tensor, length: torch.Tensor, source: int, target: int) -> torch.Tensor:
    """Return the weight of each source pixel in each target pixel, as float32 (samples, target, source)."""
    start, length = start[:, None, None], length[:, None, None]
    step = length / target
    centres = (torch.arange(target, device=start.device)[:, None] + 0.5) * step
    offsets = torch.arange(source, device=start.device) - start
    # A triangle around the target pixel's centre, as wide as a source pixel or, if that is larger, as a
    # target pixel. It is cut off at the box's edges and sums to 1.
    weights = (1 - ((offsets + 0.5 - centres) / step.clamp(min=1)).abs()).clamp_(min=0)
    weights.mul_((offsets >= 0) & (offsets < length))
    return weights.div_(weights.sum(-1, keepdim=True))


_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_WORDS = 4  # words of 32 bits per block
_KEY_BYTES = 8  # Philox's key: two words


def philox4x32(counter: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return random 32-bit words of shape (4, ...) for counters (4, ...) and keys (2, ...)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1 = (second >> _HALF) ^ c1 ^ k0, second & _LOW
        c2, c3 = (first >> _HALF) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([c0, c1, c2, c3])


class BatchRandom:
    """Random numbers for a batch's samples, identified by 16-byte ids, in one epoch."""

    def __init__(self, sample_ids: bytes, *, seed: int, epoch: int) -> None:
        # The counter is the sample id, whose 16 bytes fit exactly.
        words = np.frombuffer(sample_ids, dtype="<u4").reshape(-1, ID_BYTES // 4)
        self._counter = np.ascontiguousarray(words.T).astype(np.uint64)[:, None, :]
        self._seed = seed.to_bytes(8, "little", signed=True)
        self._epoch = epoch.to_bytes(8, "little")

    def __len__(self) -> int:
        return int(self._counter.shape[2])

    def bits(self, purpose: str, count: int) -> NDArray[np.uint64]:
        """Return ``count`` random 32-bit numbers per sample, as uint64 of shape (count, samples)."""
        # Each purpose has its own key, so that enabling one operation does not change the others.
        keys = [
            digest128(purpose.encode(), self._seed, self._epoch, block.to_bytes(8, "little"))[:_KEY_BYTES]
            for block in range(-(-count // _WORDS))
        ]
        key = np.frombuffer(b"".join(keys), dtype="<u4").reshape(-1, 2).T.astype(np.uint64)[:, :, None]
        words = philox4x32(self._counter, key)  # (words, blocks, samples)
        return words.transpose(1, 0, 2).reshape(-1, len(self))[:count]


def unit_interval(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert random 32-bit numbers to floats in [0, 1)."""
    return bits.astype(np.float64) * 2.0**-32


def below(bits: NDArray[np.uint64], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Convert random 32-bit numbers to integers in [0, ``bounds``), with a bias below ``bounds * 2**-32``."""
    return ((bits * bounds.astype(np.uint64)) >> _HALF).astype(np.int64)
