"""Recipes: the declarative work that a function does on a sample.

A recipe is a list of steps, kept in a canonical form so that equal meaning gives an equal digest, and carried
as JSON: it holds no code. Canonical means: all parameters present (but ``input`` at its default), numbers of
one type, nothing else. What the steps do to pixels is :mod:`superdl.lambda_prefetch`'s.

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
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from superdl.super_wire.errors import RecipeError
from superdl.super_wire.ids import digest128

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "DECODE_OPS",
    "MAX_SIDE",
    "OPS",
    "PIPELINE_VERSION",
    "Recipe",
    "canonical_step",
    "split_custom_name",
]

PIPELINE_VERSION = 1
"""Part of every digest; raised whenever a step would give other pixels than before."""

MAX_SIDE = 16384
"""Largest side in pixels that a step may ask for."""

DECODE_OPS = frozenset({"reduced_decode"})
"""Steps that say how an image is decoded, before there are pixels."""

RANDOM_OPS = frozenset({"random_resized_crop", "horizontal_flip"})
SHAPE_KEEPING_OPS = frozenset({"horizontal_flip"})

_CUSTOM_NAME = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)@([\w.+-]+)")
_MAX_CUSTOM_JSON = 65536
_CUSTOM_INPUTS = ("image", "bytes")
_MAX_STEPS = 64
_INT64 = 2**63


class Recipe:
    """What is done to every sample between its bytes and the cache.

    An encoded image is first decoded to upright RGB uint8 of shape (height, width, 3), unless the first step
    is a custom one that takes ``"bytes"``; then the steps run in order. Equality, hash and :attr:`digest`
    follow the canonical form: ``Recipe.image(crop=224)`` and a recipe whose step says ``"size": 224.0`` are
    one.

    >>> recipe = Recipe([{"op": "resize", "size": 256}, {"op": "center_crop", "size": 224}])
    >>> recipe == Recipe.image(resize=256, crop=224)
    True
    >>> recipe.output_shape
    (224, 224, 3)

    Args:
        steps: mappings such as ``{"op": "resize", "size": 256}``; see above.
        augment_seed: seeds random steps, together with epoch and sample; without random steps it has no
            effect. It is not the shuffle seed, so that trials with different shuffles share samples.

    Raises:
        RecipeError: a step is unknown, ill-typed or out of range; the message names it.
    """

    __slots__ = ("augment_seed", "digest", "json", "steps")

    augment_seed: int
    digest: bytes
    """BLAKE2b-128 of pipeline version and canonical steps; the augment seed is the sample id's."""
    json: str
    """The canonical JSON; equal recipes give equal text."""
    steps: tuple[Mapping[str, Any], ...]

    def __init__(self, steps: Sequence[Mapping[str, Any]], *, augment_seed: int = 0) -> None:
        if isinstance(steps, (str, bytes)) or not hasattr(steps, "__len__"):
            raise RecipeError(f"a recipe's steps are a list of mappings; not {steps!r}")
        if len(steps) > _MAX_STEPS:
            raise RecipeError(f"a recipe has at most {_MAX_STEPS} steps; this one has {len(steps)}")
        if isinstance(augment_seed, bool) or not isinstance(augment_seed, int):
            raise RecipeError(f"augment_seed is an integer; not {augment_seed!r}")
        if not -_INT64 <= augment_seed < _INT64:
            raise RecipeError(f"augment_seed fits in 64 bits with sign; {augment_seed} does not")
        self.steps = tuple(canonical_step(step, number) for number, step in enumerate(steps, start=1))
        self.augment_seed = augment_seed if self.random else 0
        work = {"pipeline": PIPELINE_VERSION, "steps": self.steps}
        self.digest = digest128(_dump(work).encode())
        self.json = _dump({**work, "augment_seed": self.augment_seed})

    @classmethod
    def image(
        cls, *, resize: int | None = None, crop: int | None = None, reduced_decode: bool = False
    ) -> Recipe:
        """The usual evaluation preprocessing of torchvision, as pixels.

        Args:
            resize: the shorter side in pixels; ``None`` leaves images as large as they are.
            crop: side of the central square in pixels. With it every sample is uint8 of shape
                (crop, crop, 3); without it shapes follow the images.
            reduced_decode: JPEGs whose shorter side is at least twice ``resize`` are decoded at 1/2, 1/4 or
                1/8 of their size before they are resized. That is several times faster for large images and
                gives other pixels, so these are other samples than those of the same recipe without it.

        Raises:
            RecipeError: a size is out of range, or ``reduced_decode`` has no ``resize`` to decode for.
        """
        steps: list[Mapping[str, Any]] = []
        if reduced_decode:
            if resize is None:
                raise RecipeError("reduced_decode decodes for the size of resize: give resize too")
            steps.append({"op": "reduced_decode", "size": resize})
        if resize is not None:
            steps.append({"op": "resize", "size": resize})
        if crop is not None:
            steps.append({"op": "center_crop", "size": crop})
        return cls(steps)

    @classmethod
    def from_json(cls, text: str | bytes) -> Recipe:
        """Read what :attr:`json` gave; a recipe of another pipeline version is refused."""
        try:
            fields = json.loads(text)
            version, steps, seed = fields["pipeline"], fields["steps"], fields["augment_seed"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RecipeError(f"a recipe is JSON with pipeline, steps and augment_seed: {error!r}") from error
        if version != PIPELINE_VERSION:
            raise RecipeError(
                f"the recipe wants pipeline {version!r}, not {PIPELINE_VERSION}: use one version of SUPER"
            )
        return cls(steps, augment_seed=seed)

    @property
    def random(self) -> bool:
        """Whether a step is random, so that every epoch has fresh sample ids."""
        return any(step["op"] in RANDOM_OPS or step.get("random", False) for step in self.steps)

    @property
    def decodes(self) -> bool:
        """Whether an object is decoded as an image before the first step; else that gets its bytes."""
        return not self.steps or self.steps[0].get("input") != "bytes"

    @property
    def output_shape(self) -> tuple[int, int, int] | None:
        """(height, width, 3) of every sample; ``None`` where shapes follow the images or a custom step."""
        shape = None
        for step in self.steps:
            if step["op"] in {"center_crop", "random_resized_crop"}:
                shape = (step["size"], step["size"], 3)
            elif step["op"] not in SHAPE_KEEPING_OPS:
                shape = None
        return shape

    def __eq__(self, other: object) -> bool:
        return self.json == other.json if isinstance(other, Recipe) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.json)

    def __repr__(self) -> str:
        seed = f", augment_seed={self.augment_seed}" if self.random else ""
        return f"Recipe({[dict(step) for step in self.steps]}{seed})"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Recipe.from_json, (self.json,)


def _dump(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def split_custom_name(name: str) -> tuple[str, str, str]:
    """Module, function and version of a custom step's ``module:function@version``."""
    match = _CUSTOM_NAME.fullmatch(name)
    if match is None:
        raise RecipeError(f"a custom step is named module:function@version; not {name!r}")
    module, function, version = match.groups()
    return module, function, version


class _Parameter:
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
            return _Parameter(self.where, self.value[0]).side()
        return self.side()

    def probability(self) -> float:
        return self.number(0, 1, "a probability from 0 to 1")

    def span(self, low: float, high: float) -> list[float]:
        expected = f"a pair (low, high) with {low} < low <= high <= {high}"
        if not isinstance(self.value, (list, tuple)) or len(self.value) != 2:  # noqa: PLR2004  # a pair
            self.fail(expected)
        first, second = (_Parameter(self.where, side).number(low, high, expected) for side in self.value)
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
_AREA, _ASPECT = (0.0, 1.0), (0.0, 100.0)

# step -> parameter -> (how it is read, default)
OPS: Mapping[str, Mapping[str, tuple[Callable[[_Parameter], Any], Any]]] = MappingProxyType(
    {
        "reduced_decode": {"size": (_Parameter.side, _REQUIRED)},
        "resize": {"size": (_Parameter.side, _REQUIRED)},
        "center_crop": {"size": (_Parameter.square, _REQUIRED)},
        "random_resized_crop": {
            "size": (_Parameter.square, _REQUIRED),
            "scale": (lambda p: p.span(*_AREA), (0.08, 1.0)),
            "ratio": (lambda p: p.span(*_ASPECT), (3 / 4, 4 / 3)),
        },
        "horizontal_flip": {"p": (_Parameter.probability, 0.5)},
        "custom": {
            "name": (_Parameter.custom_name, _REQUIRED),
            "params": (_Parameter.json_mapping, {}),
            "random": (_Parameter.flag, False),
            "input": (_Parameter.custom_input, "image"),
        },
    }
)


# Parameters that came later: where they have their default they are left out, so that a recipe written before
# keeps its digest, and with it the samples that are cached under it.
_LEFT_OUT_AT_DEFAULT = frozenset({"input"})


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
    parameters = OPS.get(op)
    if parameters is None:
        raise RecipeError(f"step {number}: there is no step {op!r}; there are {', '.join(OPS)}")
    unknown = [str(name) for name in step if name != "op" and name not in parameters]
    if unknown:
        raise RecipeError(
            f"step {number} ({op}) has no parameter {', '.join(unknown)}; it has {', '.join(parameters)}"
        )
    canonical: dict[str, Any] = {"op": op}
    for name, (read, default) in parameters.items():
        value = step.get(name, default)
        if value is _REQUIRED:
            raise RecipeError(f"step {number} ({op}) needs the parameter {name}")
        value = read(_Parameter(f"step {number} ({op}): {name}", value))
        if name not in _LEFT_OUT_AT_DEFAULT or value != default:
            canonical[name] = value
    if canonical.get("input") == "bytes" and number != 1:
        raise RecipeError(
            f'step {number} ({op}): input is "bytes" of the first step only; a later one gets what it made'
        )
    if op in DECODE_OPS and number != 1:
        raise RecipeError(
            f"step {number} ({op}) says how images are decoded, so it can only be the first step"
        )
    return canonical
