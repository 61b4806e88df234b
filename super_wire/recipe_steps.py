"""The steps of a recipe: which there are, how their parameters are read, and what shape they make.

A step is kept in a canonical form, so that equal meaning gives an equal digest: all parameters present (but
``input`` at its default), numbers of one type, nothing else. What the steps do to pixels is
:mod:`superdl.lambda_prefetch`'s. A new step is a row of :data:`OPS` here, and a function there.

=======================  =================================================================================
``reduced_decode``       JPEGs are decoded at the smallest of the scales 1, 1/2, 1/4 and 1/8 that leaves the
                         shorter side ``size`` pixels: faster for large images, and other pixels. Other
                         formats are decoded whole. Only the first step may be this.
``resize``               ``size``: the shorter side in pixels; bilinear, antialiased
``center_crop``          ``size``: side of the square; smaller images are padded with zeros, as torchvision
                         does
``random_resized_crop``  ``size``, ``scale`` (share of the area, default 0.08 to 1), ``ratio`` (default 3/4
                         to 4/3)
``horizontal_flip``      ``p``: probability, default 0.5
``custom``               ``name``: ``module:function@version``, ``params``: JSON mapping, ``random``: whether
                         it draws, ``input``: ``"image"`` (default) or, of the first step alone, ``"bytes"``:
                         the object's, not decoded
=======================  =================================================================================
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

from superdl.super_wire.errors import RecipeError

__all__ = ["DECODED", "MAX_SIDE", "OPS", "Op", "Parameter", "Shape", "canonical_step", "split_custom_name"]

MAX_SIDE = 16384
"""Largest side in pixels that a step may ask for."""

Shape: TypeAlias = "tuple[int | None, int | None, int]"
"""(height, width, channels) of what a step makes; ``None`` where that follows the image."""

DECODED: Shape = (None, None, 3)
"""The shape of an image before the first step."""

_CUSTOM_NAME = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)@([\w.+-]+)")
_MAX_CUSTOM_JSON = 65536
_CUSTOM_INPUTS = ("image", "bytes")


def split_custom_name(name: str) -> tuple[str, str, str]:
    """Module, function and version of a custom step's ``module:function@version``."""
    match = _CUSTOM_NAME.fullmatch(name)
    if match is None:
        raise RecipeError(f"a custom step is named module:function@version; not {name!r}")
    module, function, version = match.groups()
    return module, function, version


class _Value:
    """Reads one parameter and says what is wrong with it, by step number, name and value."""

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

    def square(self) -> int:
        """A side, or a pair of equal sides as torchvision allows."""
        if isinstance(self.value, (list, tuple)):
            expected = "a side, or a pair of equal sides"
            if len(self.value) != 2 or self.value[0] != self.value[1]:  # noqa: PLR2004  # a pair
                self.fail(expected)
            return _Value(self.where, self.value[0]).side()
        return self.side()

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

    def custom_input(self) -> str:
        if self.value not in _CUSTOM_INPUTS:
            self.fail('"image" or "bytes"')
        return str(self.value)

    def json_mapping(self) -> dict[str, Any]:
        if not isinstance(self.value, Mapping):
            self.fail("a mapping of JSON values")
        try:
            text = json.dumps(dict(self.value), sort_keys=True, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            self.fail("a mapping of JSON values")
        if len(text) > _MAX_CUSTOM_JSON:
            self.fail(f"at most {_MAX_CUSTOM_JSON} bytes of JSON")
        parsed: dict[str, Any] = json.loads(text)
        return parsed


_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a step: how its value is read, and which it has where a step does not say it.

    One that came ``later`` is left out of the canonical form at its default, so that a recipe written before
    keeps its digest, and with it the samples that are cached under it.
    """

    read: Callable[[_Value], Any]
    default: Any = _REQUIRED
    later: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """One kind of step: the shape that it makes of a shape, and its parameters.

    ``random`` ones draw for each sample. Those that ``decode`` say how there come to be pixels, so that only
    the first step may be one.
    """

    shape: Callable[[Shape, Mapping[str, Any]], Shape]
    parameters: Mapping[str, Parameter]
    random: bool = False
    decodes: bool = False


def _any_size(shape: Shape, _: Mapping[str, Any]) -> Shape:
    return (None, None, shape[2])


def _same(shape: Shape, _: Mapping[str, Any]) -> Shape:
    return shape


def _square(shape: Shape, step: Mapping[str, Any]) -> Shape:
    return (step["size"], step["size"], shape[2])


_AREA, _ASPECT = (0.0, 1.0), (0.0, 100.0)

OPS: Mapping[str, Op] = MappingProxyType(
    {
        "reduced_decode": Op(_any_size, {"size": Parameter(_Value.side)}, decodes=True),
        "resize": Op(_any_size, {"size": Parameter(_Value.side)}),
        "center_crop": Op(_square, {"size": Parameter(_Value.square)}),
        "random_resized_crop": Op(
            _square,
            {
                "size": Parameter(_Value.square),
                "scale": Parameter(lambda value: value.span(*_AREA), (0.08, 1.0)),
                "ratio": Parameter(lambda value: value.span(*_ASPECT), (3 / 4, 4 / 3)),
            },
            random=True,
        ),
        "horizontal_flip": Op(_same, {"p": Parameter(_Value.probability, 0.5)}, random=True),
        "custom": Op(
            _any_size,
            {
                "name": Parameter(_Value.custom_name),
                "params": Parameter(_Value.json_mapping, {}),
                "random": Parameter(_Value.flag, default=False),
                "input": Parameter(_Value.custom_input, "image", later=True),
            },
        ),
    }
)
"""All steps by their names."""


def canonical_step(step: object, number: int) -> Mapping[str, Any]:
    """The canonical form of a step, a new mapping.

    Args:
        step: a mapping with ``op`` and that step's parameters.
        number: its place in the recipe, from 1, for error messages.

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
    canonical: dict[str, Any] = {"op": op}
    for name, parameter in kind.parameters.items():
        value = step.get(name, parameter.default)
        if value is _REQUIRED:
            raise RecipeError(f"step {number} ({op}) needs the parameter {name}")
        value = parameter.read(_Value(f"step {number} ({op}): {name}", value))
        if not parameter.later or value != parameter.default:
            canonical[name] = value
    if canonical.get("input") == "bytes" and number != 1:
        raise RecipeError(
            f'step {number} ({op}): input is "bytes" of the first step only; a later one gets what it made'
        )
    if kind.decodes and number != 1:
        raise RecipeError(
            f"step {number} ({op}) says how images are decoded, so it can only be the first step"
        )
    return canonical
