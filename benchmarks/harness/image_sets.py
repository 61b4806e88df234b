"""The benchmarks' image sets: their recipes, options, locations and loading parameters."""

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
    """Parse an integer option. Raise ``ValueError`` if it is less than ``least``."""
    if (number := int(text)) < least:
        raise ValueError(text)
    return number


IMAGE_SETS = {
    "digits": "64x64 JPEGs (scikit-learn's digits, training split)",
    # Generated, but as costly to decode as ImageNet's photographs.
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
    batch_size: int = 1  # an epoch's last batch may be smaller
    num_workers: int = 0  # loader processes besides the main one
    coordinator: str = ""  # address for SUPER; ignored by other loaders
    shards: str = ""  # location of tar shards in S3, to read those instead
    key_list: str = ""  # of the samples in the shards, for SUPER
    seed: int = 0  # of the shuffle

    def converted(self, name: str) -> Path:
        """Return the sibling folder that holds the set's images converted to the format ``name``."""
        parent = Path(self.directory).parent
        return parent.with_name(f"{parent.name}-{self.resize}-{self.crop}-converted") / name


def add_option(parser: argparse.ArgumentParser, name: str, default: Any, text: str, **options: Any) -> None:
    """Add an option for names or positive numbers. A list default allows several; the help shows it."""
    several = isinstance(default, list)
    shown = " ".join(map(str, default)) if several else default
    if "choices" not in options:
        options = {"type": whole, "metavar": "N", **options}
    parser.add_argument(
        name, default=default, nargs="+" if several else None, help=f"{text} (default: {shown})", **options
    )


def add_data_option(parser: argparse.ArgumentParser, *, photos: int) -> None:
    """Add the options for the number of photos and the directory of the image sets."""
    add_option(parser, "--photos", photos, "number of images in the set photos")
    add_option(
        parser, "--data", "data/bench", "directory of the image sets", type=os.path.abspath, metavar="DIR"
    )


def prepare_images(name: str, arguments: argparse.Namespace, log: Callable[[str], None]) -> Loading:
    """Log a line, create the image set in ``--data`` unless it exists, and return its loading parameters."""
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
