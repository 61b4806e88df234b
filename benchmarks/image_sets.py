"""The image sets that benchmarks read: which there are, what is done to their images, and where they lie.

Sets are made once and kept, below a directory of this user's in the system's temporary directory or where
``--data`` says. Making them is `experiments.data.digits`'s and :mod:`benchmarks.photos`'s.
"""

from __future__ import annotations

import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.photos import make_photos
from superdl.experiments.data import make_digits
from superdl.super_wire.errors import ConfigError

__all__ = ["IMAGE_SETS", "ImageSet", "data_directory", "prepare_images"]


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


IMAGE_SETS = {
    "digits": "64x64 JPEGs (scikit-learn's digits, training split)",
    "photos": "500x375 JPEGs of 110 KB (synthetic), resize 256, crop 224",
}


def prepare_images(name: str, directory: Path, photos: int) -> ImageSet:
    """Make the set if it is not there; ``photos`` is the number of images of the set of that name.

    Raises:
        ConfigError: there is no such set, or it cannot be written.
        SourceError: something else lies in its place.

    """
    if name == "digits":
        place, resize, crop = make_digits(directory / "digits") / "train", 64, 64
    elif name == "photos":
        place, resize, crop = make_photos(directory / f"photos-{photos}", photos) / "train", 256, 224
    else:
        raise ConfigError(f"an image set is one of {', '.join(IMAGE_SETS)}; not {name!r}")
    count = sum(1 for _ in place.glob("*/*.jpg"))
    return ImageSet(name, IMAGE_SETS[name], str(place.resolve()), count, resize, crop)


def data_directory(given: str | None) -> Path:
    """Where the sets lie.

    Raises:
        ConfigError: the default place belongs to somebody else.

    """
    if given is not None:
        return Path(given)
    default = Path(tempfile.gettempdir()) / f"superdl-bench-{os.getuid()}"
    default.mkdir(mode=0o700, exist_ok=True)
    found = default.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(f"{default} is not a directory of this user: name another one (--data)")
    return default
