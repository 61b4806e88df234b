"""Writes synthetic JPEGs that cost what ImageNet's photographs cost: 500x375 pixels, about 110 KB, three
channels.

What a JPEG costs to decode depends on its pixels and on its coded bytes, not on what it shows. So an image
here is noise of many scales, strong in the coarse ones and weak in the fine ones as in photographs, with
colours that vary less than brightness. Images are deterministic up to the versions of numpy and Pillow. The
directory appears whole or not at all. Reading the files is left to the loaders.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from superdl.super_wire.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PHOTO_FORMAT", "PhotoFormat", "make_photos", "photo_jpeg"]

_MANIFEST = "manifest.json"
_COARSE_WEIGHT = 0.28  # amplitude grows with the scale to this power; chosen for the file size
_DEVIATION = np.float32(
    6.73
)  # of the summed noise, on average; one number for all, so that sizes differ little


@dataclass(frozen=True, slots=True)
class PhotoFormat:
    """What decides the images; stored in the set's manifest and compared when the set is reused."""

    name: str = "photos"
    format: int = 1
    width: int = 500
    height: int = 375
    classes: int = 10
    jpeg_quality: int = 95
    seed: int = 0
    bytes_min: int = 90_000
    bytes_max: int = 130_000


PHOTO_FORMAT = PhotoFormat()


def make_photos(directory: str | Path, count: int) -> Path:
    """Write ``count`` images below ``directory`` as ``train/00..09/NNNNN.jpg``.

    A directory that already holds the finished set of that count is left as it is.

    Returns the directory's absolute path.

    Raises:
        SourceError: the directory holds something else, or the images came out too small or too large.
        ConfigError: the directory cannot be written.

    """
    target = Path(directory).expanduser().absolute()
    if _is_finished(target, count):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise ConfigError(
            f"cannot write images to {target}: {error.strerror}; name another directory (--data)"
        ) from error
    try:
        sizes = _write_images(staging, count)
        manifest = {**asdict(PHOTO_FORMAT), "count": count, "bytes_mean": round(sum(sizes) / count)}
        (staging / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        staging.replace(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def photo_jpeg(index: int) -> bytes:
    """The ``index``-th image, encoded."""
    content = io.BytesIO()
    Image.fromarray(_pixels(index)).save(content, "JPEG", quality=PHOTO_FORMAT.jpeg_quality)
    return content.getvalue()


def _is_finished(target: Path, count: int) -> bool:
    if not target.exists():
        return False
    try:
        manifest: dict[str, Any] = json.loads((target / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        manifest = {}
    expected = {**asdict(PHOTO_FORMAT), "count": count}
    if {name: manifest.get(name) for name in expected} != expected:
        raise SourceError(
            f"{target} does not hold the {count} images of this version; "
            "delete it or name another directory (--data)"
        )
    return True


def _write_images(root: Path, count: int) -> list[int]:
    sizes = []
    for index in range(count):
        folder = root / "train" / f"{index % PHOTO_FORMAT.classes:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        content = photo_jpeg(index)
        if not PHOTO_FORMAT.bytes_min <= len(content) <= PHOTO_FORMAT.bytes_max:
            raise SourceError(
                f"image {index} came out with {len(content):,} bytes, not {PHOTO_FORMAT.bytes_min:,} to "
                f"{PHOTO_FORMAT.bytes_max:,}: this Pillow encodes otherwise; adjust PHOTO_FORMAT.jpeg_quality"
            )
        (folder / f"{index:05d}.jpg").write_bytes(content)
        sizes.append(len(content))
    return sizes


def _pixels(index: int) -> NDArray[np.uint8]:
    """Pixels of shape (height, width, 3)."""
    random = np.random.default_rng([PHOTO_FORMAT.seed, index])
    brightness = 128.0 + 46.0 * _noise(random)
    tints = [18.0 * _noise(random) for _ in range(2)]
    channels = [brightness + tints[0], brightness - 0.5 * (tints[0] + tints[1]), brightness + tints[1]]
    pixels: NDArray[np.uint8] = np.clip(np.stack(channels, axis=-1), 0, 255).astype(np.uint8)
    return pixels


def _noise(random: np.random.Generator) -> NDArray[np.float32]:
    """Noise of every scale, float32 of shape (height, width), standard deviation about 1."""
    shape = (PHOTO_FORMAT.height, PHOTO_FORMAT.width)
    total = np.zeros(shape, dtype=np.float32)
    cell = 256.0  # pixels of one grid cell
    while cell >= 1.0:
        grid = random.standard_normal(
            (max(2, round(shape[0] / cell)), max(2, round(shape[1] / cell))), dtype=np.float32
        )
        enlarged = Image.fromarray(grid).resize((shape[1], shape[0]), Image.Resampling.BICUBIC)
        total += np.asarray(enlarged) * np.float32(cell**_COARSE_WEIGHT)
        cell /= 2.0
    return total / _DEVIATION
