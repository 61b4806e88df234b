"""Images between the cache and a pipeline of torchvision or timm: to PIL, and from PIL to tensors.

Both ends take as little as they can. A crop copies the pixels that it keeps, not the whole image before it.
What makes a tensor of an image and normalises it works in one piece of memory. Every pixel stays as the
pipeline would make it, bit for bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from superdl.super_dataset.splitting import known_class, parts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

__all__ = ["in_fewer_steps", "to_pil"]

Transform: TypeAlias = Callable[[Any], Any]

_MAKE_TENSORS = frozenset(
    {"ToTensor", "MaybeToTensor", "ToImage", "PILToTensor", "MaybePILToTensor", "ToNumpy"}
)
_FOLLOW = frozenset({"ConvertImageDtype", "ToDtype", "Normalize", "ToPureTensor"})
_RGB = 3
_VALUES = 256

_SCALES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda pixels: pixels,
    lambda pixels: pixels.to(torch.float32).div_(255),
    lambda pixels: pixels.to(torch.float32).mul_(1 / 255),
)
"""What the classes above make of bytes: nothing; torchvision's v1; its v2."""


def to_pil(pixels: NDArray[np.uint8]) -> Image:
    """A PIL image of uint8 of shape (height, width), or (height, width, channels) with 1, 3 or 4 of them."""
    from PIL import Image  # only where a transform takes it

    if pixels.shape[2:] == (_RGB,) and pixels.flags.c_contiguous:
        return _stored_image()(pixels)
    return Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)


@functools.cache
def _stored_image() -> Callable[[NDArray[np.uint8]], Image]:
    from PIL import Image

    class StoredImage(Image.Image):
        """An RGB image that is loaded when it is needed, as one that ``Image.open`` gave; a crop loads its
        part alone. Until it is loaded it keeps the memory of its batch.
        """

        def __init__(self, pixels: NDArray[np.uint8]) -> None:
            super().__init__()
            self._mode = "RGB"
            self._size = (pixels.shape[1], pixels.shape[0])
            self._pixels = pixels.reshape(-1).data

        def load(self) -> Any:
            if self._im is None:
                self.im = self._part(0, 0, *self.size).im
                del self._pixels
            return super().load()

        def crop(self, box: tuple[float, float, float, float] | None = None) -> Image.Image:
            left, upper, right, lower = (0, 0, *self.size) if box is None else map(round, box)
            if self._im is None and 0 <= left < right <= self.width and 0 <= upper < lower <= self.height:
                return self._part(left, upper, right, lower)
            return super().crop(box)

        def __reduce__(self) -> tuple[Any, ...]:
            return Image.Image, (), self.__getstate__()

        def _part(self, left: int, upper: int, right: int, lower: int) -> Image.Image:
            row = _RGB * self.width
            pixels = self._pixels[upper * row + _RGB * left :]
            return Image.frombytes("RGB", (right - left, lower - upper), pixels, "raw", "RGB", row, 1)

    return StoredImage


def in_fewer_steps(transform: Transform) -> Transform:
    """The same transform, which ends in fewer steps if it is a pipeline that makes tensors as most do.

    That is ``ToTensor`` or the like, with a change of the dtype, ``Normalize``, both or none after it. Their
    classes are known by name; that they give the same bits is tried on an image of all values.
    """
    parts = parts_of(transform)
    at = next((at for at, part in enumerate(parts) if known_class(part) in _MAKE_TENSORS), len(parts))
    first, last = parts[:at], parts[at:]
    if not last or any(known_class(part) not in _FOLLOW for part in last[1:]):
        return transform
    end = _short_end(last)
    if end is None:
        return transform

    def call(image: Any) -> Any:
        made = _in_turn(first, image)
        return end(_planes(made)) if getattr(made, "mode", None) == "RGB" else _in_turn(last, made)

    return call


def _in_turn(parts: list[Transform], image: Any) -> Any:
    for part in parts:
        image = part(image)
    return image


def _planes(image: Image) -> torch.Tensor:
    """The pixels as uint8 of shape (channels, height, width), of lines that lie in one piece each."""
    lines = np.frombuffer(bytearray(image.tobytes("raw", "RGB;L")), dtype=np.uint8)
    return torch.from_numpy(lines.reshape(image.height, _RGB, image.width)).transpose(0, 1)


def _short_end(last: list[Any]) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What does the same as ``last`` to the planes of an image; ``None`` if nothing here does."""
    values = np.arange(_VALUES, dtype=np.uint8)
    probe = to_pil(np.stack([values, values[::-1], np.roll(values, 99)], axis=-1)[None])
    try:
        expected = torch.as_tensor(_in_turn(last, probe))
        moments = [
            torch.as_tensor(moment, dtype=torch.float32).view(-1, 1, 1)
            for part in last
            if known_class(part) == "Normalize"
            for moment in (part.mean, part.std)
        ]
    except (RuntimeError, TypeError, ValueError):
        return None  # the pipeline itself tells it of its first image
    for scale in _SCALES:

        def end(planes: torch.Tensor, scale: Callable[[torch.Tensor], torch.Tensor] = scale) -> torch.Tensor:
            made = scale(planes)
            return made.sub_(moments[0]).div_(moments[1]) if moments else made

        if moments and (scale is _SCALES[0] or len(moments) > len(("mean", "std"))):
            continue
        made = end(_planes(probe))
        if made.dtype == expected.dtype and torch.equal(made, expected):
            return end
    return None
