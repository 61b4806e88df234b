"""What the loaders that decode by themselves read: a source's samples, listed as SUPER's coordinator does it.

So classes, labels and key order are those of SUPER, whichever loader is compared with it.

Decoding is in the process that calls. ``recipe.resize`` and ``recipe.crop`` are done by Pillow as a torch
user writes it, without the functions' code, so that a fault in that shows as a difference. ``recipe.steps``,
which may be random, are done by the functions' own code: the same pixels for the same CPU time.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps

from superdl.super_wire.errors import BadSampleError, ConfigError, SourceNotFoundError

if TYPE_CHECKING:
    import numpy.typing as npt

    from superdl.experiments.data import Source
    from superdl.experiments.spec import RecipeSpec

__all__ = ["ImageMaker", "Samples", "decode_image", "list_samples", "recipe_pixels"]

_CHANNELS = 3
_SIZED = 64  # objects whose size is asked for, where the listing does not tell it


class Samples:
    """The samples of a source in key order; it pickles, and each process that reads has its own connections.

    ``bucket`` and ``keys`` are those of sample ids: ``s3://name`` with full object keys, or ``file://`` and
    the directory's absolute real path with paths below it. ``labels`` are places in ``classes``.
    ``fingerprint`` is of all that the listing told, sizes and modification times of files with it.
    """

    def __init__(
        self, bucket: str, keys: list[str], labels: list[int], classes: tuple[str, ...], fingerprint: bytes
    ) -> None:
        self.bucket = bucket
        self.keys = keys
        self.labels = labels
        self.classes = classes
        self.fingerprint = fingerprint
        # Any: boto3 makes its clients' methods at run time. The process that made it is beside it.
        self._made: tuple[int, Any] | None = None

    def __len__(self) -> int:
        """How many there are."""
        return len(self.keys)

    def __getstate__(self) -> dict[str, Any]:
        """All but the connections."""
        return {**self.__dict__, "_made": None}

    def read(self, index: int) -> bytes:
        """The bytes of one object.

        Raises:
            SourceNotFoundError: it is gone.
            SourceForbiddenError: it may not be read.
            SourceError: the store did not give it.

        """
        if self.bucket.startswith("s3://"):
            return self._read_object(self.keys[index])
        path = f"{self.bucket.removeprefix('file://')}/{self.keys[index]}"
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # half the time of a Path
                return file.read()
        except FileNotFoundError as error:
            raise SourceNotFoundError(f"{path} is gone since it was listed; start the run again") from error

    def _read_object(self, key: str) -> bytes:
        from superdl.coordinator.catalog.s3_client import s3_failures

        with s3_failures(f"{self.bucket}/{key}"):
            answer = self._client().get_object(Bucket=self.bucket.removeprefix("s3://"), Key=key)
            with answer["Body"] as body:
                content: bytes = body.read()
        return content

    def size_bytes(self) -> int:
        """Bytes of all objects; of a bucket, about, from a few of them."""
        if not self.bucket.startswith("s3://"):
            root = Path(self.bucket.removeprefix("file://"))
            return sum((root / key).stat().st_size for key in self.keys)
        some = self.keys[:: max(len(self.keys) // _SIZED, 1)]
        name = self.bucket.removeprefix("s3://")
        sizes = [int(self._client().head_object(Bucket=name, Key=key)["ContentLength"]) for key in some]
        return sum(sizes) * len(self.keys) // len(sizes)

    def _client(self) -> Any:
        """This process's client, made when it is first needed."""
        if self._made is None or self._made[0] != os.getpid():
            from superdl.coordinator.catalog.s3_client import make_s3_client

            self._made = os.getpid(), make_s3_client()
        return self._made[1]


def list_samples(source: Source, kind: str) -> Samples:
    """List a source by its class folders or its key list.

    Args:
        source: what to list.
        kind: the loader that asks, for messages.

    Raises:
        SourceError: it cannot be listed; as `coordinator.catalog.lister.list_source` says.
        ConfigError: the labels of its key list are no class names.

    """
    from superdl.coordinator.catalog.lister import list_source

    catalog = list_source(source.url, _expanded(source.key_list))
    if not catalog.classes:
        raise ConfigError(
            f"the labels in {source.key_list} are numbers, and loader.kind {kind} takes class names alone; "
            "set loader.kind=super"
        )
    keys = [key.decode() for key in catalog.keys]
    return Samples(catalog.bucket, keys, catalog.labels.tolist(), catalog.classes, catalog.fingerprint)


def _expanded(key_list: str | None) -> str | None:
    if key_list is None or "://" in key_list:
        return key_list
    return str(Path(key_list).expanduser())


class ImageMaker:
    """Makes images by one recipe; it pickles.

    Args:
        recipe: what to do.
        bucket: of the samples, which names them for random steps.

    Raises:
        RecipeError: ``recipe.steps`` are none.
        ConfigError: a custom step may not be imported here.

    """

    def __init__(self, recipe: RecipeSpec, bucket: str) -> None:
        from superdl.lambda_prefetch.settings import FunctionSettings

        modules = (
            FunctionSettings.from_environment().step_modules if recipe.steps is not None else frozenset()
        )
        self._set_up(recipe, bucket, modules)
        if recipe.steps is not None:
            self._program_of(0)  # a recipe that cannot be is refused now, not in a worker

    def _set_up(self, recipe: RecipeSpec, bucket: str, modules: frozenset[str]) -> None:
        self._recipe = recipe
        self._bucket = bucket
        self._modules = modules
        self._epoch = -1
        self._program: Any = None

    def __getstate__(self) -> tuple[RecipeSpec, str, frozenset[str]]:
        """What it was made from; a worker makes the rest again."""
        return self._recipe, self._bucket, self._modules

    def __setstate__(self, state: tuple[RecipeSpec, str, frozenset[str]]) -> None:
        """Make the rest again."""
        self._set_up(*state)

    def __call__(self, content: bytes | memoryview, key: str, epoch: int) -> npt.NDArray[np.uint8]:
        """The pixels of one file: uint8 of shape (height, width, 3).

        Raises:
            BadSampleError: it cannot be decoded; the message names bucket and key.
            ConfigError: ``recipe.steps`` give something else than such pixels.

        """
        if self._recipe.steps is None:
            try:
                return decode_image(content, resize=self._recipe.resize, crop=self._recipe.crop)
            except MemoryError:
                raise
            except Exception as error:  # broken bytes make Pillow's decoders raise anything
                raise BadSampleError(
                    f"{self._bucket}/{key}: Pillow cannot decode it: {type(error).__name__}: {error}"
                ) from error
        return self._by_steps(content, key, epoch)

    def _by_steps(self, content: bytes | memoryview, key: str, epoch: int) -> npt.NDArray[np.uint8]:
        from superdl.lambda_prefetch.sources import SampleFailedError

        try:
            pixels = self._program_of(epoch).make(bytes(content), key)
        except SampleFailedError as failure:
            raise BadSampleError(f"{self._bucket}/{key}: {failure.why}") from failure
        if pixels.dtype != np.uint8 or pixels.ndim != _CHANNELS or pixels.shape[2] != _CHANNELS:
            raise ConfigError(
                f"recipe.steps give {pixels.dtype} of shape {pixels.shape}; a model here is fed uint8 of "
                "shape (height, width, 3)"
            )
        made: npt.NDArray[np.uint8] = pixels
        return made

    def _program_of(self, epoch: int) -> Any:
        if self._epoch != epoch:
            from superdl.lambda_prefetch.transforms import Program
            from superdl.super_wire.recipe import Recipe
            from superdl.super_wire.request import Limits

            self._program = Program(
                Recipe(self._recipe.steps or (), augment_seed=self._recipe.augment_seed),
                bucket=self._bucket,
                epoch=epoch,
                limit_pixels=Limits().image_pixels,
                step_modules=self._modules,
            )
            self._epoch = epoch
        return self._program


def decode_image(content: bytes | memoryview, *, resize: int, crop: int) -> npt.NDArray[np.uint8]:
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
