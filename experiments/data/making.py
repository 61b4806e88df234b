"""Write image sets once and atomically: scikit-learn's digits, and generated pictures."""

from __future__ import annotations

import hashlib
import io
import math
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from superdl.experiments.data.whole_directory import manifest_of, written_once
from superdl.experiments.image_sets import SPLITS, MadeSet
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.host import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Plane = NDArray[np.float32]

# 1,797 scans of 8x8 pixels, enlarged, as RGB. Also the manifest, which is compared on reuse.
DIGITS_FORMAT: Mapping[str, Any] = {
    "name": "digits",
    "format": 1,
    "side_pixels": 64,
    "jpeg_quality": 95,
    "split_seed": 0,
    "val_percent": 20,
    "counts": {"train": 1438, "val": 359},
}

_PROGRESS_REPORTS = 10
_CHUNK = 50  # pictures that a thread draws at a time
_MEGABYTE = 1e6


# -------------------------------------------------------------------------------------------- digits


def make_digits(directory: str | Path) -> Path:
    """Write the digits as ``train/0..9/NNNN.jpg`` and ``val/0..9/NNNN.jpg``, and return the directory.

    If the directory already contains the set, it is not modified.

    Raises:
        SourceError: the directory contains other files.
        ConfigError: the path cannot be written, or scikit-learn is not installed.
    """
    target = Path(directory).expanduser().absolute()
    written_once(target, DIGITS_FORMAT, "the digits", _write_digits)
    return target


def _write_digits(root: Path) -> None:
    try:
        from sklearn.datasets import load_digits  # slow to import
    except ImportError as error:
        raise ConfigError(
            "the digits need scikit-learn, which is not installed. Run pip install 'superdl[train]'."
        ) from error
    digits = load_digits()
    grey = np.rint(digits.images * (255.0 / 16.0)).astype(np.uint8)  # [1797, 8, 8]; white is 16
    labels = [int(label) for label in digits.target]
    held_out = _validation_indices(labels)
    side = DIGITS_FORMAT["side_pixels"]
    for index, label in enumerate(labels):
        folder = root / ("val" if index in held_out else "train") / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        enlarged = Image.fromarray(grey[index]).resize((side, side), Image.Resampling.BICUBIC)
        enlarged.convert("RGB").save(folder / f"{index:04d}.jpg", quality=DIGITS_FORMAT["jpeg_quality"])


def _validation_indices(labels: list[int]) -> set[int]:

    def split_key(index: int) -> bytes:
        # A hash is the same on all machines.
        return hashlib.blake2b(f"{DIGITS_FORMAT['split_seed']}:{index}".encode(), digest_size=8).digest()

    held_out: set[int] = set()
    for label in set(labels):
        indices = [index for index, other in enumerate(labels) if other == label]
        share = round(len(indices) * DIGITS_FORMAT["val_percent"] / 100)
        held_out.update(sorted(indices, key=split_key)[:share])
    return held_out


# ------------------------------------------------------------------------------------ drawn pictures


def make_set(
    made: MadeSet,
    directory: str | Path,
    *,
    samples: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    log: Callable[[str], None] = lambda _: None,
) -> Path:
    """Generate a set as ``train/<class>/*`` and ``val/<class>/*`` in ``directory``, and return its path.

    If the directory already contains exactly this set, it is not modified. ``samples`` is the number of
    training images (all by default). The same ``samples`` and ``seed`` give identical files with any number
    of ``threads`` (one per core by default). ``log`` receives progress messages.

    Raises:
        ConfigError: there are fewer samples than classes, or the directory cannot be written.
        SourceError: the directory contains something else.
    """
    target = Path(directory).expanduser().absolute()
    counts = made.counts(samples)
    modes = Counter(colour_mode(made, index) for count in counts.values() for index in range(count))
    manifest = {
        "name": made.name,
        "format": PICTURE_FORMAT,
        "seed": seed,
        "counts": counts,
        "colour_modes": dict(sorted(modes.items())),
        "made": asdict(made),
    }

    def fill(staging: Path) -> None:
        size = made.disk_bytes(sum(counts.values()))
        log(
            f"drawing {made.name}: {counts['train']:,} training and {counts['val']:,} validation images, "
            f"about {size / _MEGABYTE:,.0f} MB, to {target}"
        )
        # Threads suffice, because numpy and Pillow release the GIL.
        _draw(made, seed, counts, staging, threads or usable_cores(), log)

    written_once(target, manifest, made.name, fill)
    return target


def _draw(
    made: MadeSet,
    seed: int,
    counts: Mapping[str, int],
    root: Path,
    threads: int,
    log: Callable[[str], None],
) -> None:
    def draw_some(split: str, start: int, digits: int) -> int:
        indices = range(start, min(start + _CHUNK, counts[split]))
        for index in indices:
            folder = f"{root}/{split}/{made.class_name(index % made.classes)}"
            content = picture_file(made, seed, split, index)
            with open(f"{folder}/{index:0{digits}d}.{made.extension}", "wb") as file:  # noqa: PTH123  # faster than Path
                file.write(content)
        return len(indices)

    for split in counts:
        for label in range(made.classes):
            (root / split / made.class_name(label)).mkdir(parents=True)
    total, done, reported, start_s = sum(counts.values()), 0, 0, time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        futures = [
            pool.submit(draw_some, split, start, max(5, len(str(count - 1))))
            for split, count in counts.items()
            for start in range(0, count, _CHUNK)
        ]
        try:
            for future in as_completed(futures):
                done += future.result()
                if done * _PROGRESS_REPORTS // total > reported:
                    reported = done * _PROGRESS_REPORTS // total
                    rate = done / max(time.perf_counter() - start_s, 1e-9)
                    log(f"{done:,} of {total:,} images, {rate:,.0f} images/s")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def made_in(directory: Path) -> dict[str, Any] | None:
    """Return the manifest of the generated images in a directory, or None if there are none."""
    manifest = manifest_of(directory)
    return manifest if manifest is not None and "made" in manifest else None


# Raise this whenever a seed gives different pictures.
PICTURE_FORMAT = 1

_DIRECTIONS = tuple(math.radians(degrees) for degrees in (0.0, 90.0, 45.0, 22.5, 67.5))
_KINDS = 2  # stripes, dashes
_WIDTHS = (1.0, 1.35, 1.8, 2.4)
_OUTLINES = 5  # disc, square, ring, cross, triangle
_NARROWEST = (4.0, 1.0 / 16.0)  # minimum period of the narrowest texture: pixels, share of the shorter side
_COARSE_WEIGHT = 0.28  # exponent of noise over its scale, chosen for realistic file sizes
_BANK_SIDE = 256
_HALF = 0.5
_CMYK_OFFSET = 20  # so that CMYK and grey have different indices


def picture_file(made: MadeSet, seed: int, split: str, index: int) -> bytes:
    """Return a split's ``index``-th picture as an encoded file."""
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


def colour_mode(made: MadeSet, index: int) -> str:
    """Return a picture's colour mode. Modes other than RGB are spread evenly over a split."""
    if made.grey or _falls_on(made.grey_share, index):
        return "L"
    return "CMYK" if _falls_on(made.cmyk_share, index + _CMYK_OFFSET) else "RGB"


def picture_pixels(made: MadeSet, seed: int, split: str, index: int) -> NDArray[np.uint8]:
    """Return a picture's RGB pixels, of shape (height, width, 3), before conversion to its colour mode."""
    # With a generator per picture, pictures can be drawn in any order. The noise bank uses 0.
    random = np.random.default_rng([seed, 1 + SPLITS.index(split), index])
    width, height = made.sizes[int(random.integers(len(made.sizes)))]
    bank = _noise_bank(seed, max(_BANK_SIDE, 2 * max(width, height)))
    noise = [_cut(plane, random, height, width) for plane in bank]
    figure, texture = _figure_and_texture(index % made.classes, random, width, height)
    brightness = 128.0 + random.uniform(-22, 22) + 40.0 * noise[0]
    brightness += np.float32(made.contrast * random.uniform(28, 48)) * texture
    # Independent of the class, because the mean colour must not reveal it.
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
    """Return whether ``index`` belongs to an evenly spaced share, offset by half the spacing."""
    return math.floor((index + 1) * share + _HALF) > math.floor(index * share + _HALF)


def _figure_and_texture(
    label: int, random: np.random.Generator, width: int, height: int
) -> tuple[Plane, Plane]:
    """Return the figure's mask (0 to 1) and its texture (-1 to 1, and 0 outside the figure)."""
    direction = _DIRECTIONS[label % len(_DIRECTIONS)]
    rest = label // len(_DIRECTIONS)
    dashed, rest = rest % _KINDS, rest // _KINDS
    widest, turn = rest % len(_WIDTHS), rest // len(_WIDTHS)
    outline = (turn + label) % _OUTLINES

    side = min(width, height)
    # Mirrored at random, because flips must not change the class.
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
    """Return three planes of noise at all scales, each with a standard deviation of 1."""
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
