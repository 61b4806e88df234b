"""Recipes: canonical form, digests, serialization and validation."""

import copy
import json
import pickle

import pytest

from superdl.super_wire.errors import RecipeError
from superdl.super_wire.recipe import PIPELINE_VERSION, Recipe
from superdl.super_wire.recipe_steps import MAX_SIDE, OPS, canonical_step


def one(op, **parameters):
    return Recipe([{"op": op, **parameters}])


SAME = [
    [
        *(one("resize", size=size) for size in (224, 224.0)),
        one("resize", size=224, interpolation="bilinear", max_size=None),
        one("resize", size=224, interpolation=json.loads('"bilinear"')),
        Recipe.image(resize=224),
    ],
    [one("resize", size=[224, 224]), one("resize", size=(224, 224.0))],
    [one("pad", padding=4), one("pad", padding=[4], mode="constant"), one("pad", padding=[4, 4])],
    [one("pad", padding=[1, 2]), one("pad", padding=(1, 2, 1, 2))],
    [one("grayscale"), one("grayscale", channels=1.0)],
    [*(one("center_crop", size=s) for s in (224, [224, 224], (224, 224.0))), Recipe.image(crop=224)],
    [
        one("random_resized_crop", size=64),
        one("random_resized_crop", size=64, interpolation="bilinear"),
        one("random_resized_crop", size=[64, 64], scale=(0.08, 1), ratio=[3 / 4, 4 / 3]),
    ],
    [one("horizontal_flip"), one("horizontal_flip", p=0.5)],
    [one("horizontal_flip", p=0), one("horizontal_flip", p=-0.0), one("horizontal_flip", p=0.0)],
    [
        one("custom", name="m:f@1"),
        one("custom", name="m:f@1", params={}, random=False),
        one("custom", params={}, name="m:f@1"),
        one("custom", name="m:f@1", input="image"),
    ],
    [
        one("custom", name="m:f@1", params={"a": (1, 2), "b": None}),
        one("custom", name="m:f@1", params={"b": None, "a": [1, 2]}),
    ],
    [one("custom", name="m:f@1", params={"\u732b": 0.1}), one("custom", name="m:f@1", params={"猫": 1e-1})],
    [Recipe([]), Recipe(()), Recipe.image()],
]


@pytest.mark.parametrize("same", SAME, ids=lambda same: repr(same[0]))
def test_equivalent_recipes_have_equal_digests(same):
    assert len({recipe.digest for recipe in same}) == 1
    assert len(set(same)) == 1


@pytest.mark.parametrize("recipe", [same[-1] for same in SAME], ids=repr)
def test_a_recipe_survives_json_pickling_and_copying(recipe):
    for seed in (0, -(2**63), 2**63 - 1):
        seeded = Recipe(recipe.steps, augment_seed=seed)
        for other in (
            Recipe.from_json(seeded.json),
            Recipe.from_json(seeded.json.encode()),
            pickle.loads(pickle.dumps(seeded)),
            copy.deepcopy(seeded),
        ):
            assert other == seeded
            assert hash(other) == hash(seeded)
            assert (other.json, other.digest, other.steps) == (seeded.json, seeded.digest, seeded.steps)
            assert other.augment_seed == seeded.augment_seed
    assert recipe.json.isascii()


def test_the_augment_seed_distinguishes_random_recipes_only_and_is_not_in_the_digest():
    random = [{"op": "horizontal_flip"}]
    assert Recipe(random, augment_seed=1).digest == Recipe(random, augment_seed=2).digest
    assert Recipe(random, augment_seed=1) != Recipe(random, augment_seed=2)
    assert Recipe([], augment_seed=1) == Recipe([], augment_seed=2)
    assert Recipe([], augment_seed=1).augment_seed == 0


def test_golden_values():
    """Change these only together with the pipeline version."""
    assert PIPELINE_VERSION == 1
    recipe = Recipe.image(resize=256, crop=224)
    assert recipe.json == (
        '{"augment_seed":0,"pipeline":1,"steps":[{"op":"resize","size":256},{"op":"center_crop","size":224}]}'
    )
    assert recipe.digest.hex() == "e1b51ba99ee5871e35362942ad913c40"
    assert one("random_resized_crop", size=224).json == (
        '{"augment_seed":0,"pipeline":1,"steps":[{"op":"random_resized_crop",'
        '"ratio":[0.75,1.3333333333333333],"scale":[0.08,1.0],"size":224}]}'
    )


@pytest.mark.parametrize(
    ("steps", "digest"),
    [
        ([{"op": "resize", "size": 256}], "e5de0d1b2e9f9f70d9eea850fd77a1dc"),
        ([{"op": "center_crop", "size": 224}], "aafc0b62ad8072b18c192479606d94a6"),
        ([{"op": "random_resized_crop", "size": 224}], "cbe69d6d81bd60228a328a71481d275b"),
        ([{"op": "horizontal_flip"}], "6c17aedc07e3f7dbecd4d6f965e135ac"),
        ([{"op": "custom", "name": "m:f@1"}], "8319d4693eb57599967095f994a23a3a"),
        (
            [
                {"op": "reduced_decode", "size": 256},
                {"op": "resize", "size": 256},
                {"op": "center_crop", "size": 224},
            ],
            "fdd435daf783920f76ea9e53c83d8e24",
        ),
        (
            [
                {"op": "random_resized_crop", "size": 64, "scale": [0.3, 1], "ratio": [0.5, 2]},
                {"op": "horizontal_flip", "p": 0.25},
            ],
            "62b9a6b366aa4528780bb2017fadf40b",
        ),
    ],
)
def test_a_recipe_keeps_its_digest_when_a_step_gains_a_parameter(steps, digest):
    """Digests from before ``input``, ``interpolation`` and ``max_size`` existed."""
    assert Recipe(steps).digest.hex() == digest


def test_images_are_not_decoded_if_the_first_step_reads_bytes():
    takes_bytes = {"op": "custom", "name": "m:f@1", "input": "bytes"}
    assert not Recipe([takes_bytes]).decodes
    assert not Recipe([takes_bytes, {"op": "resize", "size": 8}]).decodes
    assert Recipe([]).decodes
    assert one("custom", name="m:f@1").decodes
    with pytest.raises(
        RecipeError, match=r"step 1 \(custom\): input must be one of image, bytes, not \'text\'"
    ):
        one("custom", name="m:f@1", input="text")


@pytest.mark.parametrize(
    ("steps", "shape"),
    [
        ([], None),
        ([{"op": "random_resized_crop", "size": 9}, {"op": "horizontal_flip"}], (9, 9, 3)),
        ([{"op": "center_crop", "size": 8}, {"op": "resize", "size": 4}], None),
        ([{"op": "resize", "size": [8, 9]}, {"op": "vertical_flip"}], (8, 9, 3)),
        ([{"op": "resize", "size": [8, 9]}, {"op": "pad", "padding": [1, 2, 3, 4]}], (14, 13, 3)),
        ([{"op": "pad", "padding": 4}, {"op": "random_crop", "size": [8, 9]}], (8, 9, 3)),
        ([{"op": "grayscale"}, {"op": "center_crop", "size": [8, 9]}], (8, 9, 1)),
        ([{"op": "center_crop", "size": 8}, {"op": "custom", "name": "m:f@1"}], None),
        ([{"op": "custom", "name": "m:f@1"}, {"op": "center_crop", "size": 8}], (8, 8, 3)),
    ],
)
def test_output_shape(steps, shape):
    assert Recipe(steps).output_shape == shape


GOOD = {
    "decode": {"truncated": "fill"},
    "reduced_decode": {"size": 8},
    "mask": {},
    "resize": {"size": 8},
    "center_crop": {"size": 8},
    "pad": {"padding": 8},
    "grayscale": {},
    "random_resized_crop": {"size": 8},
    "random_crop": {"size": 8},
    "horizontal_flip": {},
    "vertical_flip": {},
    "custom": {"name": "m:f@1"},
}
NOT_NUMBERS = [None, "8", True, False, [], {}, b"8", 8j, object()]
NOT_SIDES = [*NOT_NUMBERS, 0, -1, 8.5, MAX_SIDE + 1, float("nan"), float("inf"), 10**400]
NOT_AREAS = [*NOT_SIDES, [8], [8, 8, 8], (0, 0), [8, 8.5], ["8", "8"], [8, True]]
NOT_SPANS = [
    *NOT_NUMBERS, 0.5, [0.5], [0.1, 0.5, 1], [0.5, 0.1], [0, 1], [-0.1, 1], [None, 1], [0.5, float("nan")],
    ["0.1", "0.5"], "ab", [0.5, 101], [0.5, 10**400],
]  # fmt: skip
NOT_PROBABILITIES = [*NOT_NUMBERS, -0.01, 1.01, float("nan")]
NOT_FILTERS = [None, 2, "", "Bicubic", "nearest-exact", ["box"]]
NOT_NAMES = [
    None, 5, "", "f", "m:f", "m@1", "m:f@", ":f@1", "m:f@1 ", "m:f@1;import os", "m/n:f@1", "1:f@1",
]  # fmt: skip
NOT_JSON = [
    None, 5, "{}", [], {"a": object()}, {"a": float("nan")}, {"a": {1, 2}}, {"a": "x" * 70_000},
]  # fmt: skip
BAD = {
    **{(op, "truncated"): [None, 5, "FILL", "skip", True] for op in ("decode", "reduced_decode", "mask")},
    ("reduced_decode", "size"): [*NOT_SIDES, [8, 8]],
    ("resize", "size"): NOT_AREAS,
    ("resize", "max_size"): [one for one in NOT_SIDES if one is not None],
    ("resize", "interpolation"): NOT_FILTERS,
    ("center_crop", "size"): NOT_AREAS,
    ("pad", "padding"): [*NOT_NUMBERS, -1, 0.5, MAX_SIDE + 1, [1, 2, 3], [1] * 5, [0, -1], [1, "2"]],
    ("pad", "mode"): [None, 0, "", "wrap", ["edge"]],
    ("grayscale", "channels"): [*NOT_NUMBERS, 0, 2, 4, 1.5],
    ("random_resized_crop", "size"): NOT_AREAS,
    ("random_resized_crop", "scale"): [*NOT_SPANS, [0.5, 1.01]],
    ("random_resized_crop", "ratio"): NOT_SPANS,
    ("random_resized_crop", "interpolation"): NOT_FILTERS,
    ("random_crop", "size"): NOT_AREAS,
    ("horizontal_flip", "p"): NOT_PROBABILITIES,
    ("vertical_flip", "p"): NOT_PROBABILITIES,
    ("custom", "name"): NOT_NAMES,
    ("custom", "params"): NOT_JSON,
    ("custom", "random"): [None, 0, 1, "true"],
    ("custom", "input"): [None, 0, "", "Bytes", "text", ["bytes"], b"bytes"],
}


@pytest.mark.parametrize(
    ("op", "name", "value"),
    [(op, name, value) for (op, name), values in BAD.items() for value in values],
    ids=lambda v: repr(v)[:20],
)
def test_invalid_parameters_are_refused_with_step_and_name(op, name, value):
    with pytest.raises(RecipeError, match=rf"^step 3 \({op}\): {name} must be ") as caught:
        canonical_step({"op": op, **GOOD[op], name: value}, 3)
    assert len(str(caught.value)) < 500


FLIP = {"op": "horizontal_flip"}
REFUSED = {
    "a list of mappings|must be a mapping such as": [
        "resize",
        b"resize",
        None,
        5,
        iter([]),
        {"op": "resize", "size": 8},
    ],
    'step 2 must be a mapping such as {"op": "resize", "size": 256}': [
        [FLIP, step]
        for step in (None, "flip", [], ["op", "resize"], {}, {"op": 5}, {"op": None}, {"size": 8})
    ],
    "unknown step 'resise'; the steps are decode, reduced_decode, mask, resize, center_crop": [
        [{"op": "resise"}]
    ],
    "at most 64 steps, but this one has 65": [[FLIP] * 65],
    r"step 2 \(mask\).*first step": [[FLIP, {"op": "mask"}]],
    r"step 2 \(resize\): the numbers of a mask must not be interpolated": [
        [{"op": "mask"}, {"op": "resize", "size": 8, "interpolation": name}] for name in ("box", "bilinear")
    ],
    r"step 2 \(grayscale\): a mask contains numbers": [[{"op": "mask"}, {"op": "grayscale"}]],
    "fields must be image, the object in a list's key": [
        {"mask": []},
        {},
        {"image": []} | {f"f{n}": [] for n in range(16)},
    ],
    "a field name must": [{"image": [], name: []} for name in ("", "a.b", "label", "1", 5)],
    r"step 2 \(reduced_decode\).*first step": [[FLIP, {"op": "reduced_decode", "size": 8}]],
    r"step 1 \(resize\): max_size limits the longer side": [
        [{"op": "resize", "size": size, "max_size": 8}] for size in (8, 9, [4, 4])
    ],
    r'step 2 \(custom\): only the first step can have input "bytes"': [
        [FLIP, {"op": "custom", "name": "m:f@1", "input": "bytes"}]
    ],
    **{
        rf"\({op}\) has no parameter sise; its parameters are {', '.join(kind.parameters)}": [
            [{"op": op, **GOOD[op], "sise": 1}]
        ]
        for op, kind in OPS.items()
    },
    **{rf"\({op}\) needs the parameter {name}": [[{"op": op}]] for op in GOOD for name in GOOD[op]},
}


@pytest.mark.parametrize(
    ("words", "steps"),
    [(words, steps) for words, every in REFUSED.items() for steps in every],
    ids=lambda one: repr(one).partition(" object at ")[0][:30],
)
def test_invalid_steps_are_refused(words, steps):
    with pytest.raises(RecipeError, match=words):
        Recipe(steps)


def test_a_recipe_can_have_fields():
    flip = Recipe([FLIP], augment_seed=3)
    recipe = Recipe.fields(mask=Recipe.mask(resize=8, crop=4), depth=Recipe.mask(), image=flip)
    assert list(recipe.parts) == ["image", "depth", "mask"]
    assert recipe.beside == ("depth", "mask")
    assert recipe.steps == flip.steps
    assert (recipe.random, recipe.augment_seed, recipe.output_shape) == (True, 3, None)
    assert recipe.parts["mask"].steps[1] == {"op": "resize", "size": 8, "interpolation": "nearest"}
    assert Recipe.from_json(recipe.json) == recipe == pickle.loads(pickle.dumps(recipe))
    assert len({recipe.digest, flip.digest, Recipe.fields(image=flip).digest}) == 3
    assert not Recipe.fields(image=Recipe.image(), mask=Recipe.mask()).random
    with pytest.raises(RecipeError, match=r"one augment_seed, not \[3, 4\]"):
        Recipe.fields(image=flip, mask=Recipe([FLIP], augment_seed=4))
    with pytest.raises(RecipeError, match="the field mask needs a recipe such as"):
        Recipe.fields(image=flip, mask=recipe)
