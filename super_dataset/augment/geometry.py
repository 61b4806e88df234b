"""Random resized crops and flips of a batch: the choice of boxes, and resizing them to the target size.

Two implementations give the same pixels. On the CPU, torch's own uint8 kernel resizes one sample after the
other; on a device, a batch is two matrix products with a weight matrix per sample and axis. Both filter like
Pillow's bilinear resize with a box, antialiased, first along rows, then along columns, and round to whole
grey levels after each, so that they differ only by rounding. A batched ``grid_sample`` takes ten times as
long on the CPU and is not antialiased.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.functional import interpolate

from superdl.super_dataset.augment.random_numbers import below, unit_interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.super_dataset.augment.random_numbers import BatchRandom

__all__ = ["crop_resize", "crop_resize_by_products", "random_boxes"]

_TRIES = 10
_HALF_UP = 0.5 + 2**-12
"""Added to round halves up, as Pillow does, even where float32 falls short."""
_DRAWS = 2 * _TRIES + 2  # area and aspect for each try; top and left


def random_boxes(
    draws: BatchRandom,
    heights: NDArray[np.int64],
    widths: NDArray[np.int64],
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> NDArray[np.int64]:
    """Choose a random box of each sample as torchvision's RandomResizedCrop does: int64 of shape (4,
    samples), top, left, height and width in whole pixels.

    Its share of the area is uniform in ``scale``; the logarithm of its aspect ratio (width to height) is
    uniform in that of ``ratio``. If ten tries do not fit into the image, the box is the largest central part
    with an allowed ratio. ``heights`` and ``widths`` of the samples are in pixels, of shape (samples,).
    """
    bits = draws.bits("crop", _DRAWS)
    area_draws, aspect_draws = unit_interval(bits[:_TRIES]), unit_interval(bits[_TRIES : 2 * _TRIES])
    areas = heights * widths * (scale[0] + (scale[1] - scale[0]) * area_draws)
    log_low, log_high = math.log(ratio[0]), math.log(ratio[1])
    aspects = np.exp(log_low + (log_high - log_low) * aspect_draws)
    tried_widths = np.rint(np.sqrt(areas * aspects)).astype(np.int64)
    tried_heights = np.rint(np.sqrt(areas / aspects)).astype(np.int64)
    fits = (tried_widths > 0) & (tried_widths <= widths) & (tried_heights > 0) & (tried_heights <= heights)
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
    """Return heights and widths of the largest parts with an allowed ratio."""
    aspects = widths / heights
    narrow = np.maximum(np.rint(widths / ratio[0]), 1).astype(np.int64)
    wide = np.maximum(np.rint(heights * ratio[1]), 1).astype(np.int64)
    return np.where(aspects < ratio[0], narrow, heights), np.where(aspects > ratio[1], wide, widths)


def crop_resize(image: torch.Tensor, box: tuple[int, int, int, int], size: tuple[int, int]) -> torch.Tensor:
    """Resize a box of one image, using torch's uint8 kernel.

    Args:
        image: uint8 of shape (channels, height, width).
        box: top, left, height, width.
        size: height and width of the result.

    Returns:
        uint8 of shape (1, channels, height, width).
    """
    top, left, height, width = box
    # By (height, width, channels): strides are then channels_last, the kernel fast.
    part = image.movedim(0, -1)[None, top : top + height, left : left + width].movedim(-1, 1)
    if (height, width) == size:
        return part
    return interpolate(part, size=size, mode="bilinear", antialias=True)


def crop_resize_by_products(
    images: torch.Tensor, sides: torch.Tensor, flips: torch.Tensor, size: tuple[int, int]
) -> torch.Tensor:
    """Resize a box of each image, mirrored where ``flips`` is set, with two matrix products.

    Args:
        images: float32 of shape (samples, channels, height, width), whole numbers.
        sides: of the boxes, shape (4, samples): top, left, height, width; on the images' device.
        flips: bool of shape (samples,), on the images' device.
        size: height and width of the results.

    Returns:
        float32 of shape (samples, channels, *size), whole numbers from 0 to 255.
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
    """Return the weight of each of ``source`` pixels in each of ``target``: float32, (samples, target,
    source).

    The filter is a triangle around the target pixel's centre, as wide as a source pixel or, when shrinking,
    as a target pixel; cut off at the box's edges; summing to 1.
    """
    start, length = start[:, None, None], length[:, None, None]
    step = length / target
    centres = (torch.arange(target, device=start.device)[:, None] + 0.5) * step
    places = torch.arange(source, device=start.device) - start
    weights = (1 - ((places + 0.5 - centres) / step.clamp(min=1)).abs()).clamp_(min=0)
    weights.mul_((places >= 0) & (places < length))
    return weights.div_(weights.sum(-1, keepdim=True))
