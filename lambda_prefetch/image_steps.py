"""A recipe's steps on PIL images. The pixels are identical to those of torchvision 0.17 and later."""

from __future__ import annotations

import hashlib
import math
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image

from superdl.lambda_prefetch.custom_steps import CustomStep
from superdl.lambda_prefetch.decode import check_pixels, decode
from superdl.lambda_prefetch.sources import SampleFailedError, fatal
from superdl.super_wire.ids import digest128
from superdl.super_wire.recipe_steps import OPS, borders_of, sides_of
from superdl.super_wire.request import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from superdl.lambda_prefetch.custom_steps import Arrays
    from superdl.super_wire.recipe import Recipe

Picture: TypeAlias = "Image.Image | Arrays"

_CROP_TRIES = 10
_CHANNELS = 3
_DOUBLE_BITS = 53
_CROPS = frozenset({"random_resized_crop", "random_crop"})
_NUMBERS = frozenset({"|u1", "<u2", "<i4", "<f4"})  # mask dtypes that Pillow can crop and flip


class SampleRandom:
    """Random numbers for one step and sample, the same on every machine but different in every epoch.

    A step with draws that several fields share also has a ``kind``, and ``step`` counts steps of that kind.
    """

    def __init__(
        self,
        recipe_digest: bytes,
        step: int,
        augment_seed: int,
        epoch: int,
        bucket: str,
        key: str,
        kind: str = "",
    ) -> None:
        self._seed = digest128(
            recipe_digest,
            step.to_bytes(8, "little"),
            augment_seed.to_bytes(8, "little", signed=True),
            epoch.to_bytes(8, "little"),
            bucket.encode(),
            key.encode(),
            *([kind.encode()] if kind else []),
        )
        self._count = 0

    def seed(self) -> int:
        """Return the next draw as a 63-bit integer for seeding other generators."""
        return self._bits() >> 1

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return the next draw as a float from ``low`` to ``high`` (exclusive, except for rounding)."""
        return low + (high - low) * ((self._bits() >> (64 - _DOUBLE_BITS)) * 2.0**-_DOUBLE_BITS)

    def below(self, bound: int) -> int:
        """Return the next draw from 0 to ``bound - 1``, with a bias below ``bound * 2**-64``."""
        return (self._bits() * bound) >> 64

    def _bits(self) -> int:
        counter = self._count.to_bytes(8, "little")
        self._count += 1
        # Pixels must not depend on a library's generator.
        return int.from_bytes(hashlib.blake2b(counter, digest_size=8, key=self._seed).digest(), "little")


class Program:
    """A recipe that is ready to run on the samples of a request.

    Random steps are seeded with ``bucket``, ``epoch`` and the key without ``prefix``. ``limit_pixels`` limits
    the size of images that steps return, and ``step_modules`` lists the modules allowed for custom steps.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        bucket: str,
        epoch: int,
        limit_pixels: int,
        step_modules: frozenset[str],
        prefix: str = "",
        whole_digest: bytes = b"",
    ) -> None:
        settings: Any = {"bucket": bucket, "epoch": epoch, "prefix": prefix}
        settings |= {"limit_pixels": limit_pixels, "step_modules": step_modules}
        # A recipe without fields has itself as its only part.
        self._parts = [
            Program(part, **settings, whole_digest=recipe.digest) for part in recipe.parts.values()
        ] or [self]
        self._whole_digest = whole_digest
        self._is_mask = bool(recipe.steps) and recipe.steps[0]["op"] == "mask"
        self._recipe, self._decodes = recipe, recipe.decodes
        self._bucket, self._prefix, self._epoch = bucket, prefix, epoch
        self._limit_pixels = limit_pixels
        self._custom = {
            number: CustomStep(step["name"], step["params"], random=step["random"], allowed=step_modules)
            for number, step in enumerate(recipe.steps, start=1)
            if step["op"] == "custom"
        }
        first = recipe.steps[0] if recipe.steps and OPS[recipe.steps[0]["op"]].decodes else {}
        self._options: Any = {
            "limit_pixels": limit_pixels,
            "min_side": first.get("size", 0),
            "is_mask": self._is_mask,
            "fills": first.get("truncated") == "fill",
        }

    def make(
        self,
        data: bytes | bytearray,
        key: str,
        part: int = 0,
        sizes: dict[str, tuple[int, int]] | None = None,
    ) -> Arrays:
        """Decode an object, unless the first step needs its bytes, then :meth:`run` the steps.

        ``part`` is the index of the object's field in the recipe, and ``key`` is the sample's key. All parts
        of a sample share ``sizes``, because parts with a common crop must have the same size.
        """
        if self._parts[part] is not self:
            return self._parts[part].make(data, key, sizes=sizes)
        if not self._decodes:
            # Read-only, because a custom step must not change the received bytes.
            return self.run(np.frombuffer(memoryview(data).toreadonly(), dtype=np.uint8), key, sizes)
        return self.run(decode(data, **self._options), key, sizes)

    def run(self, image: Picture, key: str, sizes: dict[str, tuple[int, int]] | None = None) -> Arrays:
        """Run the steps. Return the sample's array, or the result of the last custom step.

        The array is uint8 of shape (height, width, 3), (height, width, 1) if grey, or (height, width)
        for a mask. ``image`` is the decoded image, or the object as uint8 of shape (bytes,).
        """
        picture: Picture = image
        for number, step in enumerate(self._recipe.steps, start=1):
            if OPS[step["op"]].decodes:
                continue  # done by make()
            if number in self._custom:
                picture = self._custom[number].run(self._array_of(picture), self._random(number, key).seed())
            else:
                ctx = _Context(partial(self._random, number, key), self._limit_pixels)
                image = _as_image(picture, number, step["op"], is_mask=self._is_mask)
                if sizes is not None and step["op"] in _CROPS:
                    self._check_size(number, image.size, sizes)
                picture = _STEPS[step["op"]](image, step, ctx)
        return self._array_of(picture)

    def _array_of(self, picture: Picture) -> Arrays:
        if not isinstance(picture, Image.Image):
            return picture
        if self._is_mask:
            return np.asarray(picture)
        # Faster than np.asarray().
        return np.frombuffer(picture.tobytes(), dtype=np.uint8).reshape(picture.height, picture.width, -1)

    def _random(self, number: int, key: str) -> SampleRandom:
        seed, named = self._recipe.augment_seed, key.removeprefix(self._prefix)
        if not self._whole_digest:
            return SampleRandom(self._recipe.digest, number, seed, self._epoch, self._bucket, named)
        kind, count = self._kind(number)
        return SampleRandom(self._whole_digest, count, seed, self._epoch, self._bucket, named, kind)

    def _kind(self, number: int) -> tuple[str, int]:
        """Return a step's kind, and its position among the steps of that kind."""
        # Fields share draws of the same kind and number, so an image and its mask get the same crop.
        kinds = [str(step.get("name", step["op"])) for step in self._recipe.steps[:number]]
        return kinds[-1], kinds.count(kinds[-1])

    def _check_size(self, number: int, size: tuple[int, int], sizes: dict[str, tuple[int, int]]) -> None:
        kind, count = self._kind(number)
        if (other := sizes.setdefault(f"{kind} {count}", size)) != size:
            raise fatal(
                "unequal",
                f"step {number} ({kind}) would crop {size[0]} x {size[1]} pixels differently from "
                f"another field's {other[0]} x {other[1]}. Resize both to the same [height, width] first",
            )


class _Context(NamedTuple):
    draws: Callable[[], SampleRandom]  # creates the step's random numbers
    limit_pixels: int  # of the result


def _resize(image: Image.Image, step: Mapping[str, Any], ctx: _Context) -> Image.Image:
    if not isinstance(step["size"], int):
        height, width = step["size"]
        return _resized(image, (width, height), step, ctx.limit_pixels)
    # The longer side is rounded down. If it would exceed max_size, both sides shrink.
    shorter, longest = step["size"], step.get("max_size")
    longer = int(shorter * max(image.size) / min(image.size))
    if longest is not None and longer > longest:
        shorter, longer = int(longest * shorter / longer), longest
    target = (shorter, longer) if image.width <= image.height else (longer, shorter)
    return _resized(image, target, step, ctx.limit_pixels)


def _resized(
    image: Image.Image, size: tuple[int, int], step: Mapping[str, Any], limit_pixels: int
) -> Image.Image:
    check_pixels(*size, limit_pixels)
    # Pillow resamples one side first, so a long, thin image may become large in between.
    check_pixels(size[0], image.height, limit_pixels)
    check_pixels(image.width, size[1], limit_pixels)
    if 0 in size:
        raise fatal(
            "too_small", f"{image.width} x {image.height} pixels would be resized to {size[0]} x {size[1]}"
        )
    filter_name = step.get("interpolation", "bilinear").upper()
    return image if size == image.size else image.resize(size, Image.Resampling[filter_name])


def _center_crop(image: Image.Image, step: Mapping[str, Any], ctx: _Context) -> Image.Image:
    height, width = sides_of(step["size"])
    # A crop larger than the image pads it, possibly beyond the limit.
    check_pixels(width, height, ctx.limit_pixels)
    left, top = _centred(image.width, width), _centred(image.height, height)
    box = left, top, left + width, top + height
    return image if box == (0, 0, *image.size) else image.crop(box)


def _centred(length: int, side: int) -> int:
    # Like torchvision, padding puts the smaller half first, and cropping rounds to even.
    return round((length - side) / 2) if length >= side else -((side - length) // 2)


def _pad(image: Image.Image, step: Mapping[str, Any], ctx: _Context) -> Image.Image:
    left, top, right, bottom = borders_of(step["padding"])
    check_pixels(image.width + left + right, image.height + top + bottom, ctx.limit_pixels)
    if step["mode"] == "constant":
        return image.crop((-left, -top, image.width + right, image.height + bottom))
    pixels = np.asarray(image)
    widths = ((top, bottom), (left, right), (0, 0))[: pixels.ndim]
    return Image.fromarray(np.pad(pixels, widths, step["mode"]))


def _grayscale(image: Image.Image, step: Mapping[str, Any], _: _Context) -> Image.Image:
    grey = image.convert("L")
    return grey if step["channels"] == 1 else Image.merge("RGB", (grey, grey, grey))


def _random_resized_crop(image: Image.Image, step: Mapping[str, Any], ctx: _Context) -> Image.Image:
    height, width = sides_of(step["size"])
    box = random_crop_box(*image.size, step["scale"], step["ratio"], ctx.draws())
    return _resized(image.crop(box), (width, height), step, ctx.limit_pixels)


def _random_crop(image: Image.Image, step: Mapping[str, Any], ctx: _Context) -> Image.Image:
    height, width = sides_of(step["size"])
    if image.width < width or image.height < height:
        message = (
            f"{image.width} x {image.height} pixels cannot be cropped to {width} x {height}. Add a pad first"
        )
        raise fatal("too_small", message)
    draws = ctx.draws()
    top = draws.below(image.height - height + 1)
    left = draws.below(image.width - width + 1)
    return image.crop((left, top, left + width, top + height))


def _flip(by: Image.Transpose, image: Image.Image, step: Mapping[str, Any], ctx: _Context) -> Image.Image:
    return image.transpose(by) if ctx.draws().uniform() < step["p"] else image


# step -> its function. Custom steps are imported, and decode() runs the steps that decode.
_STEPS: Mapping[str, Callable[[Image.Image, Mapping[str, Any], _Context], Image.Image]] = MappingProxyType(
    {
        "resize": _resize,
        "center_crop": _center_crop,
        "pad": _pad,
        "grayscale": _grayscale,
        "random_resized_crop": _random_resized_crop,
        "random_crop": _random_crop,
        "horizontal_flip": partial(_flip, Image.Transpose.FLIP_LEFT_RIGHT),
        "vertical_flip": partial(_flip, Image.Transpose.FLIP_TOP_BOTTOM),
    }
)


def random_crop_box(
    width: int, height: int, scale: list[float], ratio: list[float], draws: SampleRandom
) -> tuple[int, int, int, int]:
    """Return a random crop of the image as (left, top, right, bottom)."""
    log_low, log_high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(_CROP_TRIES):
        # The area is uniform within scale, and the logarithm of the aspect ratio within that of ratio.
        area = width * height * draws.uniform(*scale)
        aspect = math.exp(draws.uniform(log_low, log_high))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top = draws.below(height - h + 1)
            left = draws.below(width - w + 1)
            return left, top, left + w, top + h
    # Like torchvision, after ten attempts use the largest central part with an allowed ratio.
    w, h = width, height
    if width / height < ratio[0]:
        h = round(w / ratio[0])
    elif width / height > ratio[1]:
        w = round(h * ratio[1])
    w, h = max(w, 1), max(h, 1)  # may be 0 for an image with a single row
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def _as_image(picture: Picture, number: int, op: str, *, is_mask: bool) -> Image.Image:
    if isinstance(picture, Image.Image):
        return picture
    if isinstance(picture, dict):
        shown = f"arrays named {', '.join(picture)}"
    elif (is_mask and picture.ndim == _CHANNELS - 1 and picture.dtype.str in _NUMBERS) or (
        picture.dtype == np.uint8 and picture.ndim == _CHANNELS and picture.shape[2] == _CHANNELS
    ):
        return Image.fromarray(np.ascontiguousarray(picture))
    else:
        shown = f"{picture.dtype} of shape {picture.shape}"
    raise SampleFailedError(
        Outcome.STEP_ERROR,
        f"step {number} ({op}) needs uint8 of shape (height, width, 3), but the custom step before it "
        f"returned {shown}",
    )
