"""Images for a pipeline of torchvision or timm: to PIL and back, equal bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from superdl.super_dataset.splitting import size_and_moments, split_at_tensors

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

Transform: TypeAlias = Callable[[Any], Any]

_RGB = 3
_VALUES = 256

# Scaling by the classes above: none (bytes); to float32 as torchvision's v1; as its v2.
_SCALES = ("bytes", "divided", "multiplied")


class Planes(NamedTuple):
    """An RGB image's pixels, to which only an :class:`End` remains to be applied."""

    # Shape (channels, height, width), not to be written to.
    pixels: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """A pipeline's conversion to tensors, which maps each value of a channel independently."""

    scale: str
    # Mean and standard deviation, each of shape (1 or channels, 1, 1); or empty.
    moments: tuple[NDArray[np.float32], ...]

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the result: uint8 or float32."""
        return torch.uint8 if self.scale == "bytes" else torch.float32

    def write(self, pixels: NDArray[np.uint8], out: NDArray[Any]) -> None:
        """Convert uint8 (..., channels, height, width) into ``out``, as the pipeline does."""
        # The pipeline's own arithmetic, step by step: one fused factor would round differently.
        np.copyto(out, pixels)
        if self.scale == "divided":
            np.divide(out, np.float32(255), out=out)
        elif self.scale == "multiplied":
            np.multiply(out, np.float32(1 / 255), out=out)
        if self.moments:
            np.subtract(out, self.moments[0], out=out)
            np.divide(out, self.moments[1], out=out)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Convert a batch, uint8 (..., channels, height, width), on its own device."""
        if self.scale == "bytes":
            return images
        if images.device.type == "cpu":
            converted = torch.empty(images.shape)
            self.write(images.numpy(), converted.numpy())
            return converted
        # A table gives the same bits however the device rounds a division.
        return self.looked_up(images)

    def looked_up(self, images: torch.Tensor) -> torch.Tensor:
        """Convert a batch with a table of all values; for ends that produce float32."""
        table = torch.empty(_RGB, 1, _VALUES)
        self.write(np.broadcast_to(np.arange(_VALUES, dtype=np.uint8), table.shape), table.numpy())
        rows = torch.arange(0, table.numel(), _VALUES, dtype=torch.int32, device=images.device)
        places = images.contiguous() + rows.view(-1, 1, 1)
        return table.view(-1).to(images.device).index_select(0, places.view(-1)).view(places.shape)


def to_pil(pixels: NDArray[np.uint8]) -> Image:
    """Return a PIL image of uint8 (height, width[, channels]) with 1, 3 or 4 channels."""
    from PIL import Image  # only needed if a transform takes PIL images

    return Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)


def in_fewer_steps(transform: Transform) -> tuple[Transform, End | None]:
    """Return a pipeline without its end, and that end, if it converts to tensors in a usual way.

    The transform then returns :class:`Planes`, except for images that are not RGB, where it returns the
    pipeline's full result.
    """
    first, last = split_at_tensors(transform)
    size, moments = size_and_moments(last) if last else (None, [])
    end = _end_of(last, size or [1, _VALUES], moments) if last else None
    if end is None:
        return transform, None

    def call(image: Any) -> Any:
        picture = _in_turn(first, image)
        is_ready = getattr(picture, "mode", None) == "RGB" and (size is None or [*picture.size] == size)
        return _planes(picture) if is_ready else _in_turn(last, picture)

    return call, end


def _in_turn(parts: list[Transform], image: Any) -> Any:
    for part in parts:
        image = part(image)
    return image


def _planes(image: Image) -> Planes:
    lines = np.frombuffer(image.tobytes("raw", "RGB;L"), dtype=np.uint8)
    return Planes(lines.reshape(image.height, _RGB, image.width).transpose(1, 0, 2))


def _end_of(last: list[Any], size: list[int], given: list[Any]) -> End | None:
    # Classes are recognised by name only, so an image of all values checks that the bits are equal.
    values = np.arange(_VALUES, dtype=np.uint8)
    pixels = np.stack(
        [np.resize(channel, size) for channel in (values, values[::-1], np.roll(values, 99))], axis=-1
    )
    if pixels[..., 0].size < _VALUES:
        return None
    probe = to_pil(pixels)
    try:
        expected = torch.as_tensor(_in_turn(last, probe))
        moments = [torch.as_tensor(moment, dtype=torch.float32).view(-1, 1, 1).numpy() for moment in given]
    except (RuntimeError, TypeError, ValueError):
        return None  # the pipeline itself reports it at its first image
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
