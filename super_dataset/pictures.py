"""Bit-exact conversion of images to PIL and back, and batching of transform results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info

from superdl.super_dataset.memory.batch_memory import (
    Unfinished,
    as_type_of,
    empty_batch,
    in_one_block,
    memory_here,
)
from superdl.super_dataset.splitting import size_and_moments, split_at_tensors
from superdl.super_wire.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from PIL.Image import Image

_LOG = logging.getLogger("superdl.super_dataset")

Transform: TypeAlias = Callable[[Any], Any]

_RGB = 3
_VALUES = 256

# Scaling: none (bytes), or to float32 as in torchvision's v1 or v2.
_SCALES = ("bytes", "divided", "multiplied")


class Planes(NamedTuple):
    """An RGB image to which its pipeline's :class:`End` has not been applied yet."""

    pixels: NDArray[np.uint8]  # (channels, height, width), read-only


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """A pipeline's final conversion to tensors, which maps each pixel value independently."""

    scale: str
    # Mean and standard deviation, each of shape (1 or channels, 1, 1), or empty.
    moments: tuple[NDArray[np.float32], ...]

    @property
    def dtype(self) -> torch.dtype:
        """Return the result's dtype, uint8 or float32."""
        return torch.uint8 if self.scale == "bytes" else torch.float32

    def write(self, pixels: NDArray[np.uint8], out: NDArray[Any]) -> None:
        """Convert uint8 pixels (..., channels, height, width) as the pipeline does. Write them to ``out``."""
        # Repeat the pipeline's arithmetic step by step, since a fused factor would round differently.
        np.copyto(out, pixels)
        if self.scale == "divided":
            np.divide(out, np.float32(255), out=out)
        elif self.scale == "multiplied":
            np.multiply(out, np.float32(1 / 255), out=out)
        if self.moments:
            np.subtract(out, self.moments[0], out=out)
            np.divide(out, self.moments[1], out=out)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Convert a uint8 batch of shape (..., channels, height, width) on its device."""
        if self.scale == "bytes":
            return images
        if images.device.type == "cpu":
            converted = torch.empty(images.shape)
            self.write(images.numpy(), converted.numpy())
            return converted
        # A table gives the same bits, however the device rounds divisions.
        return self.look_up(images)

    def look_up(self, images: torch.Tensor) -> torch.Tensor:
        """Convert a batch to float32 with a lookup table of all pixel values."""
        table = torch.empty(_RGB, 1, _VALUES)
        self.write(np.broadcast_to(np.arange(_VALUES, dtype=np.uint8), table.shape), table.numpy())
        rows = torch.arange(0, table.numel(), _VALUES, dtype=torch.int32, device=images.device)
        indices = images.contiguous() + rows.view(-1, 1, 1)
        return table.view(-1).to(images.device).index_select(0, indices.view(-1)).view(indices.shape)


def to_pil(pixels: NDArray[np.uint8]) -> Image:
    """Convert a uint8 array (height, width[, channels]) with 1, 3 or 4 channels to a PIL image."""
    from PIL import Image  # only transforms of PIL images need it

    return Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)


def split_end(transform: Transform) -> tuple[Transform, End | None]:
    """Split off a pipeline's end if it converts images to tensors in a known way.

    The returned transform yields :class:`Planes`, or the pipeline's final result if the image is not RGB.
    """
    first, last = split_at_tensors(transform)
    size, moments = size_and_moments(last) if last else (None, [])
    end = _end_of(last, size or [1, _VALUES], moments) if last else None
    if end is None:
        return transform, None

    def call(image: Any) -> Any:
        picture = _apply(first, image)
        is_ready = getattr(picture, "mode", None) == "RGB" and (size is None or [*picture.size] == size)
        return _planes(picture) if is_ready else _apply(last, picture)

    return call, end


def _apply(parts: list[Transform], image: Any) -> Any:
    for part in parts:
        image = part(image)
    return image


def _planes(image: Image) -> Planes:
    lines = np.frombuffer(image.tobytes("raw", "RGB;L"), dtype=np.uint8)
    return Planes(lines.reshape(image.height, _RGB, image.width).transpose(1, 0, 2))


def _end_of(last: list[Any], size: list[int], given: list[Any]) -> End | None:
    # Classes are only recognised by name, so test for equal bits with an image of all values.
    values = np.arange(_VALUES, dtype=np.uint8)
    pixels = np.stack(
        [np.resize(channel, size) for channel in (values, values[::-1], np.roll(values, 99))], axis=-1
    )
    if pixels[..., 0].size < _VALUES:
        return None
    probe = to_pil(pixels)
    try:
        expected = torch.as_tensor(_apply(last, probe))
        moments = [torch.as_tensor(moment, dtype=torch.float32).view(-1, 1, 1).numpy() for moment in given]
    except (RuntimeError, TypeError, ValueError):
        return None  # the pipeline itself fails for its first image
    planes = _planes(probe).pixels
    for scale in _SCALES:
        if moments and (scale == "bytes" or len(moments) > len(("mean", "std"))):
            continue
        end = End(scale, tuple(moments))
        actual = torch.empty(planes.shape, dtype=end.dtype)
        end.write(planes, actual.numpy())
        if actual.dtype == expected.dtype and torch.equal(actual, expected):
            return end
    return None


_NUMBERS = (bool, int, float, np.bool_, np.number)
_PYTHONS_DTYPES = (torch.int64, torch.float64, torch.bool)


class Columns(list[Any]):
    """A list of batches, such as one per crop. Any other list has one entry per sample."""


def batched(results: Iterator[Any], count: int, end: End | None = None) -> Any:
    """Batch ``count`` results as ``default_collate`` does, with this thread's allocator."""
    results = map(_as_tensor, results)
    first = next(results)
    if isinstance(first, Planes) and end is not None:
        template = torch.empty((), dtype=end.dtype).expand(first.pixels.shape)
    elif isinstance(first, torch.Tensor):
        template = first
    else:
        return _in_structure([first, *results])
    stacked = empty_batch((count, *template.shape), template.dtype, template.device)
    for at, result in enumerate(chain([first], results)):
        if isinstance(result, Planes) and end is not None:
            if (
                result.pixels.shape == template.shape
                and end.dtype == template.dtype
                and template.device.type == "cpu"
            ):
                end.write(result.pixels, stacked[at].numpy())
                continue
        elif _is_alike(result, template):
            stacked[at].copy_(result)
            continue
        # Samples that differ remain a list, where default_collate would raise.
        return _listed([_finished(sample, end) for sample in chain(stacked[:at], [result], results)])
    return stacked


def unfinished(results: Iterator[Any], count: int, end: End) -> Any:
    """Batch images of the same size without applying their end, and others as :func:`batched` does."""
    head: list[Any] = [next(results)]
    if isinstance(head[0], Planes):
        shape = head[0].pixels.shape
        stacked = empty_batch((count, *shape), torch.uint8, torch.device("cpu"))
        for at, result in enumerate(chain([head.pop()], results)):
            if not isinstance(result, Planes) or result.pixels.shape != shape:
                head = [*map(Planes, stacked[:at].numpy()), result]
                break
            np.copyto(stacked[at].numpy(), result.pixels)
        else:
            return Unfinished(stacked, end)
    return batched(chain(head, results), count, end)


def rows_of(batch: Any, *, numbers: bool = False) -> list[Any]:
    """Return a list of a batch's samples, which share the batch's memory."""
    if isinstance(batch, dict):
        columns = [rows_of(part, numbers=numbers) for part in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=True)]
    # Use Python numbers if default_collate would restore the dtype.
    if numbers and isinstance(batch, torch.Tensor) and batch.ndim == 1 and batch.dtype in _PYTHONS_DTYPES:
        return list(batch.tolist())
    return list(batch)


def only_sample(batch: Any) -> Any:
    """Return a batch's only sample. Values without a batch axis are returned unchanged."""
    if isinstance(batch, Mapping):
        return as_type_of(batch, {name: only_sample(part) for name, part in batch.items()})
    if isinstance(batch, tuple | Columns) or (isinstance(batch, list) and len(batch) != 1):
        return as_type_of(batch, [only_sample(part) for part in batch])
    is_batch = isinstance(batch, list) or (isinstance(batch, torch.Tensor) and batch.ndim and len(batch) == 1)
    return rows_of(batch, numbers=True)[0] if is_batch else batch


def checked_columns(columns: object) -> dict[str, str]:
    """Check columns and return a dict from names to parts. Parts in a list keep their own names."""
    if isinstance(columns, Sequence) and not isinstance(columns, str):
        pairs = [(name, name) for name in columns]
    else:
        pairs = [*columns.items()] if isinstance(columns, Mapping) else []
    if not pairs or not all(isinstance(text, str) for pair in pairs for text in pair):
        raise ConfigError(
            'columns must list parts of a batch, as in ["image", "mask"], or rename them, as in '
            f'{{"pixel_values": "images", "labels": "labels"}}, not {columns!r}'
        )
    return dict(pairs)


def in_columns(columns: Mapping[str, str], images: Any, labels: Any) -> dict[str, Any]:
    """Return a batch as a dict with these columns. Raises ``UsageError`` if a part is missing."""
    parts = dict(images) if isinstance(images, dict) else {"images": images}
    parts["labels"] = labels
    if isinstance(labels, dict):
        parts |= {f"labels.{name}": values for name, values in labels.items()}
    if unknown := [part for part in columns.values() if part not in parts]:
        raise UsageError(
            f"columns contains {', '.join(map(repr, unknown))}, but a batch of this dataset only has "
            f"{', '.join(map(repr, parts))}"
        )
    return {name: parts[part] for name, part in columns.items()}


def _in_structure(samples: list[Any]) -> Any:
    first, count = samples[0], len(samples)
    if isinstance(first, Mapping):
        if all(isinstance(sample, Mapping) and sample.keys() == first.keys() for sample in samples):
            columns = {name: batched((sample[name] for sample in samples), count) for name in first}
            return as_type_of(first, columns)
    elif isinstance(first, Sequence) and not isinstance(first, str | bytes):
        if all(isinstance(sample, Sequence) and len(sample) == len(first) for sample in samples):
            parts = Columns(batched(iter(column), count) for column in zip(*samples, strict=True))
            return as_type_of(first, parts) if hasattr(first, "_fields") else parts
    elif all(isinstance(sample, _NUMBERS) for sample in samples):
        return default_collate(samples)
    elif type(first).__module__.startswith("PIL."):
        _warn_of_pil_images()
    return samples


@cache  # once per process, and only in one worker
def _warn_of_pil_images() -> None:
    worker = get_worker_info()
    if worker is None or worker.id == 0:
        _LOG.warning(
            "the transform returns PIL images, so each batch is a list of them: to get a tensor, end the "
            "transform with torchvision's v2.ToImage() or v2.PILToTensor()"
        )


def _as_tensor(result: Any) -> Any:
    if not isinstance(result, np.ndarray) or result.dtype.kind not in "biufc":
        return result
    # Copies only arrays that torch cannot use, such as flipped ones.
    return torch.from_numpy(np.require(result, requirements=["C", "W"]))


def _is_alike(result: object, first: torch.Tensor) -> bool:
    return (
        isinstance(result, torch.Tensor)
        and result.shape == first.shape
        and result.dtype == first.dtype
        and result.device == first.device
    )


def _finished(result: Any, end: End | None) -> Any:
    if end is None or not isinstance(result, Planes):
        return result
    finished = torch.empty(result.pixels.shape, dtype=end.dtype)
    end.write(result.pixels, finished.numpy())
    return finished


def _listed(results: list[Any]) -> list[Any]:
    if all(isinstance(result, torch.Tensor) and result.device.type == "cpu" for result in results):
        return in_one_block(results, memory_here())
    return results
