"""The custom step ``experiments.augmentations.heavy:heavy@1``, which costs more than decoding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageFilter

from superdl.lambda_prefetch import custom_step

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Computes in integers, or in floating point without the platform's math library: with one version of Pillow,
# a seed gives the same bytes everywhere.
ROUNDS_MAX = 32

_CHANNELS = 3
# Over all rounds:
_BEND = 0.2  # scale and shear
_SHIFT = 0.1  # of the side
_BLUR_PIXELS = 0.8  # radius
_GAIN = 77  # of 256: brightness and contrast, up and down
_NOISE = 24.0  # grey levels
_GREY = (128, 128, 128)
_HALF = 128  # of 256: rounds divisions
_LUMA = np.array([77, 150, 29], dtype=np.int32)  # of 256: weights of red, green and blue


@custom_step("1")
def heavy(array: NDArray[np.uint8], *, seed: int, rounds: int = 4) -> NDArray[np.uint8]:
    """Flip, distort, blur and recolour an image and add noise, like a long chain of random transforms.

    Args:
        array: a uint8 array of shape (height, width, 3). The result has the same shape and dtype.
        seed: the seed for all random choices.
        rounds: the number of times to repeat the changes. More rounds cost more, but each changes less.

    Raises:
        ValueError: the array is not an image, or ``rounds`` is out of range.
    """
    if array.dtype != np.uint8 or array.ndim != _CHANNELS or array.shape[2] != _CHANNELS:
        raise ValueError(f"heavy needs uint8 of shape (height, width, 3), not {array.dtype} {array.shape}")
    if not isinstance(rounds, int) or not 1 <= rounds <= ROUNDS_MAX:
        raise ValueError(f"rounds must be an integer from 1 to {ROUNDS_MAX}, not {rounds!r}")
    random = np.random.default_rng(seed)
    picture = Image.fromarray(np.ascontiguousarray(array))
    if random.random() < 0.5:  # noqa: PLR2004
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    share = 1.0 / math.sqrt(rounds)  # the squares of independent changes add up
    for _ in range(rounds):
        blurred = _bent(picture, random, share).filter(
            ImageFilter.GaussianBlur(_BLUR_PIXELS * share * random.random())
        )
        coloured = _coloured(np.asarray(blurred), random, share)
        picture = Image.fromarray(_noisy(coloured, random, share))
    return np.asarray(picture)


def _bent(picture: Image.Image, random: np.random.Generator, share: float) -> Image.Image:
    """Scale and shear an image about its centre, and shift it. Fill the gaps with grey."""
    bend = (2.0 * random.random(4) - 1.0) * (_BEND * share)
    a, b, d, e = 1.0 + bend[0], bend[1], bend[2], 1.0 + bend[3]
    x, y = picture.width / 2.0, picture.height / 2.0
    shift = (2.0 * random.random(2) - 1.0) * (_SHIFT * share)
    c = x - a * x - b * y + shift[0] * picture.width
    f = y - d * x - e * y + shift[1] * picture.height
    return picture.transform(
        picture.size,
        Image.Transform.AFFINE,
        (a, b, c, d, e, f),
        resample=Image.Resampling.BICUBIC,
        fillcolor=_GREY,
    )


def _coloured(pixels: NDArray[np.uint8], random: np.random.Generator, share: float) -> NDArray[np.int32]:
    """Change brightness, contrast and saturation. Results may lie outside 0 to 255."""
    most = max(1, round(_GAIN * share))
    gains = 256 + random.integers(-most, most, size=_CHANNELS, dtype=np.int32, endpoint=True)
    contrast, saturation = (
        256 + random.integers(-most, most, size=2, dtype=np.int32, endpoint=True)
    ).tolist()
    bright = (pixels.astype(np.int32) * gains + _HALF) >> 8
    spread = 128 + (((bright - 128) * contrast + _HALF) >> 8)
    grey = ((spread @ _LUMA + _HALF) >> 8)[:, :, np.newaxis]
    mixed: NDArray[np.int32] = grey + (((spread - grey) * saturation + _HALF) >> 8)
    return mixed


def _noisy(pixels: NDArray[np.int32], random: np.random.Generator, share: float) -> NDArray[np.uint8]:
    most = max(1, round(_NOISE * share))
    # The sum of three uniform draws is nearly normal.
    noise = random.integers(-most, most, size=(_CHANNELS, *pixels.shape), dtype=np.int32, endpoint=True)
    noisy: NDArray[np.uint8] = np.clip(pixels + ((noise.sum(axis=0) + 1) >> 1), 0, 255).astype(np.uint8)
    return noisy
