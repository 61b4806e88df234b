"""``Augment``: random augmentation of decoded samples, after the cache."""

from __future__ import annotations

import math
import reprlib
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from superdl.super_dataset.augment.color import JITTERS, Jitter, JitterValues
from superdl.super_dataset.augment.geometry import (
    BatchRandom,
    crop_resize,
    crop_resize_by_products,
    random_boxes,
    unit_interval,
)
from superdl.super_dataset.memory.batch_memory import empty_batch
from superdl.super_dataset.reading.delivery import BatchInfo
from superdl.super_wire.errors import ConfigError, UsageError
from superdl.super_wire.ids import ID_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


Images: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"

_DTYPES = (torch.uint8, torch.float32, torch.bfloat16, torch.float16)
_MAX_SIDE = 16384
_INT64 = 2**63
_PAIR = 2
_NDIM = 4  # dimensions of a batch: samples, channels, height, width
_CHANNELS = frozenset({1, 3, 4})
_RGB = 3
_WHITE = 255.0
# Memory limit for float pixels processed at once on a device.
_DEVICE_BYTES = 256 * 2**20


class Augment:
    """Random augmentation that differs in every epoch and is reproducible everywhere.

    A sample's random values depend only on ``seed``, epoch and sample id, not on its batch, rank, worker or
    job, nor on torch's generators. A resumed run draws the same values. The arguments have the same meaning
    as in torchvision's RandomResizedCrop, RandomHorizontalFlip, ColorJitter and Normalize, which are applied
    in that order. docs/data.md lists the differences.

    To augment in workers, pass ``SuperDataset(..., transform=Augment(224))``. To augment on the device, pass
    ``SuperDataset(..., return_info=True)`` and call ``augment.images(images.to(device), info)`` in the
    training loop. Both ways produce the same images, except for rounding.

    >>> dataset = SuperDataset("images", Recipe.image(resize=32, crop=32), transform=Augment(24, seed=1))
    >>> images, labels = next(iter(SuperLoader(dataset, SuperSampler(dataset, batch_size=4, shuffle=True))))
    >>> images.shape, images.dtype
    (torch.Size([4, 3, 24, 24]), torch.float32)

    Args:
        size: side, or (height, width), of the random resized crop in pixels. ``None`` disables cropping.
        scale: range of the crop's share of the image area.
        ratio: range of the crop's aspect ratio (width / height).
        flip: probability of a horizontal flip.
        brightness: range of the factor as (low, high), or a number for ``1 - brightness`` to
            ``1 + brightness``. 0 disables it.
        contrast: the same for contrast.
        saturation: the same for saturation.
        hue: range of the shift as (low, high), or a number for ``-hue`` to ``hue`` (at most 0.5, which is
            half the circle). 0 disables it.
        mean: mean per channel, for pixels from 0 to 1. Requires ``std``. ``None`` disables normalisation.
        std: standard deviation per channel.
        dtype: float32, bfloat16 or float16 (with pixels from 0 to 1 unless normalised), or uint8.
        seed: seed of the augmentation. Several jobs may share it.

    Raises:
        ConfigError: an argument is invalid.
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
        self._size = _sides(size)
        self._scale = _pair("scale", scale, high=1.0)
        self._ratio = _pair("ratio", ratio, high=100.0)
        if not _are_numbers(flip) or not 0 <= flip <= 1:
            raise ConfigError(f"flip must be a probability from 0 to 1, not {flip!r}")
        self._flip = flip
        given = zip(JITTERS, (brightness, contrast, saturation, hue), strict=True)
        self._jitter = Jitter(tuple(_jitter_range(name, value) for name, value in given))
        self._moments = _moments(mean, std)
        if not isinstance(dtype, torch.dtype) or dtype not in _DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(map(str, _DTYPES))}, not {dtype!r}")
        if self._moments is not None and dtype == torch.uint8:
            raise ConfigError(
                "uint8 images cannot be normalised: remove mean and std, or use a floating-point dtype such "
                "as torch.float32"
            )
        self._dtype = dtype
        if isinstance(seed, bool) or not isinstance(seed, int) or not -_INT64 <= seed < _INT64:
            raise ConfigError(f"seed must be a signed 64-bit integer, not {seed!r}")
        self._seed = seed

    def __call__(self, images: Images, labels: Any, info: BatchInfo) -> tuple[torch.Tensor, Any]:
        """Return augmented images and the unchanged labels, to be used as a SuperDataset's ``transform``."""
        return self.images(images, info), labels

    def images(self, images: Images, info: BatchInfo) -> torch.Tensor:
        """Return the augmented images, on the same device as ``images``.

        Args:
            images: uint8 of shape (samples, channels, height, width) or, if ``size`` is set, a list of images
                (channels, height, width) of any sizes.
            info: the ``BatchInfo`` of the same batch.

        Returns:
            A tensor of ``dtype`` and shape (samples, channels, height, width), channels_last. On the CPU, it
            is allocated in the memory for batches.

        Raises:
            UsageError: the samples are not images; their sizes differ and ``size`` is not set; ``mean`` or
                the jitter requires a different number of channels; or ``info`` belongs to another batch.
        """
        channels, heights, widths = self._checked(images, info)
        size = self._size or (int(heights[0]), int(widths[0]))
        draws = BatchRandom(info.draw_ids, seed=self._seed, epoch=info.epoch)
        if self._size is None:
            nothing = np.zeros_like(heights)
            boxes = np.stack([nothing, nothing, heights, widths])
        else:
            boxes = random_boxes(draws, heights, widths, scale=self._scale, ratio=self._ratio)
        flips = unit_interval(draws.bits("flip", 1)[0]) < self._flip
        jitter = self._jitter.draw(draws) if self._jitter else None
        device = images[0].device
        output = empty_batch((len(images), *size, channels), self._dtype, device)
        # Under the user's autocast, the products would run in half precision.
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            if device.type == "cpu":
                self._on_host(images, boxes, flips, jitter, output)
            else:
                self._on_device(images, boxes, flips, jitter, output)
        return output.movedim(-1, 1)

    def _on_host(
        self,
        images: Images,
        boxes: NDArray[np.int64],
        flips: NDArray[np.bool_],
        jitter: JitterValues | None,
        output: torch.Tensor,
    ) -> None:
        height, width, channels = output.shape[1:]
        factors, offsets = (column.repeat(width) for column in self._affine(channels))
        scratch = torch.empty(height, width * channels)
        # One sample at a time, while it is in the CPU cache.
        for at, (image, target, box) in enumerate(zip(images, output, boxes.T.tolist(), strict=True)):
            pixels = crop_resize(image, box, (height, width))
            if flips[at]:
                pixels = pixels.flip(-1)
            if jitter is not None:
                planes = pixels.to(torch.float32, memory_format=torch.contiguous_format)
                self._jitter.apply(planes, jitter.only(at, at + 1))
                self._deliver(planes, target[None])
            elif self._dtype == torch.uint8:
                target.copy_(pixels[0].movedim(0, -1))
            else:  # as rows of (width x channels) numbers, which vector units process well
                scratch.view(height, width, channels).copy_(pixels[0].movedim(0, -1))
                target.view(height, -1).copy_(scratch.mul_(factors).add_(offsets))

    def _on_device(
        self,
        images: Images,
        boxes: NDArray[np.int64],
        flips: NDArray[np.bool_],
        jitter: JitterValues | None,
        output: torch.Tensor,
    ) -> None:
        height, width = output.shape[1:3]
        first = 0
        while first < len(output):
            image = images[first]
            # As many samples at once as memory allows, but one at a time from a list, since sizes differ.
            pixels = image.numel() + image.shape[0] * height * width * 2
            at_once = max(1, _DEVICE_BYTES // (4 * pixels)) if isinstance(images, torch.Tensor) else 1
            end = min(first + at_once, len(output))
            part = images[first:end] if isinstance(images, torch.Tensor) else image[None]
            planes = part.to(torch.float32, memory_format=torch.contiguous_format)
            mirrored = torch.from_numpy(flips[first:end]).to(output.device)
            if self._size is None:
                planes = torch.where(mirrored[:, None, None, None], planes.flip(-1), planes)
            else:
                sides = torch.from_numpy(boxes[:, first:end]).to(output.device)
                planes = crop_resize_by_products(planes, sides, mirrored, (height, width))
            if jitter is not None:
                self._jitter.apply(planes, jitter.only(first, end))
            self._deliver(planes, output[first:end])
            first = end

    def _deliver(self, planes: torch.Tensor, target: torch.Tensor) -> None:
        """Write scaled, normalised or rounded images to ``target``, (samples, height, width, channels)."""
        if self._dtype == torch.uint8:
            planes.round_()
        else:
            factors, offsets = (column.to(planes.device) for column in self._affine(planes.shape[1]))
            planes.mul_(factors[:, None, None]).add_(offsets[:, None, None])
        target.copy_(planes.movedim(1, -1))

    def _affine(self, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return factors and offsets to normalise pixels from 0 to 255, float32 of shape (channels,)."""
        means, stds = self._moments or ((0.0,) * channels, (1.0,) * channels)
        factors = [1 / (_WHITE * std) for std in stds]
        return torch.tensor(factors), torch.tensor([-m / std for m, std in zip(means, stds, strict=True)])

    def _checked(self, images: Images, info: BatchInfo) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """Check that the images can be augmented, and return their number of channels, heights and widths."""
        given: object = images
        if isinstance(given, dict):
            raise UsageError(
                f"Augment only supports single images, but samples have several arrays ({', '.join(given)}). "
                "Pass SuperDataset a per-sample transform, which gets all of them"
            )
        if isinstance(images, torch.Tensor):
            shapes, dtypes = [tuple(images.shape[1:])] * len(images), {images.dtype}
        else:
            shapes, dtypes = [tuple(image.shape) for image in images], {image.dtype for image in images}
        channels = {shape[0] if len(shape) == _NDIM - 1 else 0 for shape in shapes}
        if len(channels) != 1 or not channels <= _CHANNELS or dtypes != {torch.uint8}:
            raise UsageError(
                "Augment needs images as SuperDataset delivers them, uint8 of shape (samples, channels, "
                f"height, width) with 1, 3 or 4 channels, not {_describe(images)}"
            )
        if any(0 in shape for shape in shapes):
            raise UsageError(f"Augment needs non-empty images, not {_describe(images)}")
        if self._size is None and len(set(shapes)) > 1:
            raise UsageError(
                "these images differ in height or width, and Augment only resizes them if size is set. Set "
                "size, or add a crop to the recipe"
            )
        if not isinstance(info, BatchInfo) or len(info.sample_ids) != len(images) * ID_BYTES:
            given = (
                f"one for {len(info.sample_ids) // ID_BYTES}" if isinstance(info, BatchInfo) else repr(info)
            )
            msg = f"{len(images)} images need the BatchInfo of the same batch (return_info=True), not {given}"
            raise UsageError(msg)
        number = int(channels.pop())
        if self._jitter and number != _RGB:
            raise UsageError(f"colour jitter needs images with 3 channels, but these have {number}")
        if self._moments and number != len(self._moments[0]):
            msg = f"mean and std have {len(self._moments[0])} channels, but these images have {number}"
            raise UsageError(msg)
        heights, widths = np.array([shape[1:] for shape in shapes], dtype=np.int64).T
        return number, heights, widths


def _describe(images: Images) -> str:
    if isinstance(images, torch.Tensor):
        return f"{images.dtype} of shape {tuple(images.shape)}"
    kinds = sorted({f"{image.dtype} of shape {tuple(image.shape)}" for image in images})
    return f"a list of {len(images)}: {reprlib.repr(kinds)}"


def _are_numbers(*values: object) -> bool:
    return all(
        isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    )


def _sides(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    given = tuple(value) if isinstance(value, (list, tuple)) else (value, value)
    whole = all(isinstance(side, int) and not isinstance(side, bool) for side in given)
    if len(given) != _PAIR or not whole or not all(1 <= side <= _MAX_SIDE for side in given):
        raise ConfigError(
            f"size must be a side or (height, width) in whole pixels from 1 to {_MAX_SIDE}, not {value!r}"
        )
    return given


def _pair(name: str, value: Any, *, high: float) -> tuple[float, float]:
    span = tuple(value) if isinstance(value, (list, tuple)) else ()
    if len(span) != _PAIR or not _are_numbers(*span) or not 0 < span[0] <= span[1] <= high:
        raise ConfigError(
            f"{name} must be a pair (low, high) with 0 < low <= high <= {high:g}, not {value!r}"
        )
    return span


def _jitter_range(name: str, value: Any) -> tuple[float, float] | None:
    """Return the range of a colour factor, as in ColorJitter, or ``None`` if it changes nothing."""
    centre, low, high = (0.0, -0.5, 0.5) if name == "hue" else (1.0, 0.0, math.inf)
    span: tuple[float, ...] = tuple(value) if isinstance(value, (list, tuple)) else ()
    if _are_numbers(value) and value >= 0:
        span = (-value, value) if name == "hue" else (max(1 - value, 0.0), 1 + value)
    if len(span) != _PAIR or not _are_numbers(*span) or not low <= span[0] <= span[1] <= high:
        numbers = "from 0 to 0.5" if name == "hue" else "not below 0"
        limits = f"with {low:g} <= low <= high" + (f" <= {high:g}" if math.isfinite(high) else "")
        raise ConfigError(f"{name} must be a number {numbers} or a pair (low, high) {limits}, not {value!r}")
    return None if span == (centre, centre) else (span[0], span[1])


def _moments(mean: Any, std: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Check and return the mean and std of each channel, for pixels from 0 to 1."""
    if mean is None and std is None:
        return None
    means, stds = (tuple(value) if isinstance(value, (list, tuple)) else () for value in (mean, std))
    if not means or len(means) != len(stds) or not _are_numbers(*means, *stds) or min(stds) <= 0:
        raise ConfigError(
            "mean and std must be given together, with one number per channel for pixels from 0 to 1 and "
            f"each std above 0, not mean={mean!r}, std={std!r}"
        )
    return means, stds
