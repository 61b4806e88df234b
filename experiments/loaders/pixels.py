"""From an image file's bytes to the pixels that the recipe gives, in the process that calls.

``recipe.resize`` and ``recipe.crop`` are done by Pillow as a torch user writes it, without the functions'
code, so that a fault in that shows as a difference. ``recipe.steps``, which may be random, are done by the
functions' own code: the same pixels for the same CPU time.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageOps

from superdl.super_wire.errors import BadSampleError, ConfigError

if TYPE_CHECKING:
    import numpy.typing as npt

    from superdl.experiments.spec_sections import RecipeSpec

__all__ = ["ImageMaker", "decode_image", "recipe_pixels"]

_CHANNELS = 3


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
        from superdl.lambda_prefetch.settings import Settings

        modules = Settings.from_environment().step_modules if recipe.steps is not None else frozenset()
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
        """What it was made from; a worker makes the rest anew."""
        return self._recipe, self._bucket, self._modules

    def __setstate__(self, state: tuple[RecipeSpec, str, frozenset[str]]) -> None:
        """Make the rest anew."""
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
        from superdl.lambda_prefetch.failures import SampleFailedError

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
