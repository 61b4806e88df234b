"""The steps of a recipe: their names, the parsing of their parameters, and their output shapes.

A step is kept in a canonical form, so that equal meaning gives an equal digest: all parameters present,
numbers of one type, nothing else. Parameters marked * were added later and are absent at their default.
:mod:`superdl.lambda_prefetch` processes the pixels. A new step is a row of :data:`OPS` here, and a function
there.

=======================  =================================================================================
``decode``               ``truncated``: always ``fill``: the missing part of a truncated image is filled, as
                         by Pillow's ``LOAD_TRUNCATED_IMAGES``. Only valid as the first step. The next two
                         take ``truncated``* too, ``error`` by default.
``reduced_decode``       JPEGs are decoded at the smallest of the scales 1, 1/2, 1/4 and 1/8 that leaves the
                         shorter side ``size`` pixels: faster for large images, with other pixels. Other
                         formats are decoded at full size. Only valid as the first step.
``mask``                 the stored values of one channel: palette indexes, grey levels, 16 bits; no RGB.
                         Only valid as the first step; later ones resample by ``nearest``
``resize``               ``size``: the shorter side in pixels, or (height, width). ``max_size``*: bound
                         on the longer side, if ``size`` is the shorter. ``interpolation``*: one of
                         :data:`INTERPOLATIONS`, antialiased except ``nearest``; default ``bilinear``
``center_crop``          ``size``: side of the square, or (height, width); smaller images are padded with
                         zeros, as torchvision does
``pad``                  ``padding``: pixels on all borders, (left and right, top and bottom), or (left, top,
                         right, bottom). ``mode``: ``constant`` (zeros; default), ``edge``, ``reflect``,
                         ``symmetric``
``grayscale``            ``channels``: 1 (default) or 3
``random_resized_crop``  ``size`` as in ``center_crop``, ``scale`` (share of the area, default 0.08 to 1),
                         ``ratio`` (default 3/4 to 4/3), ``interpolation``* as in ``resize``
``random_crop``          ``size`` as in ``center_crop``; a smaller image is a failure, so ``pad`` it before
``horizontal_flip``      ``p``: probability, default 0.5
``vertical_flip``        ``p``: probability, default 0.5
``custom``               ``name``: ``module:function@version``, ``params``: JSON mapping, ``random``: whether
                         it draws, ``input``*: ``"image"`` (default) or, only for the first step, ``"bytes"``:
                         the object's, not decoded
=======================  =================================================================================
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

from superdl.super_wire.errors import RecipeError

MAX_SIDE = 16384
"""Largest side in pixels that a step may request."""

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")
"""Resampling methods: Pillow's filters, by torchvision's names."""

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")

Shape: TypeAlias = "tuple[int | None, int | None, int]"
"""(height, width, channels) of a step's result; ``None`` if it follows the image."""

DECODED: Shape = (None, None, 3)
"""The shape of an image before the first step."""

_CUSTOM_NAME = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)@([\w.+-]+)")
_MAX_CUSTOM_JSON = 65536
_CUSTOM_INPUTS = ("image", "bytes")
_NUMBERS_OF_BORDERS = (1, 2, 4)


def split_custom_name(name: str) -> tuple[str, str, str]:
    """Split a custom step's ``module:function@version`` into module, function and version."""
    match = _CUSTOM_NAME.fullmatch(name)
    if match is None:
        raise RecipeError(f"a custom step is named module:function@version; not {name!r}")
    module, function, version = match.groups()
    return module, function, version


class _Value:
    """One parameter to read; errors name step number, parameter and value."""

    def __init__(self, where: str, value: object) -> None:
        self.where, self.value = where, value

    def fail(self, expected: str) -> NoReturn:
        raise RecipeError(f"{self.where} is {expected}; not {reprlib.repr(self.value)}")

    def number(self, low: float, high: float, expected: str) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            self.fail(expected)
        if not low <= self.value <= high:  # before float(): an integer may be too large for it
            self.fail(expected)
        return float(self.value) + 0.0  # -0.0 becomes 0.0

    def side(self) -> int:
        expected = f"a whole number of pixels from 1 to {MAX_SIDE}"
        number = self.number(1, MAX_SIDE, expected)
        if not number.is_integer():
            self.fail(expected)
        return int(number)

    def side_or_sides(self) -> int | list[int]:
        """Return a side, or (height, width)."""
        if not isinstance(self.value, (list, tuple)):
            return self.side()
        if len(self.value) != 2:  # noqa: PLR2004  # a pair
            self.fail("a side, or a pair (height, width)")
        return [_Value(self.where, side).side() for side in self.value]

    def area(self) -> int | list[int]:
        """Return a square's side, or (height, width); two equal sides become one."""
        sides = self.side_or_sides()
        return sides[0] if isinstance(sides, list) and sides[0] == sides[1] else sides

    def padding(self) -> int | list[int]:
        """Return the pixels on all borders, or on (left, top, right, bottom)."""
        expected = f"whole pixels from 0 to {MAX_SIDE}: one for all borders, two or four"
        given = list(self.value) if isinstance(self.value, (list, tuple)) else [self.value]
        borders = [_Value(self.where, border).number(0, MAX_SIDE, expected) for border in given]
        if len(borders) not in _NUMBERS_OF_BORDERS or not all(border.is_integer() for border in borders):
            self.fail(expected)
        # One value is for all borders; two are (left and right, top and bottom).
        left, top, right, bottom = (int(border) for border in borders * (4 // len(borders)))
        return left if left == top == right == bottom else [left, top, right, bottom]

    def channels(self) -> int:
        channels = self.number(1, 3, "1 or 3")
        if channels not in (1, 3):
            self.fail("1 or 3")
        return int(channels)

    def word(self, words: tuple[str, ...]) -> str:
        if not isinstance(self.value, str) or self.value not in words:
            self.fail(f"one of {', '.join(words)}")
        return self.value

    def probability(self) -> float:
        return self.number(0, 1, "a probability from 0 to 1")

    def span(self, low: float, high: float) -> list[float]:
        expected = f"a pair (low, high) with {low} < low <= high <= {high}"
        if not isinstance(self.value, (list, tuple)) or len(self.value) != 2:  # noqa: PLR2004  # a pair
            self.fail(expected)
        first, second = (_Value(self.where, side).number(low, high, expected) for side in self.value)
        if not low < first <= second:
            self.fail(expected)
        return [first, second]

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            self.fail("true or false")
        return self.value

    def custom_name(self) -> str:
        if not isinstance(self.value, str) or not _CUSTOM_NAME.fullmatch(self.value):
            self.fail("a text module:function@version")
        return self.value

    def json_mapping(self) -> dict[str, Any]:
        if not isinstance(self.value, Mapping):
            self.fail("a mapping of JSON values")
        try:
            text = json.dumps(dict(self.value), sort_keys=True, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            self.fail("a mapping of JSON values")
        if len(text) > _MAX_CUSTOM_JSON:
            self.fail(f"at most {_MAX_CUSTOM_JSON} bytes of JSON")
        # The round trip gives JSON's own types, and a copy that the user cannot change.
        parsed: dict[str, Any] = json.loads(text)
        return parsed


_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a step: the function that reads its value, and its default.

    One added ``later`` is left out of the canonical form at its default, so that older recipes keep their
    digest, and with it their cached samples.
    """

    read: Callable[[_Value], Any]
    default: Any = _REQUIRED
    later: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """One kind of step: its output shape by its input shape, and its parameters.

    ``random`` ones draw for each sample. Those that ``decode`` determine how images are decoded, so they can
    only be the first step. ``fault`` returns an error for parameters that do not match, or "".
    """

    shape: Callable[[Shape, Mapping[str, Any]], Shape]
    parameters: Mapping[str, Parameter]
    random: bool = False
    decodes: bool = False
    fault: Callable[[Mapping[str, Any]], str] = lambda _: ""


def _one_channel(_: Shape, __: Mapping[str, Any]) -> Shape:
    return (None, None, 1)


def _any_size(shape: Shape, _: Mapping[str, Any]) -> Shape:
    return (None, None, shape[2])


def _custom(_: Shape, __: Mapping[str, Any]) -> Shape:
    return DECODED  # whatever its result: a later step for images requires these channels


def _same(shape: Shape, _: Mapping[str, Any]) -> Shape:
    return shape


def _resized(shape: Shape, step: Mapping[str, Any]) -> Shape:
    return _any_size(shape, step) if isinstance(step["size"], int) else (*step["size"], shape[2])


def _cropped(shape: Shape, step: Mapping[str, Any]) -> Shape:
    height, width = sides_of(step["size"])
    return (height, width, shape[2])


def _padded(shape: Shape, step: Mapping[str, Any]) -> Shape:
    left, top, right, bottom = borders_of(step["padding"])
    height, width, channels = shape
    return (
        None if height is None else height + top + bottom,
        None if width is None else width + left + right,
        channels,
    )


def _grey(shape: Shape, step: Mapping[str, Any]) -> Shape:
    return (*shape[:2], step["channels"])


def sides_of(size: int | list[int]) -> tuple[int, int]:
    """Return (height, width) for a crop's canonical ``size``."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def borders_of(padding: int | list[int]) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) for a canonical ``padding``."""
    if isinstance(padding, int):
        return padding, padding, padding, padding
    left, top, right, bottom = padding
    return left, top, right, bottom


def _max_size_fault(step: Mapping[str, Any]) -> str:
    size, longest = step["size"], step.get("max_size")
    if longest is None or (isinstance(size, int) and longest > size):
        return ""
    return f"max_size bounds the longer side, so that it is more than size, one side; not {longest} of {size}"


_AREA, _ASPECT = (0.0, 1.0), (0.0, 100.0)
_PROBABILITY = Parameter(_Value.probability, 0.5)
_TRUNCATED = Parameter(lambda value: value.word(("error", "fill")), "error", later=True)
_INTERPOLATION = Parameter(lambda value: value.word(INTERPOLATIONS), "bilinear", later=True)

OPS: Mapping[str, Op] = MappingProxyType(
    {
        "decode": Op(_any_size, {"truncated": Parameter(lambda value: value.word(("fill",)))}, decodes=True),
        "reduced_decode": Op(
            _any_size, {"size": Parameter(_Value.side), "truncated": _TRUNCATED}, decodes=True
        ),
        "mask": Op(_one_channel, {"truncated": _TRUNCATED}, decodes=True),
        "resize": Op(
            _resized,
            {
                "size": Parameter(_Value.side_or_sides),
                "max_size": Parameter(_Value.side, None, later=True),
                "interpolation": _INTERPOLATION,
            },
            fault=_max_size_fault,
        ),
        "center_crop": Op(_cropped, {"size": Parameter(_Value.area)}),
        "pad": Op(
            _padded,
            {
                "padding": Parameter(_Value.padding),
                "mode": Parameter(lambda value: value.word(PADDING_MODES), "constant"),
            },
        ),
        "grayscale": Op(_grey, {"channels": Parameter(_Value.channels, 1)}),
        "random_resized_crop": Op(
            _cropped,
            {
                "size": Parameter(_Value.area),
                "scale": Parameter(lambda value: value.span(*_AREA), (0.08, 1.0)),
                "ratio": Parameter(lambda value: value.span(*_ASPECT), (3 / 4, 4 / 3)),
                "interpolation": _INTERPOLATION,
            },
            random=True,
        ),
        "random_crop": Op(_cropped, {"size": Parameter(_Value.area)}, random=True),
        "horizontal_flip": Op(_same, {"p": _PROBABILITY}, random=True),
        "vertical_flip": Op(_same, {"p": _PROBABILITY}, random=True),
        "custom": Op(
            _custom,
            {
                "name": Parameter(_Value.custom_name),
                "params": Parameter(_Value.json_mapping, {}),
                "random": Parameter(_Value.flag, default=False),
                "input": Parameter(lambda value: value.word(_CUSTOM_INPUTS), "image", later=True),
            },
        ),
    }
)
"""All steps by name."""


def canonical_steps(steps: Sequence[object]) -> tuple[Mapping[str, Any], ...]:
    """Return the canonical form of steps; raise the errors of :func:`canonical_step`."""
    of_mask = bool(steps) and isinstance(steps[0], Mapping) and steps[0].get("op") == "mask"
    return tuple(canonical_step(step, number, of_mask=of_mask) for number, step in enumerate(steps, start=1))


def canonical_step(step: object, number: int, *, of_mask: bool = False) -> Mapping[str, Any]:
    """Return the canonical form of a step, a new mapping.

    Args:
        step: a mapping with ``op`` and that step's parameters.
        number: its position in the recipe, from 1, for error messages.
        of_mask: whether it follows ``mask``, so that pixels are numbers which cannot be mixed.

    Raises:
        RecipeError: unknown or misplaced step, unknown, missing, ill-typed or out-of-range parameter.
    """
    if not isinstance(step, Mapping) or not isinstance(step.get("op"), str):
        raise RecipeError(f'step {number} is a mapping such as {{"op": "resize", "size": 256}}; not {step!r}')
    op = step["op"]
    kind = OPS.get(op)
    if kind is None:
        raise RecipeError(f"step {number}: there is no step {op!r}; there are {', '.join(OPS)}")
    unknown = [str(name) for name in step if name != "op" and name not in kind.parameters]
    if unknown:
        raise RecipeError(
            f"step {number} ({op}) has no parameter {', '.join(unknown)}; it has {', '.join(kind.parameters)}"
        )
    if of_mask and "interpolation" in kind.parameters:
        step = {"interpolation": "nearest", **step}
    canonical: dict[str, Any] = {"op": op}
    for name, parameter in kind.parameters.items():
        value = step.get(name, parameter.default)
        if value is _REQUIRED:
            raise RecipeError(f"step {number} ({op}) needs the parameter {name}")
        if parameter.later and value is parameter.default:
            continue
        value = parameter.read(_Value(f"step {number} ({op}): {name}", value))
        if not parameter.later or value != parameter.default:
            canonical[name] = value
    mixes = _mixes(kind, canonical) if of_mask else ""
    if fault := kind.fault(canonical) or _misplaced(kind, canonical, number) or mixes:
        raise RecipeError(f"step {number} ({op}): {fault}")
    return canonical


def _mixes(kind: Op, step: Mapping[str, Any]) -> str:
    if step["op"] == "grayscale":
        return "a mask holds numbers, not colours"
    if "interpolation" in kind.parameters and step.get("interpolation") != "nearest":
        return "the numbers of a mask cannot be mixed: its interpolation is nearest"
    return ""


def _misplaced(kind: Op, step: Mapping[str, Any], number: int) -> str:
    if number == 1:
        return ""
    if kind.decodes:
        return "it says how images are decoded, so it can only be the first step"
    if step.get("input") == "bytes":
        return 'input is "bytes" of the first step only; a later one gets what it made'
    return ""
