"""The image sets that benchmarks read: which there are, their recipes, their options, and where they lie.

The digits are `experiments.data`'s. The photos are drawn here: JPEGs that cost what ImageNet's photographs
cost, 500x375 pixels and about 110 KB. What a JPEG costs to decode depends on its pixels and coded bytes, not
on what it shows. So an image is noise of many scales, strong in the coarse ones and weak in the fine ones as
in photographs; colours vary less than brightness.
"""

from __future__ import annotations

import io
import os
import stat
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from benchmarks.command import positive
from benchmarks.loading import Loading
from superdl.experiments.data import make_digits
from superdl.experiments.data.whole_directory import written_once
from superdl.super_wire.errors import ConfigError, SourceError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = [
    "IMAGE_SETS",
    "PHOTO_FORMAT",
    "ImageSet",
    "add_data_option",
    "add_image_options",
    "data_directory",
    "make_photos",
    "photo_jpeg",
    "prepare_images",
]

IMAGE_SETS = {
    "digits": "64x64 JPEGs (scikit-learn's digits, training split)",
    "photos": "500x375 JPEGs of 110 KB (synthetic), resize 256, crop 224",
}
_COARSE_WEIGHT = 0.28  # amplitude grows with the scale to this power; chosen for the file size
_DEVIATION = np.float32(6.73)  # of the summed noise, on average; one for all, so that sizes differ little


@dataclass(frozen=True, slots=True)
class ImageSet:
    """Images in class folders, and their recipe: shorter side ``resize``, centre ``crop``, in pixels."""

    name: str
    about: str
    directory: str
    images: int
    resize: int
    crop: int

    @property
    def converted(self) -> str:
        """Beside the set: where other loaders' formats of its images lie."""
        place = Path(self.directory).parent
        return str(place.with_name(f"{place.name}-{self.resize}-{self.crop}-converted"))

    def loading(self, *, batch_size: int, num_workers: int, **options: Any) -> Loading:
        """How this set is loaded; ``options`` are the other fields of `Loading`."""
        return Loading(
            directory=self.directory,
            converted=self.converted,
            resize=self.resize,
            crop=self.crop,
            batch_size=batch_size,
            num_workers=num_workers,
            **options,
        )

    def described(self) -> dict[str, Any]:
        """What a report's settings say of it, by its name."""
        return {self.name: {"about": self.about, "images": self.images}}


def add_image_options(parser: argparse.ArgumentParser, *, photos: int) -> None:
    """Add the options of a benchmark that reads one image set, with so many photos unless told otherwise."""
    parser.add_argument("--images", choices=IMAGE_SETS, default="photos", help="image set (photos)")
    add_data_option(parser, photos=photos)


def add_data_option(parser: argparse.ArgumentParser, *, photos: int) -> None:
    """Add the options that say how many photos there are and where sets lie."""
    parser.add_argument(
        "--photos", type=positive, default=photos, help=f"images of the set photos ({photos})"
    )
    parser.add_argument(
        "--data", metavar="DIR", help="where image sets are kept (below the temporary directory)"
    )


def prepare_images(name: str, arguments: argparse.Namespace, say: Callable[[str], None]) -> ImageSet:
    """Make the set if it is not there, where the options say; ``say`` gets a line first.

    Raises:
        ConfigError: it cannot be written.
        SourceError: something else lies in its place.

    """
    say(f"preparing images: {name}")
    directory = data_directory(arguments.data)
    if name == "digits":
        place, resize, crop = make_digits(directory / "digits") / "train", 64, 64
    else:
        photos = make_photos(directory / f"photos-{arguments.photos}", arguments.photos)
        place, resize, crop = photos / "train", 256, 224
    count = sum(1 for _ in place.glob("*/*.jpg"))
    return ImageSet(name, IMAGE_SETS[name], str(place.resolve()), count, resize, crop)


def data_directory(named: str | None) -> Path:
    """Where the sets lie: the directory that is named, or one of this user's.

    Raises:
        ConfigError: the default place belongs to somebody else.

    """
    if named is not None:
        return Path(named)
    default = Path(tempfile.gettempdir()) / f"superdl-bench-{os.getuid()}"
    default.mkdir(mode=0o700, exist_ok=True)
    found = default.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(f"{default} is not a directory of this user: name another one (--data)")
    return default


# -------------------------------------------------------------------------------------------- photos


@dataclass(frozen=True, slots=True)
class PhotoFormat:
    """What decides the photos; stored in the set's manifest and compared when the set is reused."""

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


def make_photos(directory: Path, count: int) -> Path:
    """Write ``count`` photos below ``directory`` as ``train/00..09/NNNNN.jpg``, unless they are there.

    Raises:
        SourceError: the directory holds something else, or the images came out too small or too large.
        ConfigError: the directory cannot be written.

    """
    target = directory.expanduser().absolute()
    manifest = {**asdict(PHOTO_FORMAT), "count": count}

    def fill(staging: Path) -> None:
        for index in range(count):
            folder = staging / "train" / f"{index % PHOTO_FORMAT.classes:02d}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{index:05d}.jpg").write_bytes(_checked(index, photo_jpeg(index)))

    written_once(target, manifest, f"the {count} images of this version", fill)
    return target


def photo_jpeg(index: int) -> bytes:
    """The ``index``-th photo, encoded; the same for the same numpy and Pillow."""
    random = np.random.default_rng([PHOTO_FORMAT.seed, index])
    brightness = 128.0 + 46.0 * _noise(random)
    tints = [18.0 * _noise(random) for _ in range(2)]
    channels = [brightness + tints[0], brightness - 0.5 * (tints[0] + tints[1]), brightness + tints[1]]
    pixels = np.clip(np.stack(channels, axis=-1), 0, 255).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=PHOTO_FORMAT.jpeg_quality)
    return content.getvalue()


def _checked(index: int, content: bytes) -> bytes:
    if not PHOTO_FORMAT.bytes_min <= len(content) <= PHOTO_FORMAT.bytes_max:
        raise SourceError(
            f"image {index} came out with {len(content):,} bytes, not {PHOTO_FORMAT.bytes_min:,} to "
            f"{PHOTO_FORMAT.bytes_max:,}: this Pillow encodes otherwise; adjust PHOTO_FORMAT.jpeg_quality"
        )
    return content


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
