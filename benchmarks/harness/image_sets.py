"""The image sets that benchmarks read: which there are, their recipes, their options, where they lie, and how
they are loaded.

The digits and the photos are `experiments.data`'s. The photos are drawn JPEGs that cost what ImageNet's
photographs cost: 500x375 pixels and about 110 KB.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.options import positive
from superdl.experiments.data import MADE_SETS, make_digits, make_set

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable


__all__ = [
    "IMAGE_SETS",
    "Loading",
    "add_data_option",
    "add_image_options",
    "described",
    "prepare_images",
]

IMAGE_SETS = {
    "digits": "64x64 JPEGs (scikit-learn's digits, training split)",
    "photos": "500x375 JPEGs of 110 KB (synthetic), resize 256, crop 224",
}


@dataclass(frozen=True, slots=True)
class Loading:
    """An image set, and how it is loaded.

    Args:
        name: of the set.
        directory: its images in class folders.
        images: how many there are.
        resize: of the shorter side, in pixels.
        crop: centre crop, in pixels.
        batch_size: images of a batch; the last of an epoch may be shorter.
        num_workers: processes that load beside the main one.
        coordinator: SUPER's address; other loaders leave it alone.
        shards: where the images lie in tar shards in S3, if these are to be read.
        key_list: of the samples in the shards, for SUPER.
        seed: of the shuffle.

    """

    name: str
    directory: str
    images: int
    resize: int
    crop: int
    batch_size: int = 1
    num_workers: int = 0
    coordinator: str = ""
    shards: str = ""
    key_list: str = ""
    seed: int = 0

    def format_directory(self, name: str) -> Path:
        """Where the images lie in the format of that name: beside the set, one folder for each format."""
        place = Path(self.directory).parent
        return place.with_name(f"{place.name}-{self.resize}-{self.crop}-converted") / name


def described(sets: Iterable[Loading]) -> dict[str, Any]:
    """What a report's settings say of these sets, by their names."""
    return {loading.name: {"about": IMAGE_SETS[loading.name], "images": loading.images} for loading in sets}


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
        "--data",
        metavar="DIR",
        type=os.path.abspath,
        default="data/bench",
        help="where image sets are kept (data/bench)",
    )


def prepare_images(name: str, arguments: argparse.Namespace, say: Callable[[str], None]) -> Loading:
    """Make the set if it is not there, where the options say; ``say`` gets a line first.

    Raises:
        ConfigError: it cannot be written.
        SourceError: something else lies in its place.

    """
    say(f"preparing images: {name}")
    directory = Path(arguments.data)
    if name == "digits":
        place, resize, crop = make_digits(directory / "digits") / "train", 64, 64
    else:
        made, count = MADE_SETS["imagenet-like"], arguments.photos
        place = make_set(made, directory / f"{made.name}-{count}", samples=count) / "train"
        resize, crop = 256, 224
    count = sum(1 for _ in place.glob("*/*"))
    return Loading(name, str(place.resolve()), count, resize, crop)
