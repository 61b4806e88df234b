"""``PerSample``: a per-image transform, as in torchvision, timm and albumentations."""

from __future__ import annotations

import inspect
import random
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch

from superdl.super_dataset.memory.batch_memory import finished_elsewhere_here
from superdl.super_dataset.pictures import batched, in_fewer_steps, rows_of, to_pil, unfinished
from superdl.super_dataset.splitting import is_random, may_use_rng, mixing_part, name_of
from superdl.super_wire.errors import ConfigError, UsageError
from superdl.super_wire.ids import ID_BYTES, digest128

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from superdl.super_dataset.pictures import End
    from superdl.super_dataset.reading.delivery import BatchInfo

Takes: TypeAlias = Literal["pil", "numpy", "tensor"]
Seed: TypeAlias = int | Literal["sampler"] | None
_Parameters: TypeAlias = "Mapping[str, inspect.Parameter]"

# Arguments that pass a transform its own generator, as in torch and numpy.
_OWN_GENERATORS: Mapping[str, Callable[[bytes], Any]] = {
    "generator": lambda digest: torch.Generator().manual_seed(_bits(digest[:8])),
    "rng": lambda digest: np.random.default_rng(_bits(digest)),
}


class _Global(NamedTuple):
    seed: Callable[[bytes], Any]
    state: Callable[[], Any]
    set_state: Callable[[Any], Any]


# Set before each sample and restored after the batch, which is safe only in the main thread of
# a worker or trainer.
_GLOBAL_GENERATORS: Mapping[str, _Global] = {
    "random": _Global(lambda digest: random.seed(_bits(digest)), random.getstate, random.setstate),
    "numpy": _Global(
        lambda digest: np.random.seed(np.frombuffer(digest, dtype="<u4")),  # noqa: NPY002
        np.random.get_state,
        np.random.set_state,
    ),
    "torch": _Global(
        lambda digest: torch.default_generator.manual_seed(_bits(digest[:8])),
        torch.get_rng_state,
        torch.set_rng_state,
    ),
}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BATCH_ARGS = ("images", "labels", "info")
_CHANNELS = (1, 3, 4)
_NDIM = 3
_INT64 = 2**63


class PerSample:
    """A transform for one image, called on every sample of a batch: ``SuperDataset(..., transform=...)``.

    ``SuperDataset`` wraps a transform with one required argument automatically.

    The random values for a sample depend only on (seed, epoch, sample id). The global random number
    generators of Python, numpy and torch (CPU) are seeded before each sample and restored after the
    batch, so the transform works in worker processes and in the main thread. A transform that takes
    ``generator`` (torch), ``rng`` (numpy) or both gets its own seeded generators. The global ones are
    left alone, so ``SuperLoader`` can call it in threads. A transform with ``set_random_state``, as in
    albumentations, also gets its own generators. A transform's other generators are not seeded.

    Results are batched as torch's ``default_collate`` does: tensors and arrays are stacked, and lists,
    tuples and dicts become lists and dicts of batches. Values that it rejects, such as tensors of
    different shapes, are left as a list. A sample of several arrays is passed as a dict, with images and
    masks (uint8 of shape (height, width)) in the form set by ``takes``, and other arrays as tensors.

    >>> def noisy(image, rng):
    ...     return image + rng.normal(size=image.shape)
    >>> transform = PerSample(noisy, seed=1, takes="numpy")
    >>> dataset = SuperDataset("images", Recipe.image(resize=32, crop=32), transform=transform)
    >>> images, labels = next(iter(SuperLoader(dataset, SuperSampler(dataset, batch_size=4, shuffle=True))))
    >>> images.shape, images.dtype
    (torch.Size([4, 32, 32, 3]), torch.float64)

    Args:
        transform: called as ``transform(image)``, or as ``transform(image=image)["image"]`` if it accepts its
            image only by keyword, as albumentations does.
        seed: ``"sampler"`` to use the ``SuperSampler``'s seed, which also determines the shuffle; a signed
            64-bit integer, so that runs with different shuffles draw the same values; or ``None`` to declare
            the transform deterministic, so that threads may call it.
        takes: the form of its input: ``"pil"`` (RGB), ``"numpy"`` (uint8, (height, width, channels)) or
            ``"tensor"`` (uint8, (channels, height, width)). With the latter two, samples that are not images
            are passed as they are. The default is numpy for a keyword argument, else PIL.

    Raises:
        ConfigError: an argument is invalid, or the transform mixes a batch's images or is known to be random
            despite ``seed=None``.
    """

    def __init__(
        self,
        transform: Callable[..., Any],
        *,
        seed: Seed = "sampler",
        takes: Takes | None = None,
    ) -> None:
        if not callable(transform):
            raise ConfigError(f"the transform of PerSample must be callable, not {transform!r}")
        if mixes := mixing_part(transform):
            raise ConfigError(
                f"{mixes} mixes the images and labels of a whole batch, but a per-sample transform receives "
                "only one. Remove it from the dataset, and call it on each batch in the training loop: "
                "images, labels = mix(images, labels)"
            )
        if takes is not None and takes not in get_args(Takes):
            raise ConfigError(f"takes must be one of {', '.join(map(repr, get_args(Takes)))}, not {takes!r}")
        whole = isinstance(seed, int) and not isinstance(seed, bool)
        if seed not in (None, "sampler") and not (whole and -_INT64 <= int(seed) < _INT64):
            raise ConfigError(f"seed must be a signed 64-bit integer, 'sampler' or None, not {seed!r}")
        if seed is None and is_random(transform):
            raise ConfigError(
                f"{name_of(transform)} is random, but seed=None is only for deterministic transforms"
            )
        parameters = _parameters(transform) or {}
        self._transform = transform
        self._seed = seed
        self._by_keyword = _takes_its_image_by_keyword(parameters)
        self._takes: Takes = takes or ("numpy" if self._by_keyword else "pil")
        self._generators = [name for name in _OWN_GENERATORS if name in parameters]

    def __call__(self, images: Any, labels: Any, info: BatchInfo) -> tuple[Any, Any]:
        """Return (transformed images, unchanged labels), as a ``transform`` of SuperDataset does.

        Raises:
            UsageError: the transform may draw and this is not the main thread, or a sample is not an image.
        """
        # Checked for each batch, because a Compose may be modified while it is in use.
        call, end = self._in_fewer_steps()
        count = len(info.draw_ids) // ID_BYTES
        with self._transformed(call, images, info) as results:
            if end is not None and finished_elsewhere_here():
                return unfinished(results, count, end), labels
            return batched(results, count, end), labels

    def samples(self, images: Any, info: BatchInfo) -> list[Any]:
        """Return the transform's complete result for each sample. Raises as a call does."""
        with self._transformed(self._transform, images, info) as results:
            return list(results)

    @contextmanager
    def _transformed(self, call: Callable[..., Any], images: Any, info: BatchInfo) -> Iterator[Iterator[Any]]:
        set_global = bool(self.may_use_rng)
        if set_global and threading.current_thread() is not threading.main_thread():
            raise UsageError(
                f"{name_of(self._transform)} may draw from the global random number generators, so this "
                "thread would race with others: read the dataset in the main thread or in worker processes"
            )
        with _restored_generators() if set_global else nullcontext():
            yield (
                self._apply(call, sample, info, at, set_global=set_global)
                for at, sample in enumerate(rows_of(images))
            )

    def _in_fewer_steps(self) -> tuple[Callable[..., Any], End | None]:
        return in_fewer_steps(self._transform) if self._takes == "pil" else (self._transform, None)

    @property
    def may_use_rng(self) -> str:
        """Return the transform's name if it may use a global random number generator, or an empty string."""
        is_safe = self._seed is None or self._generators
        return name_of(self._transform) if not is_safe and may_use_rng(self._transform) else ""

    def _apply(
        self,
        call: Callable[..., Any],
        sample: torch.Tensor | dict[str, torch.Tensor],
        info: BatchInfo,
        at: int,
        *,
        set_global: bool,
    ) -> Any:
        form = _FORMS[self._takes]
        given: Any
        if isinstance(sample, dict):
            given = {name: form(value) if _is_picture(value) else value for name, value in sample.items()}
        else:
            given = form(sample)
        span = slice(at * ID_BYTES, (at + 1) * ID_BYTES)
        generators = self._seeded(info.draw_ids[span], info, set_global=set_global)
        try:
            if self._by_keyword and isinstance(given, dict):
                return call(**given, **generators)
            if self._by_keyword:
                return call(image=given, **generators)["image"]
            return call(given, **generators)
        except Exception as error:
            name = (info.keys and info.keys[at]) or f"sample {info.sample_ids[span].hex()}"
            # A note keeps the type of the user's exception.
            error.add_note(f"raised by the transform for {name}, called with takes={self._takes!r}")
            raise

    def _seeded(self, sample_id: bytes, info: BatchInfo, *, set_global: bool) -> dict[str, Any]:
        """Seed the transform's generators. Return those to pass by name."""
        if self._seed is None:
            return {}
        seed = info.seed if self._seed == "sampler" else self._seed
        # One key per generator: Python and numpy share an algorithm and would draw the same values.
        words = seed.to_bytes(8, "little", signed=True), info.epoch.to_bytes(8, "little"), sample_id
        if self._generators:
            return {
                name: _OWN_GENERATORS[name](digest128(name.encode(), *words)) for name in self._generators
            }
        for name, generator in _GLOBAL_GENERATORS.items() if set_global else ():
            generator.seed(digest128(name.encode(), *words))
        if hasattr(self._transform, "set_random_state"):
            # One pair per pipeline: with set_random_seed, its steps would draw the same values.
            arrays = np.random.default_rng(_bits(digest128(b"state: numpy", *words)))
            python = random.Random(_bits(digest128(b"state: random", *words)))  # noqa: S311  # no secret
            self._transform.set_random_state(arrays, python)
        return {}


def for_batches(transform: Any) -> Callable[[Any, Any, BatchInfo], Any] | None:
    """Adapt a user's ``transform`` to whole batches. Raises ``ConfigError`` if it is not callable or is
    ambiguous.
    """
    if transform is None:
        return None
    if not callable(transform):
        raise ConfigError(
            "transform must be callable as transform(images, labels, info) on a batch, or as "
            f"transform(image) on each sample, not {transform!r}"
        )
    parameters = _parameters(transform)
    if parameters is not None:
        if _is_for_batches(parameters):
            batched: Callable[[Any, Any, BatchInfo], Any] = transform
            return batched
        if _is_for_one_image(transform, parameters) or mixing_part(transform):
            return PerSample(transform)
    arguments = "of unknown names" if parameters is None else f"({', '.join(map(str, parameters.values()))})"
    raise ConfigError(
        "transform must have one required argument, an image, or three, (images, labels, info) of a whole "
        f"batch, but {name_of(transform)} has arguments {arguments}. If it is for one image, pass "
        "transform=PerSample(t). If it is for batches, wrap it in a function:\n"
        "    def transform(images, labels, info):\n"
        "        return t(images), labels"
    )


def _is_for_batches(parameters: _Parameters) -> bool:
    positional = [
        parameter
        for parameter in parameters.values()
        if parameter.kind in _POSITIONAL and parameter.name not in _OWN_GENERATORS
    ]
    needed = [parameter for parameter in positional if _is_required(parameter)]
    if any(_is_required(parameter) for parameter in parameters.values() if parameter not in positional):
        return False
    if len(needed) == len(_BATCH_ARGS):
        return True
    named = tuple(parameter.name for parameter in positional)
    # If only one is required, the names decide: (image, mean=..., std=...) is for one image.
    return len(named) == len(_BATCH_ARGS) and (len(needed) > 1 or named[1:] == _BATCH_ARGS[1:])


def _is_for_one_image(transform: object, parameters: _Parameters) -> bool:
    needed = [parameter.name for parameter in parameters.values() if _is_required(parameter)]
    image_names = [name for name in needed if name not in _OWN_GENERATORS]
    if len(image_names) == 1:
        return parameters[image_names[0]].kind in _POSITIONAL or image_names == ["image"]
    # Transforms of torchvision's v2 are modules that take (*inputs).
    kinds = [parameter.kind for parameter in parameters.values()]
    is_v2 = isinstance(transform, torch.nn.Module) and kinds == [inspect.Parameter.VAR_POSITIONAL]
    return not needed and (is_v2 or _takes_its_image_by_keyword(parameters))


def _parameters(transform: Any) -> _Parameters | None:
    """Return the parameters of a call, or ``None`` for a class or if they are unknown."""
    # A module's __call__ takes (*args, **kwargs).
    called = transform.forward if isinstance(transform, torch.nn.Module) else transform
    if isinstance(called, type):
        return None
    try:
        return inspect.signature(called).parameters
    except (TypeError, ValueError):
        return None


def _is_required(parameter: inspect.Parameter) -> bool:
    is_open = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not is_open


def _takes_its_image_by_keyword(parameters: _Parameters) -> bool:
    kinds = [parameter.kind for parameter in parameters.values()]
    if any(kind in _POSITIONAL for kind in kinds):
        return False
    # albumentations' signature is (*, image) or (*args, force_apply, **data).
    is_albumentations = "force_apply" in parameters and inspect.Parameter.VAR_KEYWORD in kinds
    return "image" in parameters or is_albumentations


@contextmanager
def _restored_generators() -> Iterator[None]:
    states = [generator.state() for generator in _GLOBAL_GENERATORS.values()]
    try:
        yield
    finally:
        for generator, state in zip(_GLOBAL_GENERATORS.values(), states, strict=True):
            generator.set_state(state)


def _bits(digest: bytes) -> int:
    return int.from_bytes(digest, "little")


def _is_image(sample: torch.Tensor) -> bool:
    return sample.dtype == torch.uint8 and sample.ndim == _NDIM and sample.shape[0] in _CHANNELS


def _is_picture(sample: torch.Tensor) -> bool:
    """Return whether a sample is an image or a mask."""
    return _is_image(sample) or (sample.dtype == torch.uint8 and sample.ndim == _NDIM - 1)


def _array(sample: torch.Tensor) -> Any:
    return (sample.movedim(0, -1) if _is_image(sample) else sample).numpy()


def _pil(sample: torch.Tensor) -> object:
    if not _is_picture(sample):
        raise UsageError(
            "a PIL image needs uint8 (channels, height, width) with 1, 3 or 4 channels, but this sample is "
            f"{sample.dtype} of shape {tuple(sample.shape)}. PerSample(t, takes='tensor') passes it unchanged"
        )
    return to_pil(_array(sample))


_FORMS: Mapping[Takes, Callable[[torch.Tensor], Any]] = {
    "pil": _pil,
    "numpy": _array,
    "tensor": lambda sample: sample,
}
