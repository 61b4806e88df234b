"""``PerSample``: a transform for one image, as torchvision, timm and albumentations have them, on a batch.

Such transforms draw from the global generators of Python, numpy and torch. These are set before each sample
and put back after the batch, which is safe in the main thread of a worker or trainer only: threads would race
for them. Nothing of those libraries is imported: how a transform is called is read from its signature.
"""

from __future__ import annotations

import inspect
import random
import threading
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import torch

from superdl.super_dataset.memory import empty_batch, in_one_block, memory_here
from superdl.super_wire.errors import ConfigError, UsageError
from superdl.super_wire.ids import ID_BYTES, digest128

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from PIL.Image import Image

    from superdl.super_dataset.reading import BatchInfo

__all__ = ["PerSample", "for_batches"]

Takes: TypeAlias = Literal["pil", "numpy", "tensor"]
_Parameters: TypeAlias = "Mapping[str, inspect.Parameter]"

_OWN_GENERATORS: Mapping[str, Callable[[bytes], Any]] = {
    "generator": lambda digest: torch.Generator().manual_seed(_bits(digest[:8])),
    "rng": lambda digest: np.random.default_rng(_bits(digest)),
}
"""Arguments by which a transform takes a generator of its own, as torch and numpy name them."""
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_OF_A_BATCH = 3  # images, labels, info
_CHANNELS = (1, 3, 4)
_NDIM = 3
_INT64 = 2**63


class PerSample:
    """A transform for one image, called on every sample of a batch: ``SuperDataset(..., transform=...)``.

    ``SuperDataset`` wraps a transform with one required argument by itself.

    What is drawn for a sample depends on (``seed``, epoch, sample id) alone: before each, the global
    generators of Python, numpy and torch (CPU) are set, and after the batch they are what they were. So it
    works in a DataLoader's workers and in the main thread; in the threads of ``SuperLoader`` only with a
    generator of its own, or ``seed=None``. A transform that has an argument ``generator`` (of torch) or
    ``rng`` (of numpy) is given one, and the global ones are left alone; one that has ``set_random_state``, as
    albumentations, is given its own besides. Generators that a transform keeps otherwise are not seeded.

    Tensors and arrays of one shape and dtype are stacked; other results come as a list.

    >>> def noisy(image, rng):
    ...     return image + rng.normal(size=image.shape)
    >>> transform = PerSample(noisy, seed=1, takes="numpy")
    >>> dataset = SuperDataset("images", Recipe.image(resize=32, crop=32), transform=transform)
    >>> images, labels = next(iter(SuperLoader(dataset, SuperSampler(dataset, batch_size=4))))
    >>> images.shape, images.dtype
    (torch.Size([4, 32, 32, 3]), torch.float64)

    Args:
        transform: called as ``transform(image)``; as ``transform(image=image)["image"]`` if it takes its
            image by keyword alone, as albumentations do.
        seed: which jobs share or not as they wish, 64 bits with sign; ``None``: it draws nothing, and no
            generator is touched.
        takes: what an image is to it: ``"pil"`` (RGB), ``"numpy"`` (uint8, (height, width, channels)) or
            ``"tensor"`` (uint8, (channels, height, width)). Samples that are no images come as they are, to
            the latter two. Default: numpy by keyword, else PIL.

    Raises:
        ConfigError: an argument is wrong.
    """

    def __init__(
        self, transform: Callable[..., Any], *, seed: int | None = 0, takes: Takes | None = None
    ) -> None:
        if not callable(transform):
            raise ConfigError(f"PerSample calls its transform on each sample; {transform!r} cannot be")
        if takes is not None and takes not in get_args(Takes):
            raise ConfigError(f"takes is one of {', '.join(map(repr, get_args(Takes)))}; not {takes!r}")
        whole = isinstance(seed, int) and not isinstance(seed, bool)
        if seed is not None and not (whole and -_INT64 <= seed < _INT64):
            raise ConfigError(f"seed is a whole number of 64 bits with sign, or None; not {seed!r}")
        parameters = _parameters(transform) or {}
        self._transform = transform
        self._seed = seed
        self._by_keyword = _takes_its_image_by_keyword(parameters)
        self._takes: Takes = takes or ("numpy" if self._by_keyword else "pil")
        self._generator = next((name for name in _OWN_GENERATORS if name in parameters), None)

    def __call__(self, images: Any, labels: Any, info: BatchInfo) -> tuple[Any, Any]:
        """A ``transform`` of SuperDataset: (what is made of the images, labels as they came).

        Raises:
            UsageError: in a thread it would need the global generators; or a sample is no image.
        """
        with self._generators_kept():
            made = (self._made(image, info, at) for at, image in enumerate(images))
            return _batched(made, len(images)), labels

    def _generators_kept(self) -> AbstractContextManager[None]:
        if self._seed is None or self._generator is not None:
            return nullcontext()
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                f"{_name_of(self._transform)} may draw from the global generators of Python, numpy and "
                "torch, for which this thread would race with the training loop. Use a DataLoader with "
                "num_workers=1 or more in place of the SuperLoader; or give the transform an argument "
                "generator (torch's) or rng (numpy's) to draw from; or, if it draws nothing, write "
                "transform=PerSample(t, seed=None)"
            )
        return _global_generators_kept()

    def _made(self, image: torch.Tensor, info: BatchInfo, at: int) -> Any:
        """What the transform makes of the sample at this place of the batch."""
        given = _FORMS[self._takes](image)
        sample_id = info.sample_ids[at * ID_BYTES : (at + 1) * ID_BYTES]
        generator = self._seeded(info.chance_ids[at * ID_BYTES : (at + 1) * ID_BYTES], info.epoch)
        try:
            if self._by_keyword:
                result = self._transform(image=given, **generator)["image"]
            else:
                result = self._transform(given, **generator)
        except Exception as error:
            name = (info.keys and info.keys[at]) or f"sample {sample_id.hex()}"
            error.add_note(f"raised by the transform of {name}, which was given takes={self._takes!r}")
            raise
        # A copy only of what torch cannot take as it is, such as a flipped or a read-only array.
        return torch.from_numpy(np.require(result, requirements=["C", "W"])) if _is_array(result) else result

    def _seeded(self, sample_id: bytes, epoch: int) -> dict[str, Any]:
        """Set what the transform draws from; the generator to be given to it, if it takes one, by name."""
        if self._seed is None:
            return {}
        # Each generator has numbers of its own: Python's and numpy's are one algorithm, and would draw alike.
        words = self._seed.to_bytes(8, "little", signed=True), epoch.to_bytes(8, "little"), sample_id
        if (name := self._generator) is not None:
            return {name: _OWN_GENERATORS[name](digest128(name.encode(), *words))}
        random.seed(_bits(digest128(b"random", *words)))
        np.random.seed(np.frombuffer(digest128(b"numpy", *words), dtype="<u4"))  # noqa: NPY002
        torch.default_generator.manual_seed(_bits(digest128(b"torch", *words)[:8]))
        if hasattr(self._transform, "set_random_state"):
            # One pair for a whole pipeline; by set_random_seed all its steps would draw the same numbers.
            arrays = np.random.default_rng(_bits(digest128(b"state: numpy", *words)))
            python = random.Random(_bits(digest128(b"state: random", *words)))  # noqa: S311  # no secret
            self._transform.set_random_state(arrays, python)
        return {}


def for_batches(transform: Any) -> Callable[[Any, Any, BatchInfo], Any] | None:
    """What a user gave as ``transform``, as it is called on a batch: itself, or a :class:`PerSample`.

    Raises:
        ConfigError: it cannot be called, or its signature does not tell how it is meant.
    """
    if transform is None:
        return None
    if not callable(transform):
        raise ConfigError(
            "transform is called as transform(images, labels, info) on a batch, or as transform(image) on "
            f"each sample; {transform!r} cannot be"
        )
    parameters = _parameters(transform)
    if parameters is not None:
        needed = [one for one in parameters.values() if _is_required(one)]
        by_place = [one for one in needed if one.kind in _POSITIONAL]
        if len(by_place) == len(needed) == _OF_A_BATCH:
            batched: Callable[[Any, Any, BatchInfo], Any] = transform
            return batched
        if _is_for_one_image(transform, parameters, [one.name for one in needed]):
            return PerSample(transform)
    arguments = "unknown to Python" if parameters is None else f"({', '.join(map(str, parameters.values()))})"
    raise ConfigError(
        "transform has one required argument, an image, or three, (images, labels, info) of a whole batch; "
        f"{_name_of(transform)} has arguments {arguments}. If it is for one image, wrap it: "
        "transform=PerSample(t). If it is for batches, wrap it by a function:\n"
        "    def transform(images, labels, info):\n"
        "        return t(images), labels"
    )


def _is_for_one_image(transform: object, parameters: _Parameters, needed: list[str]) -> bool:
    of_images = [name for name in needed if name not in _OWN_GENERATORS]
    if len(of_images) == 1:
        return parameters[of_images[0]].kind in _POSITIONAL or of_images == ["image"]
    # Transforms of torchvision's v2 are modules that take (*inputs).
    kinds = [one.kind for one in parameters.values()]
    of_v2 = isinstance(transform, torch.nn.Module) and kinds == [inspect.Parameter.VAR_POSITIONAL]
    return not needed and (of_v2 or _takes_its_image_by_keyword(parameters))


def _parameters(transform: Any) -> _Parameters | None:
    """The arguments of a call; ``None`` where Python cannot tell, and for a class that was not called."""
    called = transform.forward if isinstance(transform, torch.nn.Module) else transform
    if isinstance(called, type):
        return None
    try:
        return inspect.signature(called).parameters
    except (TypeError, ValueError):
        return None


def _is_required(one: inspect.Parameter) -> bool:
    return one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)


def _takes_its_image_by_keyword(parameters: _Parameters) -> bool:
    """Whether it is called as albumentations: ``(*, image)``, or their ``(*args, force_apply, **data)``."""
    kinds = [one.kind for one in parameters.values()]
    if any(kind in _POSITIONAL for kind in kinds):
        return False
    of_albumentations = "force_apply" in parameters and inspect.Parameter.VAR_KEYWORD in kinds
    return "image" in parameters or of_albumentations


@contextmanager
def _global_generators_kept() -> Iterator[None]:
    python, arrays, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002
        torch.set_rng_state(tensors)


def _bits(digest: bytes) -> int:
    return int.from_bytes(digest, "little")


def _is_image(sample: torch.Tensor) -> bool:
    return sample.dtype == torch.uint8 and sample.ndim == _NDIM and sample.shape[0] in _CHANNELS


def _array(sample: torch.Tensor) -> Any:
    """An image as uint8 of shape (height, width, channels), anything else as it is; no copy."""
    return (sample.movedim(0, -1) if _is_image(sample) else sample).numpy()


def _pil(sample: torch.Tensor) -> Image:
    from PIL import Image  # only where a transform takes it

    if not _is_image(sample):
        raise UsageError(
            "a PIL image is made of uint8 (channels, height, width) with 1, 3 or 4 channels; this sample is "
            f"{sample.dtype} of shape {tuple(sample.shape)}: PerSample(t, takes='tensor') gives it as it is"
        )
    pixels = _array(sample)
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


_FORMS: Mapping[Takes, Callable[[torch.Tensor], Any]] = {
    "pil": _pil,
    "numpy": _array,
    "tensor": lambda sample: sample,
}


def _is_array(result: object) -> bool:
    return isinstance(result, np.ndarray)


def _batched(results: Iterator[Any], count: int) -> Any:
    """Tensors of one shape and dtype in one, each copied as soon as it is made; others as a list."""
    first = next(results)
    if not isinstance(first, torch.Tensor):
        return [first, *results]
    stacked = empty_batch((count, *first.shape), first.dtype, first.device)
    for at, result in enumerate(chain([first], results)):
        if not _is_alike(result, first):
            return _listed([*stacked[:at], result, *results])
        stacked[at].copy_(result)
    return stacked


def _is_alike(result: object, first: torch.Tensor) -> bool:
    return (
        isinstance(result, torch.Tensor)
        and result.shape == first.shape
        and result.dtype == first.dtype
        and result.device == first.device
    )


def _listed(results: list[Any]) -> list[Any]:
    if all(isinstance(result, torch.Tensor) and result.device.type == "cpu" for result in results):
        return in_one_block(results, memory_here())
    return results


def _name_of(transform: object) -> str:
    return getattr(transform, "__name__", type(transform).__name__)
