"""``Augment``: random augmentation of decoded samples, after the cache, in the worker or on the device.

Whole batches go in, uint8 as the cache holds them; random resized crop, horizontal flip, colour jitter and
normalisation are done in this order. This file checks, allocates and orders the work; draws, geometry and
colour have files of their own (``random_numbers``, ``geometry``, ``color``).
"""

from __future__ import annotations

import math
import reprlib
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from superdl.super_dataset.augment.arguments import (
    checked_dtype,
    checked_seed,
    jitter_range,
    moments,
    pair,
    probability,
    sides,
)
from superdl.super_dataset.augment.color import JITTERS, Jitter, JitterValues
from superdl.super_dataset.augment.geometry import Boxes, crop_resize, crop_resize_by_products, random_boxes
from superdl.super_dataset.augment.random_numbers import BatchRandom
from superdl.super_dataset.memory import memory_here
from superdl.super_dataset.reading import BatchInfo
from superdl.super_wire.errors import UsageError
from superdl.super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


__all__ = ["Augment"]

Images: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"

_NDIM = 4  # of a batch: samples, channels, height, width
_CHANNELS = frozenset({1, 3, 4})
_RGB = 3
_WHITE = 255.0
_DEVICE_BYTES = 256 * 2**20
"""Bound on the float pixels of the samples that are worked on at once on a device."""


class Augment:
    """Random augmentation that is fresh in each epoch and the same wherever it is repeated.

    What is drawn for a sample depends on (``seed``, epoch, sample id) alone: not on the batch it comes in, on
    rank, worker or job, nor on torch's generators; a run that is resumed draws the same. Names and meaning
    are those of torchvision's RandomResizedCrop, RandomHorizontalFlip, ColorJitter and Normalize, in this
    order; docs/augmentation.md tells the differences.

    In the worker: ``SuperDataset(..., transform=Augment(224))``. On the device, in the training loop:
    ``SuperDataset(..., return_info=True)`` and ``augment.images(images.to(device), info)``. Both give the
    same images but for rounding: a grey level here and there, a few where colour jitter multiplies it.

    Args:
        size: side, or (height, width), of the random resized crop in pixels; ``None``: no crop.
        scale: the crop's share of the area, (low, high).
        ratio: the crop's width to height, (low, high).
        flip: probability of a horizontal flip.
        brightness: factor from ``1 - brightness`` to ``1 + brightness``, or (low, high); 0: off.
        contrast: the same.
        saturation: the same.
        hue: shift from ``-hue`` to ``hue``, at most 0.5, half the circle; or (low, high); 0: off.
        mean: for each channel, of pixels from 0 to 1, with ``std``; ``None``: not normalised.
        std: for each channel.
        dtype: of the result: float32, bfloat16 or float16 (pixels from 0 to 1 unless normalised), or uint8.
        seed: the augment seed, which jobs share or not as they wish.

    Raises:
        ConfigError: an argument is wrong.
    """

    def __init__(
        self,
        size: int | tuple[int, int] | None = None,
        *,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        brightness: float | tuple[float, float] = 0.0,
        contrast: float | tuple[float, float] = 0.0,
        saturation: float | tuple[float, float] = 0.0,
        hue: float | tuple[float, float] = 0.0,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        self._size = sides(size)
        self._scale = pair("scale", scale, high=1.0)
        self._ratio = pair("ratio", ratio, high=100.0)
        self._flip = probability("flip", flip)
        given = zip(JITTERS, (brightness, contrast, saturation, hue), strict=True)
        self._jitter = Jitter(tuple(jitter_range(name, value) for name, value in given))
        self._moments = moments(mean, std)
        self._dtype = checked_dtype(dtype, normalised=self._moments is not None)
        self._seed = checked_seed(seed)

    def __call__(self, images: Images, labels: Any, info: BatchInfo) -> tuple[torch.Tensor, Any]:
        """A ``transform`` of SuperDataset: (augmented images, labels as they came)."""
        return self.images(images, info), labels

    def images(self, images: Images, info: BatchInfo) -> torch.Tensor:
        """Augmented images, on the device on which they come.

        Args:
            images: uint8 of shape (samples, channels, height, width), or, with ``size``, a list of
                (channels, height, width) of any heights and widths.
            info: of the same batch.

        Returns:
            ``dtype``, of shape (samples, channels, height, width), channels_last. On the CPU it lies in
            memory as batches are received into: used again, and shared in a DataLoader worker, so that it is
            not copied on its way out.

        Raises:
            UsageError: these are no images, not of one size and no ``size`` is given, of a number of
                channels that ``mean`` or the colour jitter does not fit, or not those of ``info``.
        """
        channels, heights, widths = self._checked(images, info)
        size = self._size or (int(heights[0]), int(widths[0]))
        draws = BatchRandom(info.sample_ids, seed=self._seed, epoch=info.epoch)
        if self._size is None:
            nothing = np.zeros_like(heights)
            boxes = Boxes(nothing, nothing, heights, widths)
        else:
            boxes = random_boxes(draws, heights, widths, scale=self._scale, ratio=self._ratio)
        flips = draws.uniform("flip", 1)[0] < self._flip
        jitter = self._jitter.draw(draws) if self._jitter else None
        device = images[0].device
        made = _empty((len(images), *size, channels), self._dtype, device)
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            if device.type == "cpu":
                self._on_host(images, boxes, flips, jitter, made)
            else:
                self._on_device(images, boxes, flips, jitter, made)
        return made.movedim(-1, 1)

    def _on_host(
        self,
        images: Images,
        boxes: Boxes,
        flips: NDArray[np.bool_],
        jitter: JitterValues | None,
        made: torch.Tensor,
    ) -> None:
        """One sample after the other, each while it is in the processor's cache."""
        height, width, channels = made.shape[1:]
        factors, offsets = (column.repeat(width) for column in self._affine(channels))
        scratch = torch.empty(height, width * channels)
        places = boxes.sides(0, len(made)).T.tolist()
        for at, (image, target, place) in enumerate(zip(images, made, places, strict=True)):
            pixels = crop_resize(image, place, (height, width))
            if flips[at]:
                pixels = pixels.flip(-1)
            if jitter is not None:
                planes = pixels.to(torch.float32, memory_format=torch.contiguous_format)
                self._jitter.apply(planes, jitter.only(at, at + 1))
                self._deliver(planes, target[None])
            elif self._dtype == torch.uint8:
                target.copy_(pixels[0].movedim(0, -1))
            else:  # rows of (width x channels) numbers: that is how they lie, and what vector units like
                scratch.view(height, width, channels).copy_(pixels[0].movedim(0, -1))
                target.view(height, -1).copy_(scratch.mul_(factors).add_(offsets))

    def _on_device(
        self,
        images: Images,
        boxes: Boxes,
        flips: NDArray[np.bool_],
        jitter: JitterValues | None,
        made: torch.Tensor,
    ) -> None:
        """As many samples at once as the bound on memory allows; of a list, one."""
        height, width = made.shape[1:3]
        first = 0
        while first < len(made):
            image = images[first]
            pixels = image.numel() + image.shape[0] * height * width * 2
            at_once = max(1, _DEVICE_BYTES // (4 * pixels)) if isinstance(images, torch.Tensor) else 1
            end = min(first + at_once, len(made))
            part = images[first:end] if isinstance(images, torch.Tensor) else image[None]
            planes = part.to(torch.float32, memory_format=torch.contiguous_format)
            mirrored = torch.from_numpy(flips[first:end]).to(made.device)
            if self._size is None:
                planes = torch.where(mirrored[:, None, None, None], planes.flip(-1), planes)
            else:
                box_sides = torch.from_numpy(boxes.sides(first, end)).to(made.device)
                planes = crop_resize_by_products(planes, box_sides, mirrored, (height, width))
            if jitter is not None:
                self._jitter.apply(planes, jitter.only(first, end))
            self._deliver(planes, made[first:end])
            first = end

    def _deliver(self, planes: torch.Tensor, target: torch.Tensor) -> None:
        """Scale, normalise or round (samples, channels, height, width) into (samples, height, width, ...)."""
        if self._dtype == torch.uint8:
            planes.round_()
        else:
            factors, offsets = (column.to(planes.device) for column in self._affine(planes.shape[1]))
            planes.mul_(factors[:, None, None]).add_(offsets[:, None, None])
        target.copy_(planes.movedim(1, -1))

    def _affine(self, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Factors and offsets, float32 of shape (channels,), that take pixels from 0 to 255 to the result."""
        means, stds = self._moments or ((0.0,) * channels, (1.0,) * channels)
        factors = [1 / (_WHITE * std) for std in stds]
        return torch.tensor(factors), torch.tensor([-m / std for m, std in zip(means, stds, strict=True)])

    def _checked(self, images: Images, info: BatchInfo) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """Number of channels, heights and widths of images that can be augmented."""
        if isinstance(images, torch.Tensor):  # one look at a batch, not one at each sample
            shapes, dtypes = [tuple(images.shape[1:])] * len(images), {images.dtype}
        else:
            shapes, dtypes = [tuple(image.shape) for image in images], {image.dtype for image in images}
        channels = {shape[0] if len(shape) == _NDIM - 1 else 0 for shape in shapes}
        if len(channels) != 1 or not channels <= _CHANNELS or dtypes != {torch.uint8}:
            msg = (
                "Augment takes images, uint8 of shape (samples, channels, height, width) with 1, 3 or 4 "
                f"channels, as SuperDataset delivers them; not {_described(images)}"
            )
            raise UsageError(msg)
        if any(0 in shape for shape in shapes):
            raise UsageError(f"Augment takes images that have pixels; not {_described(images)}")
        if self._size is None and len(set(shapes)) > 1:
            msg = (
                "these images differ in height or width, and an Augment without size does not change it: "
                "give it a size, or the recipe a crop"
            )
            raise UsageError(msg)
        if not isinstance(info, BatchInfo) or len(info.sample_ids) != len(images) * ID_BYTES:
            given = (
                f"that of {len(info.sample_ids) // ID_BYTES}" if isinstance(info, BatchInfo) else repr(info)
            )
            msg = f"{len(images)} images need the BatchInfo of the same batch (return_info=True); not {given}"
            raise UsageError(msg)
        number = int(channels.pop())
        if self._jitter and number != _RGB:
            raise UsageError(f"colour jitter is for images of 3 channels; these have {number}")
        if self._moments and number != len(self._moments[0]):
            msg = f"mean and std are of {len(self._moments[0])} channels; these images have {number}"
            raise UsageError(msg)
        heights, widths = np.array([shape[1:] for shape in shapes], dtype=np.int64).T
        return number, heights, widths


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    # Where batches are received: used again, shared in a worker, pinned on the way to a device.
    flat = memory_here().take(math.prod(shape) * dtype.itemsize)
    return flat.view(dtype).view(shape)


def _described(images: Images) -> str:
    if isinstance(images, torch.Tensor):
        return f"{images.dtype} of shape {tuple(images.shape)}"
    kinds = sorted({f"{image.dtype} of shape {tuple(image.shape)}" for image in images})
    return f"a list of {len(images)}: {reprlib.repr(kinds)}"
