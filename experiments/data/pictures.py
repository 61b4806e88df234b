"""Draw and encode a picture of a made set: a textured figure on photo-like noise.

The class determines the texture's direction, kind and width, and the figure's outline, in this
order of importance. The same seed gives the same pictures under the same numpy and Pillow.
"""

from __future__ import annotations

import io
import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from superdl.experiments.image_sets import SPLITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superdl.experiments.image_sets import MadeSet

    Plane = NDArray[np.float32]

# Raise this whenever the same seed would give other pictures.
PICTURE_FORMAT = 1

_DIRECTIONS = tuple(math.radians(degrees) for degrees in (0.0, 90.0, 45.0, 22.5, 67.5))
_KINDS = 2  # stripes, dashes
_WIDTHS = (1.0, 1.35, 1.8, 2.4)
_OUTLINES = 5  # disc, square, ring, cross, triangle
DISTINCT_CLASSES = len(_DIRECTIONS) * _KINDS * len(_WIDTHS) * _OUTLINES
_NARROWEST = (4.0, 1.0 / 16.0)  # a period of the narrowest texture: pixels, and share of the shorter side
_COARSE_WEIGHT = 0.28  # noise grows with its scale to this power, chosen for file sizes
_BANK_SIDE = 256
_HALF = 0.5
_BESIDE_GREY = 20  # CMYK falls on other indices than grey


def picture_file(made: MadeSet, seed: int, split: str, index: int) -> bytes:
    """Return the ``index``-th picture of a split, encoded."""
    image = Image.fromarray(picture_pixels(made, seed, split, index))
    mode = colour_mode(made, index)
    if mode != "RGB":
        image = image.convert(mode)
    content = io.BytesIO()
    if made.extension == "png":
        image.save(content, "PNG", compress_level=3)
    else:
        image.save(content, "JPEG", quality=made.quality)
    return content.getvalue()


def label_of(made: MadeSet, index: int) -> int:
    """Return the class of a split's ``index``-th picture."""
    return index % made.classes


def colour_mode(made: MadeSet, index: int) -> str:
    """Return a picture's mode; modes other than RGB are spread evenly in a split."""
    if made.grey or _falls_on(made.grey_share, index):
        return "L"
    return "CMYK" if _falls_on(made.cmyk_share, index + _BESIDE_GREY) else "RGB"


def picture_pixels(made: MadeSet, seed: int, split: str, index: int) -> NDArray[np.uint8]:
    """Return a picture's pixels, (height, width, 3), before conversion to its mode."""
    # A generator per picture allows any order; 0 is the noise bank's.
    random = np.random.default_rng([seed, 1 + SPLITS.index(split), index])
    width, height = made.sizes[int(random.integers(len(made.sizes)))]
    bank = _noise_bank(seed, max(_BANK_SIDE, 2 * max(width, height)))
    noise = [_cut(plane, random, height, width) for plane in bank]
    figure, texture = _figure_and_texture(label_of(made, index), random, width, height)
    brightness = 128.0 + random.uniform(-22, 22) + 40.0 * noise[0]
    brightness += np.float32(made.contrast * random.uniform(28, 48)) * texture
    # Whatever the class, so that the mean colour carries no information.
    shades = random.normal(0.0, 14.0, 3)
    figure_shades = random.normal(0.0, 16.0, 3)
    tints = (16.0 * noise[1], -8.0 * (noise[1] + noise[2]), 16.0 * noise[2])
    pixels = np.empty((height, width, 3), dtype=np.uint8)
    for channel in range(3):
        values = brightness + tints[channel]
        values += np.float32(shades[channel]) + np.float32(figure_shades[channel]) * figure
        pixels[..., channel] = np.clip(values, 0, 255, out=values)
    return pixels


def _falls_on(share: float, index: int) -> bool:
    """Check whether ``index`` is in an evenly spaced share, offset by half a space."""
    return math.floor((index + 1) * share + _HALF) > math.floor(index * share + _HALF)


def _figure_and_texture(
    label: int, random: np.random.Generator, width: int, height: int
) -> tuple[Plane, Plane]:
    """Return the figure's mask (0 to 1), and its texture (-1 to 1, 0 outside)."""
    direction = _DIRECTIONS[label % len(_DIRECTIONS)]
    rest = label // len(_DIRECTIONS)
    dashed, rest = rest % _KINDS, rest // _KINDS
    widest, turn = rest % len(_WIDTHS), rest // len(_WIDTHS)
    outline = (turn + label) % _OUTLINES  # few classes differ in both

    side = min(width, height)
    # Mirrored or not, so that a flip changes no class.
    angle = direction * (1 if random.random() < _HALF else -1) + math.radians(random.uniform(-3, 3))
    period = max(_NARROWEST[0], _NARROWEST[1] * side) * _WIDTHS[widest] * random.uniform(0.95, 1.05)
    x = np.arange(width, dtype=np.float32)[None, :] - np.float32(width * random.uniform(0.4, 0.6))
    y = np.arange(height, dtype=np.float32)[:, None] - np.float32(height * random.uniform(0.4, 0.6))
    figure = _outline(outline, x, y, np.float32(side * random.uniform(0.36, 0.46)))
    wave = np.float32(2 * math.pi / period)
    along = x * np.float32(math.cos(angle)) + y * np.float32(math.sin(angle))
    texture = np.sin(along * wave + np.float32(random.uniform(0, 2 * math.pi)))
    if dashed:
        across = y * np.float32(math.cos(angle)) - x * np.float32(math.sin(angle))
        texture *= np.sin(across * (wave / 3) + np.float32(random.uniform(0, 2 * math.pi))) > 0
    return figure, texture * figure


def _outline(outline: int, x: Plane, y: Plane, radius: np.float32) -> Plane:
    if outline == 0:
        inside = x * x + y * y < radius * radius
    elif outline == 1:
        inside = np.maximum(np.abs(x), np.abs(y)) < 0.88 * radius
    elif outline == 2:  # noqa: PLR2004  # the third of five
        distance = x * x + y * y
        inside = (distance < 1.2 * radius * radius) & (distance > 0.25 * radius * radius)
    elif outline == 3:  # noqa: PLR2004  # the fourth of five
        narrow = np.minimum(np.abs(x), np.abs(y)) < 0.45 * radius
        inside = narrow & (np.maximum(np.abs(x), np.abs(y)) < 1.1 * radius)
    else:
        inside = (y < 0.8 * radius) & (y + radius > 1.7 * np.abs(x))
    return inside.astype(np.float32)


def _cut(plane: Plane, random: np.random.Generator, height: int, width: int) -> Plane:
    top = int(random.integers(plane.shape[0] - height + 1))
    left = int(random.integers(plane.shape[1] - width + 1))
    piece = plane[top : top + height, left : left + width]
    flip_y, flip_x = random.integers(2, size=2)
    return piece[:: -1 if flip_y else 1, :: -1 if flip_x else 1]


@lru_cache(maxsize=2)
def _noise_bank(seed: int, side: int) -> tuple[Plane, Plane, Plane]:
    """Return three planes of noise of every scale, deviation 1; slow, so cached."""
    random = np.random.default_rng([seed, 0])
    return _noise(random, side), _noise(random, side), _noise(random, side)


def _noise(random: np.random.Generator, side: int) -> Plane:
    total = np.zeros((side, side), dtype=np.float32)
    cell = side / 4.0
    while cell >= 1.0:
        cells = max(2, round(side / cell))
        grid = random.standard_normal((cells, cells), dtype=np.float32)
        enlarged = Image.fromarray(grid).resize((side, side), Image.Resampling.BICUBIC)
        total += np.asarray(enlarged) * np.float32(cell**_COARSE_WEIGHT)
        cell /= 2.0
    total -= total.mean()
    total /= total.std()
    return total
