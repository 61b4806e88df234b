"""The arguments of a loader, its batches and their figures, and a source's samples as listed by SUPER."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import Image, ImageOps

from superdl.super_wire.errors import ConfigError, SourceNotFoundError
from superdl.super_wire.ids import checked_naming
from superdl.super_wire.objects import open_bucket, source_failures

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from numpy.typing import NDArray
    from torch import Tensor

    from superdl.experiments.data import Source
    from superdl.experiments.spec import LoaderSpec, RecipeSpec
    from superdl.super_dataset import BatchInfo


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """A worker's measurements while it made a batch without a cache."""

    batch_id: bytes  # identifies the samples and their order
    # Seconds are sums over the samples.
    fetch_s: float
    decode_s: float
    size_bytes: int
    read_s: float = 0.0
    hits: int = 0
    misses: int = 0
    # Marks samples that only make ranks equally long; None: there are none.
    padding: NDArray[np.bool_] | None = None


BatchFigures: TypeAlias = "BatchInfo | WorkerFigures"

# uint8 images [N, 3, H, W] in channels_last layout, int64 labels [N], and the figures.
Batch: TypeAlias = "tuple[Tensor, Tensor, BatchFigures]"


@dataclass(frozen=True, slots=True)
class LoaderRequest:
    """Arguments for a loader that yields ``rank``'s share of each epoch."""

    source: Source
    recipe: RecipeSpec
    loader: LoaderSpec
    training: bool  # shuffled by the seed, else in key order
    seed: int
    pin_memory: bool
    # One of replicas. The batch size is per rank.
    rank: int = 0
    replicas: int = 1
    converted: Path = Path("data/converted")  # images of loaders with their own format
    # Receives a message when those are written.
    print_line: Callable[[str], object] = lambda _: None

    def worker_options(self) -> dict[str, Any]:
        """Return the options of a DataLoader, which the report also lists as settings."""
        return {
            "num_workers": self.loader.num_workers,
            "persistent_workers": self.loader.num_workers > 0,
            "pin_memory": self.pin_memory,
        }


Pixels: TypeAlias = "npt.NDArray[np.uint8]"  # of shape (height, width, 3)


@dataclass
class Samples:
    """The samples of a source in key order, which can be pickled."""

    # s3://name with full keys, or file:// and the directory's real path with paths below it.
    bucket: str
    keys: list[str]
    labels: list[int]  # indices into classes
    classes: tuple[str, ...]
    fingerprint: bytes  # of the listing, with files' sizes and times
    # Sample ids use this bucket, and keys without the prefix.
    id_bucket: str = ""
    prefix: str = ""

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, index: int) -> bytes:
        """Read one object.

        Raises:
            SourceNotFoundError: the object no longer exists.
            SourceForbiddenError: access is denied.
            SourceError: the store did not deliver it.
        """
        if self.bucket.startswith("s3://"):
            with source_failures(f"{self.bucket}/{self.keys[index]}"):
                return bytes(open_bucket(self.bucket).read(self.keys[index]))
        path = f"{self.bucket.removeprefix('file://')}/{self.keys[index]}"
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # a Path takes twice the time
                return file.read()
        except FileNotFoundError as error:
            raise SourceNotFoundError(f"{path} was removed after it was listed; restart the run") from error


def list_samples(source: Source, kind: str) -> Samples:
    """List a source by its class folders or its key list, for loader ``kind``.

    Raises:
        SourceError: the source cannot be listed; see `coordinator.catalog.lister.list_source`.
        ConfigError: the labels of its key list are not class names, or it lists members of objects.
    """
    from superdl.coordinator.catalog.lister import list_source

    key_list = source.key_list
    if key_list is not None and "://" not in key_list:
        key_list = str(Path(key_list).expanduser())
    naming = checked_naming(source.alias, source.versions)
    catalog = list_source(source.url, key_list, naming=naming, classes=source.classes)
    labels = catalog.labels
    named = catalog.classes and catalog.label_dtype == "int64"
    if not named or not isinstance(labels, np.ndarray) or catalog.members is not None:
        raise ConfigError(
            f"loader.kind {kind} needs a key list of whole objects whose labels are class names, which "
            f"{source.key_list} is not: set loader.kind=super"
        )
    keys = [key.decode() for key in catalog.keys]
    return Samples(
        catalog.bucket,
        keys,
        labels.tolist(),
        catalog.classes,
        catalog.fingerprint,
        catalog.id_bucket,
        catalog.prefix,
    )


def decode_image(content: bytes | memoryview, *, resize: int, crop: int) -> Pixels:
    """Decode a file to upright RGB of shape (crop, crop, 3), after resizing its shorter side."""
    # As a torch user would, without the functions' code, so that a bug there shows.
    with Image.open(io.BytesIO(content)) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
    width, height = image.size
    shorter = min(width, height)
    if shorter != resize:
        size = (int(resize * width / shorter), int(resize * height / shorter))
        image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = round((image.width - crop) / 2), round((image.height - crop) / 2)
    return np.asarray(image.crop((left, top, left + crop, top + crop)))
