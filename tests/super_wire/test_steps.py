"""A step that is unknown, incomplete or ill-typed is refused by its number, name and value."""

from __future__ import annotations

import pytest

from superdl.super_wire.errors import RecipeError
from superdl.super_wire.recipe import (
    MAX_SIDE,
    OPS,
    canonical_step,
)

GOOD = {
    "reduced_decode": {"size": 8},
    "resize": {"size": 8},
    "center_crop": {"size": 8},
    "random_resized_crop": {"size": 8},
    "horizontal_flip": {},
    "custom": {"name": "m:f@1"},
}
NOT_NUMBERS = [None, "8", True, False, [], {}, b"8", 8j, object()]
NOT_SIDES = [*NOT_NUMBERS, 0, -1, 8.5, MAX_SIDE + 1, float("nan"), float("inf"), 10**400]
NOT_SQUARES = [*NOT_SIDES, [8], [8, 9], [8, 8, 8], (0, 0), ["8", "8"]]
NOT_SPANS = [
    *NOT_NUMBERS, 0.5, [0.5], [0.1, 0.5, 1], [0.5, 0.1], [0, 1], [-0.1, 1], [None, 1], [0.5, float("nan")],
    ["0.1", "0.5"], "ab", [0.5, 101], [0.5, 10**400],
]  # fmt: skip
NOT_NAMES = [
    None, 5, "", "f", "m:f", "m@1", "m:f@", ":f@1", "m:f@1 ", "m:f@1;import os", "m/n:f@1", "1:f@1",
]  # fmt: skip
NOT_JSON = [
    None, 5, "{}", [], {"a": object()}, {"a": float("nan")}, {"a": {1, 2}}, {"a": "x" * 70_000},
]  # fmt: skip
BAD = {
    ("reduced_decode", "size"): [*NOT_SIDES, [8, 8]],
    ("resize", "size"): [*NOT_SIDES, [8, 8]],
    ("center_crop", "size"): NOT_SQUARES,
    ("random_resized_crop", "size"): NOT_SQUARES,
    ("random_resized_crop", "scale"): [*NOT_SPANS, [0.5, 1.01]],
    ("random_resized_crop", "ratio"): NOT_SPANS,
    ("horizontal_flip", "p"): [*NOT_NUMBERS, -0.01, 1.01, float("nan")],
    ("custom", "name"): NOT_NAMES,
    ("custom", "params"): NOT_JSON,
    ("custom", "random"): [None, 0, 1, "true"],
    ("custom", "input"): [None, 0, "", "Bytes", "text", ["bytes"], b"bytes"],
}


@pytest.mark.parametrize("op", OPS)
def test_good_steps_have_all_parameters_in_canonical_form(op):
    step = canonical_step({"op": op, **GOOD[op]}, 1)
    assert set(step) == {"op", *OPS[op]} - {"input"}  # which came later: there if not the default
    assert canonical_step(step, 1) == step


@pytest.mark.parametrize(
    ("op", "name", "value"),
    [(op, name, value) for (op, name), values in BAD.items() for value in values],
    ids=lambda v: repr(v)[:20],
)
def test_ill_typed_parameters(op, name, value):
    with pytest.raises(RecipeError, match=rf"^step 3 \({op}\): {name} is ") as caught:
        canonical_step({"op": op, **GOOD[op], name: value}, 3)
    assert len(str(caught.value)) < 500


def test_unknown_steps():
    with pytest.raises(RecipeError, match="no step 'resise'; there are reduced_decode, resize, center_crop"):
        canonical_step({"op": "resise"}, 1)


@pytest.mark.parametrize("op", OPS)
def test_unknown_parameters(op):
    with pytest.raises(RecipeError, match=rf"\({op}\) has no parameter sise; it has {', '.join(OPS[op])}"):
        canonical_step({"op": op, **GOOD[op], "sise": 1}, 1)


@pytest.mark.parametrize(
    ("op", "name"),
    [("resize", "size"), ("center_crop", "size"), ("random_resized_crop", "size"), ("custom", "name")],
)
def test_missing_parameters(op, name):
    with pytest.raises(RecipeError, match=rf"step 4 \({op}\) needs the parameter {name}"):
        canonical_step({"op": op}, 4)


@pytest.mark.parametrize(
    "step", [None, "resize", [], ["op", "resize"], {}, {"op": 5}, {"op": None}, {"size": 8}]
)
def test_what_is_no_step(step):
    with pytest.raises(RecipeError, match=r'step 1 is a mapping such as {"op": "resize", "size": 256}'):
        canonical_step(step, 1)


def test_how_images_are_decoded_is_said_first():
    assert canonical_step({"op": "reduced_decode", "size": 8.0}, 1) == {"op": "reduced_decode", "size": 8}
    with pytest.raises(RecipeError, match=r"step 2 \(reduced_decode\).*first step"):
        canonical_step({"op": "reduced_decode", "size": 8}, 2)
