"""The plain way: a map-style dataset that decodes files with Pillow inside DataLoader workers.

The baseline that SUPER is measured against, and the loader that tests train with. It gives the pixels that
the recipe gives (shorter side, bilinear, antialiased; centre crop), but imports nothing of the functions
that produce those.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset

from experiments.records import JobCounters
from super_wire.errors import ConfigError, SourceEmptyError, SourceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from torch import Tensor

    from experiments.loaders.interface import Batch, Loader, LoaderRequest

__all__ = ["FolderImages", "TorchBatchFigures", "decode_image", "open_torch", "recipe_pixels"]

_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # ImageFolder's


@dataclass(frozen=True, slots=True)
class TorchBatchFigures:
    """What a worker measured while it made one batch; there is no cache to read, hit or miss."""

    batch_id: bytes
    fetch_s: float
    decode_s: float
    size_bytes: int
    read_s: float = 0.0
    hits: int = 0
    misses: int = 0


@dataclass(frozen=True, slots=True)
class _Item:
    pixels: npt.NDArray[np.uint8]  # [crop, crop, 3]
    label: int
    key: str
    fetch_s: float
    decode_s: float


class FolderImages(Dataset[_Item]):
    """The images below a directory; the first folder is the class, as in torchvision's ImageFolder.

    Or those that a key list names, a CSV file with the columns key and label, where labels are class names.
    """

    def __init__(self, directory: Path, *, resize: int, crop: int, key_list: Path | None = None) -> None:
        """List the files.

        Raises:
            SourceNotFoundError: there is no such directory or key list.
            SourceEmptyError: it has no class folder with an image.
            ConfigError: the key list has other columns.

        """
        if not directory.is_dir():
            raise SourceNotFoundError(f"there is no directory {directory}")
        self._directory = directory
        self._resize = resize
        self._crop = crop
        if key_list is not None:
            rows = sorted(_rows(key_list), key=lambda row: os.fsencode(row[0]))
            self.classes = tuple(sorted({label for _, label in rows}))
            number_of = {name: label for label, name in enumerate(self.classes)}
            self._files = [(key, number_of[label]) for key, label in rows]
            return
        self.classes = tuple(sorted(entry.name for entry in directory.iterdir() if entry.is_dir()))
        self._files = [
            (str(path.relative_to(directory)), label)
            for label, name in enumerate(self.classes)
            for path in sorted((directory / name).rglob("*"), key=os.fsencode)
            if path.suffix.lower() in _EXTENSIONS and path.is_file()
        ]
        if not self._files:
            raise SourceEmptyError(f"no class folder below {directory} holds an image")

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._files)

    def __getitem__(self, index: int) -> _Item:
        """Read and decode one image."""
        key, label = self._files[index]
        start = time.perf_counter()
        content = (self._directory / key).read_bytes()
        fetched = time.perf_counter()
        pixels = decode_image(content, resize=self._resize, crop=self._crop)
        return _Item(pixels, label, key, fetched - start, time.perf_counter() - fetched)


def _rows(key_list: Path) -> list[tuple[str, str]]:
    """Key and label of each row."""
    try:
        with key_list.open(newline="", encoding="utf-8-sig") as file:
            rows = [(row["key"], row["label"]) for row in csv.DictReader(file)]
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"there is no key list {key_list}") from error
    except KeyError as error:
        raise ConfigError(
            f"the key list {key_list} has no column {error}; loader.kind torch needs it"
        ) from error
    for key, label in rows:
        if not key or not {"", ".", ".."}.isdisjoint(key.split("/")):
            raise ConfigError(f"the key {key!r} of {key_list} is not a path below the source")
        if not label or (label.isascii() and label.lstrip("+-").isdigit()):
            raise ConfigError(
                f"the label {label!r} in {key_list} is no class name, which loader.kind torch takes alone; "
                "set loader.kind=super"
            )
    return rows


def decode_image(content: bytes, *, resize: int, crop: int) -> npt.NDArray[np.uint8]:
    """Decode one image file; gives what :func:`recipe_pixels` gives."""
    with Image.open(io.BytesIO(content)) as image:
        return recipe_pixels(image, resize=resize, crop=crop)


def recipe_pixels(image: Image.Image, *, resize: int, crop: int) -> npt.NDArray[np.uint8]:
    """Upright RGB of shape (crop, crop, 3), its shorter side resized before."""
    upright = ImageOps.exif_transpose(image).convert("RGB")
    return np.asarray(_centre_crop(_resize_shorter(upright, resize), crop))


def _resize_shorter(image: Image.Image, size: int) -> Image.Image:
    width, height = image.size
    if min(width, height) == size:
        return image
    if width < height:
        return image.resize((size, int(size * height / width)), Image.Resampling.BILINEAR)
    return image.resize((int(size * width / height), size), Image.Resampling.BILINEAR)


def _centre_crop(image: Image.Image, size: int) -> Image.Image:
    left = round((image.width - size) / 2)
    top = round((image.height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def _collate(items: list[_Item]) -> tuple[Tensor, Tensor, TorchBatchFigures]:
    pixels = torch.from_numpy(np.stack([item.pixels for item in items]))
    labels = torch.tensor([item.label for item in items], dtype=torch.int64)
    figures = TorchBatchFigures(
        batch_id=hashlib.blake2b("\0".join(item.key for item in items).encode(), digest_size=16).digest(),
        fetch_s=sum(item.fetch_s for item in items),
        decode_s=sum(item.decode_s for item in items),
        size_bytes=pixels.numel(),
    )
    return pixels.permute(0, 3, 1, 2), labels, figures


def open_torch(request: LoaderRequest) -> Loader:
    """Open a split of a local directory.

    Raises:
        ConfigError: the source is not a directory, or its key list no local CSV file of class names.

    """
    directory, key_list = request.source.local_directory, request.source.local_key_list
    if directory is None or (request.source.key_list is not None and key_list is None):
        raise ConfigError(
            f"loader.kind torch reads a local directory only, by class folders or a local .csv key list, not "
            f"{request.source.url}"
            f"{f' with {request.source.key_list}' if request.source.key_list else ''}; set loader.kind=super",
        )
    if request.recipe.steps is not None:
        raise ConfigError("loader.kind torch does not know recipe.steps yet; set loader.kind=super")
    dataset = FolderImages(
        directory, resize=request.recipe.resize, crop=request.recipe.crop, key_list=key_list
    )
    batches: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=request.loader.batch_size,
        shuffle=request.training,
        generator=torch.Generator().manual_seed(request.seed),
        num_workers=request.loader.num_workers,
        persistent_workers=request.loader.num_workers > 0,
        pin_memory=request.pin_memory,
        collate_fn=_collate,
    )
    return _TorchLoader(dataset, batches)


class _TorchLoader:
    """A dataset and the DataLoader over it; what its workers decode is counted as a job's functions are."""

    def __init__(self, dataset: FolderImages, batches: DataLoader[Any]) -> None:
        self._dataset = dataset
        self._batches: DataLoader[Any] | None = batches
        self._fetch_s = 0.0
        self._decode_s = 0.0
        self._samples = 0

    @property
    def classes(self) -> Sequence[str]:
        return self._dataset.classes

    @property
    def sample_count(self) -> int:
        return len(self._dataset)

    def __len__(self) -> int:
        return 0 if self._batches is None else len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        if self._batches is None:
            raise RuntimeError("the loader is closed")
        for images, labels, figures in self._batches:
            self._fetch_s += figures.fetch_s
            self._decode_s += figures.decode_s
            self._samples += len(labels)
            yield images, labels, figures

    def job_stats(self) -> JobCounters:
        return JobCounters(fetch_s=self._fetch_s, decode_s=self._decode_s, samples_produced=self._samples)

    def close(self) -> None:
        self._batches = None  # the last reference: persistent workers end with it
