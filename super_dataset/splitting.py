"""Splitting a pipeline into a part that functions apply once and a part that is left for workers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from superdl.super_wire.errors import ConfigError, RecipeError
from superdl.super_wire.recipe import Recipe

Transform: TypeAlias = Callable[[Any], Any]

# Neither library is imported. Classes are recognised by module and name, and read by public attributes. A
# user's subclass may do anything, so it is not recognised.
_MODULES = ("torchvision.transforms.", "timm.data.")
_MAKE_TENSORS = frozenset(
    {"ToTensor", "PILToTensor", "ToImage", "ToImageTensor", "MaybeToTensor", "MaybePILToTensor", "ToNumpy"}
)
_RANDOM = frozenset(
    {"AugMix", "AutoAugment", "ColorJitter", "GaussianBlur", "RandAugment", "TrivialAugmentWide"}
)
_CHANGE_TENSORS = frozenset({"ConvertImageDtype", "ToDtype", "Normalize", "ToPureTensor"})
_PRESET = "ImageClassification"  # the transforms of pretrained weights; their end is not moved
_NOT_RANDOM = _MAKE_TENSORS | _CHANGE_TENSORS | {"Resize", "CenterCrop", "Pad", "Grayscale", "RGB", _PRESET}
_MIX_A_BATCH = frozenset({"CutMix", "MixUp", "Mixup"})  # torchvision's, and timm's Mixup
_BY_PILLOWS_NUMBER = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_RANDOM_FIRST = (
    "The recipe only decodes and keeps whole images. Smaller images, such as those of "
    "Recipe.image(resize=320, reduced_decode=True), cost less to store and read, but change the pixels "
    "that random crops see, so the choice is yours."
)


@dataclass(frozen=True, slots=True, repr=False)
class SplitTransform:
    """A pipeline in two parts. Its ``repr`` lists the moved transforms, and why the next one was not moved.

    ``rest`` is ``None`` if nothing is left. ``moved`` describes the transforms that the recipe performs.
    """

    recipe: Recipe
    rest: Transform | None
    moved: tuple[str, ...]
    why: str

    def __repr__(self) -> str:
        steps = ", ".join(self.moved) if self.moved else "decode only"
        return f"recipe: {steps}\nrest: {'nothing' if self.rest is None else name_of(self.rest)}\n{self.why}"


class _StopError(Exception):
    """A transform cannot become a recipe step, for the reason in the message."""


def split_transform(transform: Transform) -> SplitTransform:
    """Split a pipeline for one PIL image into a recipe that functions apply once, and the rest.

    The recipe takes over leading transforms that are not random and have a step with bit-identical results:
    ``Resize``, ``CenterCrop``, ``Pad``, ``Grayscale`` and the beginning of the transforms of torchvision's
    pretrained weights. Together, the two parts produce the pipeline's pixels for
    ``PIL.Image.open(...).convert("RGB")``, except that functions rotate images according to their EXIF data.

    >>> from torchvision import transforms
    >>> pipeline = transforms.Compose(
    ...     [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]
    ... )
    >>> parts = split_transform(pipeline)
    >>> parts.recipe == Recipe.image(resize=256, crop=224)
    True
    >>> parts
    recipe: Resize(size=256, ...), CenterCrop(size=(224, 224))
    rest: Compose(ToTensor)
    Stopped at ToTensor: recipes only have steps for images, not for tensors.

    Args:
        transform: torchvision's ``Compose`` (v1 or v2), the result of timm's ``create_transform``, or a
            single transform. Any other pipeline is left unsplit, with a recipe that only decodes.

    Raises:
        ConfigError: ``transform`` is not callable.
    """
    if not callable(transform):
        raise ConfigError(
            "split_transform needs a pipeline for one image, such as a Compose, not "
            f"{type(transform).__name__}"
        )
    parts = _parts_of(transform)
    recipe, moved, why = Recipe([]), [], "Nothing is left."
    while parts:
        first = parts.pop(0)
        try:
            steps, remains = _steps_of(first, recipe)
            recipe = Recipe([*recipe.steps, *steps])
        except (_StopError, RecipeError) as stop:
            parts.insert(0, first)
            why = f"Stopped at {name_of(first)}: {stop}."
            break
        if remains is not None:
            parts.insert(0, remains)
            moved.append(f"the image steps of {name_of(first)}")
            why = f"Stopped within {name_of(first)}: the next step makes a tensor."
            break
        moved.append(_described(first))
    if parts and not moved:
        return SplitTransform(recipe, transform, (), f"{why} {_RANDOM_FIRST}" if _random(parts[0]) else why)
    rest: Transform | None = None
    if parts:
        kind: Any = type(transform)
        rest = kind(parts) if _known_class(transform) == "Compose" else parts[0]
    return SplitTransform(recipe, rest, tuple(moved), why)


def _parts_of(transform: Any) -> list[Any]:
    """Return a pipeline's transforms in order, with nested pipelines flattened."""
    if _known_class(transform) != "Compose":
        return [transform]
    return [part for inner in transform.transforms for part in _parts_of(inner)]


def split_at_tensors(transform: Any) -> tuple[list[Any], list[Any]]:
    """Split a pipeline where images become tensors. The end is empty if it does more than convert images."""
    parts = _parts_of(transform)
    at = next((at for at, part in enumerate(parts) if _makes_tensors(part)), len(parts))
    is_known = all(_known_class(part) in _CHANGE_TENSORS for part in parts[at + 1 :])
    return (parts[:at], parts[at:]) if is_known else (parts, [])


def size_and_moments(end: Sequence[Any]) -> tuple[list[int] | None, list[Any]]:
    """Return the image size that a pipeline's end requires, or ``None``, and its mean and std."""
    size = [*end[0].crop_size] * 2 if _known_class(end[0]) == _PRESET else None
    normalising = [part for part in end if _known_class(part) in ("Normalize", _PRESET)]
    return size, [moment for part in normalising for moment in (part.mean, part.std)]


def _makes_tensors(part: Any) -> bool:
    if _known_class(part) == _PRESET:
        # If it was split, it neither resizes nor crops.
        return bool(part.resize_size == part.crop_size)
    return _known_class(part) in _MAKE_TENSORS


def mixing_part(transform: Any) -> str:
    """Return the name of a part that mixes images, such as MixUp or CutMix, or an empty string."""
    kind = _known_class(transform)
    if kind in _MIX_A_BATCH:
        return kind
    parts = getattr(transform, "transforms", ()) if kind else ()
    return next(filter(None, map(mixing_part, parts)), "")


def may_use_rng(transform: Any) -> bool:
    """Return whether a transform may use global random number generators."""
    # Unknown parts may do anything.
    return any(_known_class(part) not in _NOT_RANDOM for part in _parts_of(transform))


def is_random(transform: Any) -> bool:
    """Return whether a transform is known to be random."""
    return any(map(_random, _parts_of(transform)))


def unknown(function: Any) -> str:
    """Return the name of a user's function, or an empty string for ``None`` or code of SUPER or torch."""
    home = getattr(getattr(function, "func", function), "__module__", "")
    is_known = function is None or f"{home}.".startswith(("superdl.", "torch.utils.data."))
    return "" if is_known else name_of(function)


def _known_class(transform: object) -> str:
    """Return the class name of a torchvision or timm transform, or an empty string for others."""
    kind = type(transform)
    return kind.__name__ if f"{kind.__module__}.".startswith(_MODULES) else ""


def name_of(transform: Any) -> str:
    """Return a transform's name for use in messages."""
    name: str = getattr(transform, "__name__", type(transform).__name__)
    if _known_class(transform) != "Compose":
        return name
    return f"Compose({', '.join(name_of(part) for part in transform.transforms)})"


def _described(transform: object) -> str:
    # Some reprs have several lines or contain an address.
    text = repr(transform)
    return name_of(transform) if "\n" in text or text.startswith("<") else text


def _random(transform: object) -> bool:
    return _known_class(transform).startswith("Random") or _known_class(transform) in _RANDOM


def _steps_of(transform: Any, before: Recipe) -> tuple[list[dict[str, Any]], Transform | None]:
    """Return recipe steps for a transform, and whatever part of it remains."""
    name = _known_class(transform)
    if name in _READERS:
        return [_READERS[name](transform)], None
    if name == _PRESET:
        return _preset(transform)
    if name == "RGB" and all(step["op"] != "grayscale" for step in before.steps):
        return [], None  # decoded images are RGB
    if _random(transform):
        raise _StopError("functions would have to repeat random steps, and decoding, in each epoch")
    if name in _MAKE_TENSORS:
        raise _StopError("recipes only have steps for images, not for tensors")
    raise _StopError(f"recipes have no step for {getattr(transform, '__module__', '?')}.{name_of(transform)}")


def _resize(transform: Any, size: Any = None) -> dict[str, Any]:
    if getattr(transform, "antialias", None) is False:
        raise _StopError("antialias=False only applies to tensors: images are always antialiased")
    size = transform.size if size is None else size
    # Pillow's filter, given by its number, a string or an enum member.
    given = transform.interpolation
    name = _BY_PILLOWS_NUMBER.get(given) if isinstance(given, int) else getattr(given, "value", given)
    return {
        "op": "resize",
        "size": size[0] if isinstance(size, Sequence) and len(size) == 1 else size,
        "interpolation": "nearest" if name == "nearest-exact" else name,
        "max_size": getattr(transform, "max_size", None),
    }


def _pad(transform: Any) -> dict[str, Any]:
    fill = transform.fill
    colours = fill if isinstance(fill, Sequence) else [fill]
    if transform.padding_mode == "constant" and any(colour not in (0, None) for colour in colours):
        raise _StopError(f"recipes pad with zeros, not with fill={fill}")
    return {"op": "pad", "padding": transform.padding, "mode": transform.padding_mode}


def _preset(preset: Any) -> tuple[list[dict[str, Any]], Transform]:
    """Split an evaluation preset, which resizes, crops, and returns a normalised tensor."""
    # With both sizes set to the crop size, it neither resizes nor crops an image of that size.
    rest = copy.copy(preset)
    rest.resize_size = preset.crop_size
    (side,) = preset.crop_size
    return [_resize(preset, preset.resize_size), {"op": "center_crop", "size": side}], rest


# Functions that convert a torchvision transform to a step, by class name.
_READERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "Resize": _resize,
    "CenterCrop": lambda transform: {"op": "center_crop", "size": transform.size},
    "Pad": _pad,
    "Grayscale": lambda transform: {"op": "grayscale", "channels": transform.num_output_channels},
}
