"""Loader arguments, batches and their metrics, and a source's samples as SUPER lists them."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import Image, ImageOps

from superdl.super_wire.errors import ConfigError, SourceNotFoundError
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
class WorkerMetrics:
    """Metrics of a batch decoded by a worker, without a cache."""

    batch_id: bytes  # identifies the samples and their order
    # Seconds are sums over the samples.
    fetch_s: float
    decode_s: float
    size_bytes: int
    read_s: float = 0.0
    hits: int = 0
    misses: int = 0
    # True for samples that only pad ranks to equal length. None means that there are none.
    padding: NDArray[np.bool_] | None = None


BatchMetrics: TypeAlias = "BatchInfo | WorkerMetrics"

# uint8 images [N, 3, H, W] in channels_last layout, int64 labels [N], and the metrics.
Batch: TypeAlias = "tuple[Tensor, Tensor, BatchMetrics]"


@dataclass(frozen=True, slots=True)
class LoaderRequest:
    """The arguments for opening a loader, which yields ``rank``'s share of each epoch."""

    source: Source
    recipe: RecipeSpec
    loader: LoaderSpec
    training: bool  # shuffle with the seed; otherwise, read in key order
    seed: int
    pin_memory: bool
    rank: int = 0  # the batch size is per rank
    replicas: int = 1
    converted: Path = Path("data/converted")  # where webdataset writes its tars
    # Receives progress messages.
    print_line: Callable[[str], object] = lambda _: None

    def worker_options(self) -> dict[str, Any]:
        """Return the DataLoader's options, which the report lists as settings."""
        return {
            "num_workers": self.loader.num_workers,
            "persistent_workers": self.loader.num_workers > 0,
            "pin_memory": self.pin_memory,
        }


Pixels: TypeAlias = "npt.NDArray[np.uint8]"  # of shape (height, width, 3)


@dataclass
class Samples:
    """The samples of a source, in key order. Instances can be pickled."""

    # s3://name with full keys, or file:// and the directory's real path with relative keys.
    bucket: str
    keys: list[str]
    labels: list[int]  # indices into classes
    classes: tuple[str, ...]
    fingerprint: bytes  # of the listing, with files' sizes and times
    # Sample ids are derived from this bucket and from keys without the prefix.
    id_bucket: str = ""
    prefix: str = ""

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, index: int) -> bytes:
        """Read one object.

        Raises:
            SourceNotFoundError: the object no longer exists.
            SourceForbiddenError: access is denied.
            SourceError: the read failed.
        """
        if not self.bucket.startswith("file://"):
            with source_failures(f"{self.bucket}/{self.keys[index]}"):
                return bytes(open_bucket(self.bucket).read(self.keys[index]))
        path = f"{self.bucket.removeprefix('file://')}/{self.keys[index]}"
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # a Path takes twice the time
                return file.read()
        except FileNotFoundError as error:
            raise SourceNotFoundError(f"{path} was removed after it was listed. Restart the run.") from error


def list_samples(source: Source, kind: str) -> Samples:
    """List a source's samples by its class folders or key list, for loader ``kind``.

    Raises:
        SourceError: the source cannot be listed; see `coordinator.catalog.lister.list_source`.
        ConfigError: the key list has labels other than class names, or lists members of objects.
    """
    from superdl.coordinator.catalog.lister import list_source

    key_list = source.key_list
    if key_list is not None and "://" not in key_list:
        key_list = str(Path(key_list).expanduser())
    catalog = list_source(source.url, key_list, classes=source.classes)
    labels = catalog.labels
    named = catalog.classes and catalog.label_dtype == "int64"
    if not named or not isinstance(labels, np.ndarray) or catalog.members is not None:
        raise ConfigError(
            f"loader.kind {kind} cannot read {source.key_list}: it supports only key lists of whole objects "
            "labelled with class names. Set loader.kind=super."
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
    """Decode a file to upright RGB, resize its shorter side, and crop it to shape (crop, crop, 3)."""
    # Written as a torch user would, without SUPER's own code, to reveal bugs there.
    with Image.open(io.BytesIO(content)) as opened:
        image = ImageOps.exif_transpose(opened).convert("RGB")
    width, height = image.size
    shorter = min(width, height)
    if shorter != resize:
        size = (int(resize * width / shorter), int(resize * height / shorter))
        image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = round((image.width - crop) / 2), round((image.height - crop) / 2)
    return np.asarray(image.crop((left, top, left + crop, top + crop)))
