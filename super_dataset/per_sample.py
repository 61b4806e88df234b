"""``PerSample``: transforms of single images, as in torchvision, timm and albumentations."""

from __future__ import annotations

import inspect
import random
import threading
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch

from superdl.super_dataset.memory.batch_memory import finished_elsewhere_here
from superdl.super_dataset.pictures import batched, rows_of, split_end, to_pil, unfinished
from superdl.super_dataset.splitting import is_random, may_use_rng, mixing_part, name_of
from superdl.super_wire.errors import ConfigError, UsageError
from superdl.super_wire.ids import ID_BYTES, digest128

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from superdl.super_dataset.reading.delivery import BatchInfo

Takes: TypeAlias = Literal["pil", "numpy", "tensor"]
Seed: TypeAlias = int | Literal["sampler"] | None
_Parameters: TypeAlias = "Mapping[str, inspect.Parameter]"

# Parameters for a transform's own generator, as in torch and numpy.
_OWN_GENERATORS: Mapping[str, Callable[[bytes], Any]] = {
    "generator": lambda digest: torch.Generator().manual_seed(_bits(digest[:8])),
    "rng": lambda digest: np.random.default_rng(_bits(digest)),
}


class _Global(NamedTuple):
    seed: Callable[[bytes], Any]
    state: Callable[[], Any]
    set_state: Callable[[Any], Any]


# Seeded before each sample and restored after the batch, which is only safe in the main thread.
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
_BATCH_ARGS = ["images", "labels", "info"]
_CHANNELS = (1, 3, 4)
_NDIM = 3
_INT64 = 2**63


class PerSample:
    """Applies a transform of single images to every sample: ``SuperDataset(..., transform=PerSample(t))``.

    ``SuperDataset`` wraps transforms with one required argument automatically.

    A sample's random values depend only on seed, epoch and sample id. The global random number generators of
    Python, numpy and torch (CPU) are seeded before each sample and restored after the batch, so the
    transform works in worker processes and in the main thread. If it has a parameter ``generator`` (torch)
    or ``rng`` (numpy), it is passed its own seeded generator instead, and ``SuperLoader`` can call it in
    threads. A transform with ``set_random_state``, as in albumentations, also gets its own generators. Other
    generators are not seeded.

    Results are batched as in torch's ``default_collate``: tensors and arrays are stacked, and lists, tuples
    and dicts become lists and dicts of batches. Values that ``default_collate`` rejects, such as
    tensors of different shapes, remain a list. A sample of several arrays is passed as a dict, with images
    and masks (uint8 of shape (height, width)) in the form set by ``takes``, and other arrays as tensors.

    >>> def noisy(image, rng):
    ...     return image + rng.normal(size=image.shape)
    >>> transform = PerSample(noisy, seed=1, takes="numpy")
    >>> dataset = SuperDataset("images", Recipe.image(resize=32, crop=32), transform=transform)
    >>> images, labels = next(iter(SuperLoader(dataset, SuperSampler(dataset, batch_size=4, shuffle=True))))
    >>> images.shape, images.dtype
    (torch.Size([4, 32, 32, 3]), torch.float64)

    Args:
        transform: called as ``transform(image)``, or as ``transform(image=image)["image"]`` if it only
            accepts the image by keyword, as in albumentations.
        seed: ``"sampler"`` for the ``SuperSampler``'s seed, which also determines the shuffle; a signed
            64-bit integer, so that differently shuffled runs draw the same values; or ``None`` to declare
            the transform deterministic, which allows threads.
        takes: form of the input: ``"pil"`` (RGB), ``"numpy"`` (uint8, (height, width, channels)) or
            ``"tensor"`` (uint8, (channels, height, width)). The latter two also take samples that are not
            images, unchanged. The default is ``"numpy"`` for a keyword argument and ``"pil"`` otherwise.

    Raises:
        ConfigError: an argument is invalid, the transform mixes a batch's images, or it is known to be random
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
                f"{mixes} mixes the images and labels of a whole batch, but a per-sample transform only gets "
                "one image. Remove it from the dataset, and call it on each batch in the training loop: "
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
        self._by_keyword = _needs_keyword(parameters)
        self._takes: Takes = takes or ("numpy" if self._by_keyword else "pil")
        self._generators = [name for name in _OWN_GENERATORS if name in parameters]

    def __call__(self, images: Any, labels: Any, info: BatchInfo) -> tuple[Any, Any]:
        """Return the transformed images and the unchanged labels, as a SuperDataset's ``transform`` does.

        Raises:
            UsageError: the transform may use global generators and this is not the main thread, or a sample
                is not an image.
        """
        call, end = self._transform, None
        if self._takes == "pil":  # for each batch, since a Compose may be modified while it is in use
            call, end = split_end(self._transform)
        count = len(info.draw_ids) // ID_BYTES
        with self._transformed(call, images, info) as results:
            if end is not None and finished_elsewhere_here():
                return unfinished(results, count, end), labels
            return batched(results, count, end), labels

    def samples(self, images: Any, info: BatchInfo) -> list[Any]:
        """Return the transform's result for each sample. Raises the same errors as a call."""
        with self._transformed(self._transform, images, info) as results:
            return list(results)

    @contextmanager
    def _transformed(self, call: Callable[..., Any], images: Any, info: BatchInfo) -> Iterator[Iterator[Any]]:
        set_global = bool(self.may_use_rng)
        if set_global and threading.current_thread() is not threading.main_thread():
            raise UsageError(
                f"{name_of(self._transform)} may use global random number generators, so this thread would "
                "race with others. Read the dataset in the main thread or in worker processes"
            )
        with _restored_generators() if set_global else nullcontext():
            yield (
                self._apply(call, sample, info, at, set_global=set_global)
                for at, sample in enumerate(rows_of(images))
            )

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
            given = {name: form(value) if _is_pictorial(value) else value for name, value in sample.items()}
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
            # A note keeps the exception's type.
            error.add_note(f"raised by the transform for {name}, called with takes={self._takes!r}")
            raise

    def _seeded(self, sample_id: bytes, info: BatchInfo, *, set_global: bool) -> dict[str, Any]:
        """Seed the transform's generators, and return those to pass as keyword arguments."""
        if self._seed is None:
            return {}
        seed = info.seed if self._seed == "sampler" else self._seed
        # Each generator has its own key, since Python and numpy would draw the same values by one algorithm.
        words = seed.to_bytes(8, "little", signed=True), info.epoch.to_bytes(8, "little"), sample_id
        if self._generators:
            return {
                name: _OWN_GENERATORS[name](digest128(name.encode(), *words)) for name in self._generators
            }
        for name, generator in _GLOBAL_GENERATORS.items() if set_global else ():
            generator.seed(digest128(name.encode(), *words))
        if hasattr(self._transform, "set_random_state"):
            # One pair per pipeline, since set_random_seed would have its steps draw the same values.
            arrays = np.random.default_rng(_bits(digest128(b"state: numpy", *words)))
            python = random.Random(_bits(digest128(b"state: random", *words)))  # noqa: S311  # no secret
            self._transform.set_random_state(arrays, python)
        return {}


def for_batches(transform: Any) -> Callable[[Any, Any, BatchInfo], Any] | None:
    """Adapt a user's transform to batches. Raises ``ConfigError`` if its signature does not show how."""
    if transform is None:
        return None
    if not callable(transform):
        raise ConfigError(
            "transform must be callable as transform(images, labels, info) on a batch, or as "
            f"transform(image) on each sample, not {transform!r}"
        )
    parameters = _parameters(transform)
    if parameters is not None:
        kinds = [parameter.kind for parameter in parameters.values()]
        # torchvision's v2 transforms are modules with parameters (*inputs).
        is_v2 = isinstance(transform, torch.nn.Module) and kinds == [inspect.Parameter.VAR_POSITIONAL]
        # Without required arguments, it is more likely a function that creates a transform.
        needs_none = _accepts(parameters, 0)
        takes_image = is_v2 or _needs_keyword(parameters) or (_accepts(parameters, 1) and not needs_none)
        needs_generator = any(
            parameters[name].default is inspect.Parameter.empty
            for name in _OWN_GENERATORS
            if name in parameters
        )
        # If both are possible, names decide: (image, mean=..., std=...) is for one image.
        is_named = [name for name in parameters if name not in _OWN_GENERATORS][1:] == _BATCH_ARGS[1:]
        is_batched = is_named or not (takes_image or needs_none)
        if is_batched and not needs_generator and _accepts(parameters, len(_BATCH_ARGS)):
            batched: Callable[[Any, Any, BatchInfo], Any] = transform
            return batched
        if takes_image or mixing_part(transform):
            return PerSample(transform)
    arguments = "of unknown names" if parameters is None else f"({', '.join(map(str, parameters.values()))})"
    raise ConfigError(
        "transform must have one required argument, an image, or three, (images, labels, info) of a whole "
        f"batch, but {name_of(transform)} has arguments {arguments}. If it is for one image, pass "
        "transform=PerSample(t). If it is for batches, wrap it in a function:\n"
        "    def transform(images, labels, info):\n"
        "        return t(images), labels"
    )


def _accepts(parameters: _Parameters, count: int) -> bool:
    """Return whether a call with ``count`` arguments is possible. ``*args`` alone is not enough."""
    generators = {name: None for name in _OWN_GENERATORS if name in parameters}
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in [*parameters.values()][:1]):
        return False
    try:
        inspect.Signature([*parameters.values()]).bind(*[None] * count, **generators)
    except TypeError:
        return False
    return True


def _parameters(transform: Any) -> _Parameters | None:
    """Return a callable's parameters, or ``None`` for a class or if they are unknown."""
    # A module's __call__ has (*args, **kwargs).
    called = transform.forward if isinstance(transform, torch.nn.Module) else transform
    if isinstance(called, type):
        return None
    try:
        return inspect.signature(called).parameters
    except (TypeError, ValueError):
        return None


def _needs_keyword(parameters: _Parameters) -> bool:
    """Return whether a call must pass the image by keyword."""
    kinds = {parameter.kind for parameter in parameters.values()}
    if kinds & {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}:
        return False
    # albumentations has (*, image) or (*args, force_apply, **data).
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


def _is_pictorial(sample: torch.Tensor) -> bool:
    """Return whether a sample is an image or a mask."""
    return _is_image(sample) or (sample.dtype == torch.uint8 and sample.ndim == _NDIM - 1)


def _array(sample: torch.Tensor) -> Any:
    return (sample.movedim(0, -1) if _is_image(sample) else sample).numpy()


def _pil(sample: torch.Tensor) -> object:
    if not _is_pictorial(sample):
        raise UsageError(
            "a PIL image must be uint8 (channels, height, width) with 1, 3 or 4 channels, but this sample is "
            f"{sample.dtype} of shape {tuple(sample.shape)}. PerSample(t, takes='tensor') passes it unchanged"
        )
    return to_pil(_array(sample))


_FORMS: Mapping[Takes, Callable[[torch.Tensor], Any]] = {
    "pil": _pil,
    "numpy": _array,
    "tensor": lambda sample: sample,
}
