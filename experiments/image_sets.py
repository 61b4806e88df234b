"""The image sets that ``superdl data make`` generates, and the published sets that they resemble."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

SPLITS = ("train", "val")
_FILE_BLOCK_BYTES = 4096  # files occupy whole blocks, which matters for small ones


@dataclass(frozen=True, slots=True)
class MadeSet:
    """A generated image set with class folders ``train/<class>/`` and ``val/<class>/``."""

    name: str
    about: str
    classes: int
    # Image counts of the full set, and of the training split in its small variant.
    train: int
    val: int
    quick: int
    # (width, height) in pixels. Each picture has one of these sizes.
    sizes: tuple[tuple[int, int], ...]
    extension: str
    image_bytes: int  # mean size of a file
    quality: int = 90
    grey: bool = False
    contrast: float = 1.0  # of the texture; a lower one is harder to learn
    # Shares of a set of RGB pictures. With grey, all are greyscale.
    grey_share: float = 0.0
    cmyk_share: float = 0.0

    def counts(self, samples: int | None = None) -> dict[str, int]:
        """Return the image count of each split. ``samples`` overrides ``train``. Raises ConfigError."""
        if samples is None:
            return {"train": self.train, "val": self.val}
        if samples < self.classes:
            raise ConfigError(
                f"cannot draw {self.classes} classes of {self.name} with {samples} training images. Use "
                f"{self.classes} or more."
            )
        return {"train": samples, "val": max(self.classes, round(samples * self.val / self.train))}

    def disk_bytes(self, pictures: int) -> int:
        """Estimate the disk space, in bytes, that ``pictures`` images need."""
        blocks = -(-self.image_bytes // _FILE_BLOCK_BYTES)
        # Sizes vary, so files larger than a block waste another half a block on average.
        return round(pictures * (blocks + (0.5 if blocks > 1 else 0.0)) * _FILE_BLOCK_BYTES)

    def class_name(self, label: int) -> str:
        """Return a class's folder name, zero-padded so that names sort in numeric order."""
        return f"{label:0{len(str(self.classes - 1))}d}"


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """A published set. Users download it and unpack it into ``folder`` or a directory of their choice."""

    name: str
    folder: str
    layout: str
    like: str


_PHOTO_SIZES = ((500, 375), (375, 500), (500, 333), (640, 480))

MADE_SETS: Mapping[str, MadeSet] = {
    made_set.name: made_set
    for made_set in (
        MadeSet(
            name="tiny-imagenet-like",
            about="200 classes of 64x64 JPEGs, 1.8% of them greyscale",
            classes=200, train=100_000, val=10_000, quick=4_000,
            sizes=((64, 64),), extension="JPEG", image_bytes=2_200, quality=84, grey_share=0.018,
        ),
        MadeSet(
            name="imagenet-like",
            about="100 classes of 500x375 JPEGs of about 110 KB, 1.8% greyscale, some CMYK",
            classes=100, train=12_800, val=1_300, quick=1_000,
            sizes=((500, 375),), extension="JPEG", image_bytes=110_000, quality=98,
            grey_share=0.018, cmyk_share=0.002,
        ),
        MadeSet(
            name="cifar10-like",
            about="10 classes of 32x32 PNGs",
            classes=10, train=50_000, val=10_000, quick=2_000,
            sizes=((32, 32),), extension="png", image_bytes=2_600,
        ),
        MadeSet(
            name="mnist-like",
            about="10 classes of 28x28 greyscale PNGs",
            classes=10, train=60_000, val=10_000, quick=2_000,
            sizes=((28, 28),), extension="png", image_bytes=750, grey=True,
        ),
        MadeSet(
            name="two-class-like",
            about="2 classes of photo-sized JPEGs, in several sizes, portrait and landscape",
            classes=2, train=244, val=153, quick=60,
            sizes=_PHOTO_SIZES, extension="jpg", image_bytes=91_000, quality=95, contrast=0.5,
            grey_share=0.018,
        ),
    )
}  # fmt: skip

_FROM_ARRAYS = (
    "train/<class>/*.png, test/<class>/*.png; published as arrays, so save each image as a PNG file, as in "
    "docs/runs.md"
)
PUBLISHED_SETS: Mapping[str, PublishedSet] = {
    name: PublishedSet(name, folder, layout, like)
    for name, folder, layout, like in (
        (
            "tiny-imagenet",
            "tiny-imagenet-200",
            "train/<wnid>/images/*.JPEG, val/images/*.JPEG with val/val_annotations.txt",
            "tiny-imagenet-like",
        ),
        ("imagenet", "imagenet", "train/<wnid>/*.JPEG, val/<wnid>/*.JPEG", "imagenet-like"),
        ("cifar10", "cifar10", _FROM_ARRAYS, "cifar10-like"),
        ("mnist", "mnist", _FROM_ARRAYS, "mnist-like"),
        ("hymenoptera", "hymenoptera_data", "train/<class>/*.jpg, val/<class>/*.jpg", "two-class-like"),
    )
}


def default_directory(made: MadeSet, samples: int | None, seed: int = 0) -> Path:
    """Return the default directory for a set with this size and seed."""
    name = made.name
    if samples is not None and samples != made.train:
        name += f"-{samples}"
    if seed:
        name += f"-seed{seed}"
    return Path("data") / name
