"""The arguments of a loader, its batches and their figures, and a source's samples as listed by SUPER."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import Image, ImageOps

from superdl.super_wire.errors import BadSampleError, ConfigError, SourceNotFoundError
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
    """The arguments of a loader, which yields the share of ``rank`` in each epoch."""

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


_CHANNELS = 3
_SIZED = 64  # objects whose sizes are requested, if the listing has none


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

    def size_bytes(self) -> int:
        """Return the total size of all objects. For a bucket, estimate it from a few of them."""
        if not self.bucket.startswith("s3://"):
            root = Path(self.bucket.removeprefix("file://"))
            return sum((root / key).stat().st_size for key in self.keys)
        some = range(0, len(self), max(len(self) // _SIZED, 1))
        with source_failures(self.bucket):
            bucket = open_bucket(self.bucket)
            return sum(bucket.head(self.keys[index])[1] for index in some) * len(self) // len(some)


def list_samples(source: Source, kind: str) -> Samples:
    """List a source by its class folders or its key list, for loader ``kind``.

    Raises:
        SourceError: the source cannot be listed; see `coordinator.catalog.lister.list_source`.
        ConfigError: the labels of its key list are not class names.
    """
    from superdl.coordinator.catalog.lister import list_source

    key_list = source.key_list
    if key_list is not None and "://" not in key_list:
        key_list = str(Path(key_list).expanduser())
    naming = checked_naming(source.alias, source.versions)
    catalog = list_source(source.url, key_list, naming=naming, classes=source.classes)
    if not catalog.classes or not isinstance(catalog.labels, np.ndarray) or catalog.label_dtype != "int64":
        raise ConfigError(
            f"the labels in {source.key_list} are not class names, which loader.kind {kind} needs; "
            "set loader.kind=super"
        )
    if catalog.members is not None:
        raise ConfigError(
            f"{source.key_list} lists members of objects, but loader.kind {kind} reads only whole objects; "
            "set loader.kind=super"
        )
    keys = [key.decode() for key in catalog.keys]
    labels, named = catalog.labels.tolist(), (catalog.id_bucket, catalog.prefix)
    return Samples(catalog.bucket, keys, labels, catalog.classes, catalog.fingerprint, *named)


class ImageMaker:
    """A picklable maker of images by one recipe. The ids of ``samples`` seed random steps.

    Raises:
        RecipeError: ``recipe.steps`` is invalid.
        ConfigError: a custom step may not be imported here.
    """

    def __init__(self, recipe: RecipeSpec, samples: Samples) -> None:
        from superdl.lambda_prefetch.settings import FunctionSettings

        self._recipe = recipe
        self._bucket, self._id_bucket, self._prefix = samples.bucket, samples.id_bucket, samples.prefix
        self._modules: frozenset[str] = frozenset()
        self._epoch = -1
        self._program: Any = None
        if recipe.steps is not None:
            self._modules = FunctionSettings.from_environment().step_modules
            self._program_of(0)  # rejects an impossible recipe now, not in a worker

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the program, which a worker rebuilds."""
        return {**self.__dict__, "_epoch": -1, "_program": None}

    def __call__(self, content: bytes | memoryview, key: str, epoch: int) -> npt.NDArray[np.uint8]:
        """Return the pixels of one file: uint8 of shape (height, width, 3)."""
        if self._recipe.steps is not None:
            # The functions' own code: the same pixels for the same CPU time.
            return self._by_steps(content, key, epoch)
        try:
            return decode_image(content, resize=self._recipe.resize, crop=self._recipe.crop)
        except MemoryError:  # not the image's fault
            raise
        except Exception as error:  # Pillow raises anything on broken bytes
            raise BadSampleError(
                f"{self._bucket}/{key}: Pillow cannot decode it ({type(error).__name__}: {error})"
            ) from error

    def _by_steps(self, content: bytes | memoryview, key: str, epoch: int) -> npt.NDArray[np.uint8]:
        from superdl.lambda_prefetch.sources import SampleFailedError

        try:
            pixels: Any = self._program_of(epoch).make(bytes(content), key)
        except SampleFailedError as failure:
            raise BadSampleError(f"{self._bucket}/{key}: {failure.message}") from failure
        if isinstance(pixels, dict):
            raise ConfigError("recipe.steps produce several arrays, but models here take a single image")
        if pixels.dtype != np.uint8 or pixels.ndim != _CHANNELS or pixels.shape[2] != _CHANNELS:
            raise ConfigError(
                f"recipe.steps produce {pixels.dtype} of shape {pixels.shape}, but models here take uint8 "
                "of shape (height, width, 3)"
            )
        image: npt.NDArray[np.uint8] = pixels
        return image

    def _program_of(self, epoch: int) -> Any:
        if self._epoch != epoch:
            from superdl.lambda_prefetch.transforms import Program
            from superdl.super_wire.recipe import Recipe
            from superdl.super_wire.request import Limits

            self._program = Program(
                Recipe(self._recipe.steps or (), augment_seed=self._recipe.augment_seed),
                bucket=self._id_bucket,
                prefix=self._prefix,
                epoch=epoch,
                limit_pixels=Limits().image_pixels,
                step_modules=self._modules,
            )
            self._epoch = epoch
        return self._program


def decode_image(content: bytes | memoryview, *, resize: int, crop: int) -> npt.NDArray[np.uint8]:
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
