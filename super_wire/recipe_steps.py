"""The steps of a recipe: their parameters and output shapes."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from superdl.super_wire.errors import RecipeError

MAX_SIDE = 16384
# Pillow's resampling filters by torchvision's names. All but ``nearest`` are antialiased.
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")
PADDING_MODES = ("constant", "edge", "reflect", "symmetric")
# (height, width, channels) of a step's result, with ``None`` for sides that vary with the image.
Shape: TypeAlias = "tuple[int | None, int | None, int]"
DECODED: Shape = (None, None, 3)
_MAX_STEPS = 64
_CUSTOM_NAME = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)@([\w.+-]+)")
_MAX_CUSTOM_JSON = 65536
_PIXELS = f"a whole number of pixels from 0 to {MAX_SIDE} for all borders, or two or four of them"


def split_custom_name(name: str) -> tuple[str, str, str]:
    """Split a custom step's ``module:function@version`` into its three parts."""
    match = _CUSTOM_NAME.fullmatch(name)
    if match is None:
        raise RecipeError(f"a custom step must be named module:function@version, not {name!r}")
    module, function, version = match.groups()
    return module, function, version


# Parsers of parameters. Each returns the canonical value, or raises a ValueError that describes valid ones.


def _number(value: Any, low: float, high: float, expected: str, *, whole: bool = False) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # before float(): an integer may be too large for it
        raise ValueError(expected)
    number = float(value) + 0.0  # -0.0 becomes 0.0
    if whole and not number.is_integer():
        raise ValueError(expected)
    return number


def _side(value: Any) -> int:
    return int(_number(value, 1, MAX_SIDE, f"a whole number of pixels from 1 to {MAX_SIDE}", whole=True))


def _side_or_sides(value: Any) -> int | list[int]:
    if not isinstance(value, (list, tuple)):
        return _side(value)
    if len(value) != 2:  # noqa: PLR2004  # a pair
        raise ValueError("a side, or a pair (height, width)")
    return [*map(_side, value)]


def _area(value: Any) -> int | list[int]:
    """Parse (height, width), or the side of a square. Two equal sides become one."""
    sides = _side_or_sides(value)
    return sides[0] if isinstance(sides, list) and sides[0] == sides[1] else sides


def _padding(value: Any) -> int | list[int]:
    values = value if isinstance(value, (list, tuple)) else [value]
    borders = [int(_number(border, 0, MAX_SIDE, _PIXELS, whole=True)) for border in values]
    if len(borders) not in {1, 2, 4}:
        raise ValueError(_PIXELS)
    # One value applies to all borders, two apply to (left and right, top and bottom).
    left, top, right, bottom = borders * (4 // len(borders))
    return left if left == top == right == bottom else [left, top, right, bottom]


def _one_of(*choices: str | int) -> Callable[[Any], str | int]:
    def read(value: Any) -> str | int:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value not in choices:
            raise ValueError(f"one of {', '.join(map(str, choices))}")
        return choices[choices.index(value)]

    return read


def _span(low: float, high: float) -> Callable[[Any], list[float]]:
    expected = f"a pair (low, high) with {low} < low <= high <= {high}"

    def read(value: Any) -> list[float]:
        if not isinstance(value, (list, tuple)) or len(value) != 2:  # noqa: PLR2004  # a pair
            raise ValueError(expected)
        first, second = (_number(side, low, high, expected) for side in value)
        if not low < first <= second:
            raise ValueError(expected)
        return [first, second]

    return read


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004  # all parsers raise ValueError
    return value


def _custom_name(value: Any) -> str:
    if not isinstance(value, str) or not _CUSTOM_NAME.fullmatch(value):
        raise ValueError("a string module:function@version")
    return value


def _json_mapping(value: Any) -> dict[str, Any]:
    try:
        text = json.dumps(
            dict(value) if isinstance(value, Mapping) else None, sort_keys=True, allow_nan=False
        )
    except (TypeError, ValueError, RecursionError):
        text = ""
    if not text.startswith("{"):
        raise ValueError("a mapping of JSON values")
    if len(text) > _MAX_CUSTOM_JSON:
        raise ValueError(f"at most {_MAX_CUSTOM_JSON} bytes of JSON")
    # The round trip converts to plain JSON types, and copies what the user could change.
    parsed: dict[str, Any] = json.loads(text)
    return parsed


_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a step: its parser and default."""

    read: Callable[[Any], Any]
    default: Any = _REQUIRED
    # Whether to omit a default from the canonical form, so older recipes keep their digests and samples.
    later: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """A type of step."""

    shape: Callable[[Shape, Mapping[str, Any]], Shape]  # of the result, by the input's shape and the step
    parameters: Mapping[str, Parameter]
    random: bool = False
    decodes: bool = False  # it controls decoding, so it must be the first step
    # Returns an error message if parameters contradict each other, otherwise an empty string.
    fault: Callable[[Mapping[str, Any]], str] = lambda _: ""


def _any_size(shape: Shape, _: Mapping[str, Any]) -> Shape:
    return (None, None, shape[2])


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


def sides_of(size: int | list[int]) -> tuple[int, int]:
    """Return (height, width) for the canonical ``size`` of a crop."""
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
    return (
        "max_size limits the longer side, so it must be greater than size, and size must be one side; got "
        f"max_size {longest} and size {size}"
    )


_PROBABILITY = Parameter(lambda value: _number(value, 0, 1, "a probability from 0 to 1"), 0.5)
_TRUNCATED = Parameter(_one_of("error", "fill"), "error", later=True)
_INTERPOLATION = Parameter(_one_of(*INTERPOLATIONS), "bilinear", later=True)
# To add a step, add a row here and a function in lambda_prefetch/image_steps.py.
OPS: Mapping[str, Op] = MappingProxyType(
    {
        "decode": Op(_any_size, {"truncated": Parameter(_one_of("fill"))}, decodes=True),
        "reduced_decode": Op(_any_size, {"size": Parameter(_side), "truncated": _TRUNCATED}, decodes=True),
        "mask": Op(lambda _shape, _step: (None, None, 1), {"truncated": _TRUNCATED}, decodes=True),
        "resize": Op(
            _resized,
            {
                "size": Parameter(_side_or_sides),
                "max_size": Parameter(_side, None, later=True),
                "interpolation": _INTERPOLATION,
            },
            fault=_max_size_fault,
        ),
        "center_crop": Op(_cropped, {"size": Parameter(_area)}),
        "pad": Op(
            _padded,
            {
                "padding": Parameter(_padding),
                "mode": Parameter(_one_of(*PADDING_MODES), "constant"),
            },
        ),
        "grayscale": Op(
            lambda shape, step: (*shape[:2], step["channels"]),
            {"channels": Parameter(_one_of(1, 3), 1)},
        ),
        "random_resized_crop": Op(
            _cropped,
            {
                "size": Parameter(_area),
                "scale": Parameter(_span(0.0, 1.0), (0.08, 1.0)),
                "ratio": Parameter(_span(0.0, 100.0), (3 / 4, 4 / 3)),
                "interpolation": _INTERPOLATION,
            },
            random=True,
        ),
        "random_crop": Op(_cropped, {"size": Parameter(_area)}, random=True),
        "horizontal_flip": Op(_same, {"p": _PROBABILITY}, random=True),
        "vertical_flip": Op(_same, {"p": _PROBABILITY}, random=True),
        "custom": Op(
            lambda _shape, _step: DECODED,  # a later step for images requires its channels
            {
                "name": Parameter(_custom_name),
                "params": Parameter(_json_mapping, {}),
                "random": Parameter(_flag, default=False),
                "input": Parameter(_one_of("image", "bytes"), "image", later=True),
            },
        ),
    }
)


def canonical_steps(steps: object) -> tuple[Mapping[str, Any], ...]:
    """Return the canonical form of a list of steps. Raises ``RecipeError`` if it is invalid."""
    if isinstance(steps, (str, bytes)) or not isinstance(steps, Sequence):
        raise RecipeError(f"a recipe's steps must be a list of mappings, not {steps!r}")
    if len(steps) > _MAX_STEPS:
        raise RecipeError(f"a recipe may have at most {_MAX_STEPS} steps, but this one has {len(steps)}")
    is_mask = bool(steps) and isinstance(steps[0], Mapping) and steps[0].get("op") == "mask"
    return tuple(canonical_step(step, number, is_mask=is_mask) for number, step in enumerate(steps, start=1))


def canonical_step(step: object, number: int, *, is_mask: bool = False) -> Mapping[str, Any]:
    """Return the canonical form of a step as a new mapping. Raises ``RecipeError`` if it is invalid.

    ``number`` is the step's position, from 1. If ``is_mask``, pixels are class numbers, which must not be
    interpolated.
    """
    if not isinstance(step, Mapping) or not isinstance(step.get("op"), str):
        raise RecipeError(
            f'step {number} must be a mapping such as {{"op": "resize", "size": 256}}, not {step!r}'
        )
    op = step["op"]
    kind = OPS.get(op)
    if kind is None:
        raise RecipeError(f"step {number}: unknown step {op!r}; the steps are {', '.join(OPS)}")
    unknown = [str(name) for name in step if name != "op" and name not in kind.parameters]
    if unknown:
        raise RecipeError(
            f"step {number} ({op}) has no parameter {', '.join(unknown)}; its parameters are "
            f"{', '.join(kind.parameters)}"
        )
    if is_mask and "interpolation" in kind.parameters:
        step = {"interpolation": "nearest", **step}
    # Equivalent steps must have the same digest, so include all parameters, with one type of number.
    canonical: dict[str, Any] = {"op": op}
    for name, parameter in kind.parameters.items():
        value = step.get(name, parameter.default)
        if value is _REQUIRED:
            raise RecipeError(f"step {number} ({op}) needs the parameter {name}")
        if parameter.later and value is parameter.default:
            continue
        value = _read(parameter, value, f"step {number} ({op}): {name}")
        if not parameter.later or value != parameter.default:
            canonical[name] = value
    if fault := kind.fault(canonical) or _misplaced(kind, canonical, number, is_mask=is_mask):
        raise RecipeError(f"step {number} ({op}): {fault}")
    return canonical


def _read(parameter: Parameter, value: Any, where: str) -> Any:
    try:
        return parameter.read(value)
    except ValueError as error:
        raise RecipeError(f"{where} must be {error}, not {reprlib.repr(value)}") from None


def _misplaced(kind: Op, step: Mapping[str, Any], number: int, *, is_mask: bool) -> str:
    if number > 1 and kind.decodes:
        return "it controls decoding, so it must be the first step"
    if number > 1 and step.get("input") == "bytes":
        return 'only the first step can have input "bytes"; later ones process the previous step\'s result'
    if is_mask and step["op"] == "grayscale":
        return "a mask contains numbers, not colours"
    if is_mask and "interpolation" in kind.parameters and step.get("interpolation") != "nearest":
        return "the numbers of a mask must not be interpolated: use interpolation nearest"
    return ""
