"""The image sets of the benchmarks: recipes, options, location and loading parameters."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superdl.experiments.data import MADE_SETS, make_digits, make_set

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def whole(text: str, least: int = 1) -> int:
    """Parse an option's integer. Raises ``ValueError`` if it is less than ``least``."""
    if (number := int(text)) < least:
        raise ValueError(text)
    return number


IMAGE_SETS = {
    "digits": "64x64 JPEGs (scikit-learn's digits, training split)",
    # Drawn, and as costly to decode as ImageNet's photographs.
    "photos": "500x375 JPEGs of 110 KB (synthetic), resize 256, crop 224",
}


@dataclass(frozen=True, slots=True)
class Loading:
    """An image set and its loading parameters."""

    name: str
    directory: str  # its images in class folders
    images: int
    resize: int  # of the shorter side, in pixels
    crop: int  # centre crop, in pixels
    batch_size: int = 1  # the last of an epoch may be shorter
    num_workers: int = 0  # processes that load besides the main one
    coordinator: str = ""  # address for SUPER; ignored by other loaders
    shards: str = ""  # location of tar shards in S3, to read those instead
    key_list: str = ""  # of the samples in the shards, for SUPER
    seed: int = 0  # of the shuffle

    def converted(self, name: str) -> Path:
        """Return the folder for the images in another loader's format, next to the set."""
        parent = Path(self.directory).parent
        return parent.with_name(f"{parent.name}-{self.resize}-{self.crop}-converted") / name


def add_option(parser: argparse.ArgumentParser, name: str, default: Any, text: str, **options: Any) -> None:
    """Add an option for names or positive numbers. The help ends with the default; a list takes several."""
    several = isinstance(default, list)
    shown = " ".join(map(str, default)) if several else default
    if "choices" not in options:
        options = {"type": whole, "metavar": "N", **options}
    parser.add_argument(
        name, default=default, nargs="+" if several else None, help=f"{text} (default: {shown})", **options
    )


def add_data_option(parser: argparse.ArgumentParser, *, photos: int) -> None:
    """Add the options for the number of photos and the location of sets."""
    add_option(parser, "--photos", photos, "number of images in the set photos")
    add_option(
        parser, "--data", "data/bench", "directory of the image sets", type=os.path.abspath, metavar="DIR"
    )


def prepare_images(name: str, arguments: argparse.Namespace, log: Callable[[str], None]) -> Loading:
    """Create the set in the options' directory unless it exists. ``log`` receives a line first."""
    log(f"preparing images: {name}")
    directory = Path(arguments.data)
    if name == "digits":
        train_dir, resize, crop = make_digits(directory / "digits") / "train", 64, 64
    else:
        made_set, count = MADE_SETS["imagenet-like"], arguments.photos
        train_dir = make_set(made_set, directory / f"{made_set.name}-{count}", samples=count) / "train"
        resize, crop = 256, 224
    count = sum(1 for _ in train_dir.glob("*/*"))
    return Loading(name, str(train_dir.resolve()), count, resize, crop)
