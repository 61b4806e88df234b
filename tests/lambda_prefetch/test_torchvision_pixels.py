"""Steps against torchvision itself, on PIL images: every pixel is equal."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.lambda_prefetch.transforms import Program, SampleRandom, random_crop_box
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.recipe_steps import INTERPOLATIONS, PADDING_MODES
from tests.fixtures.torchvision import torchvision_transforms
from tests.lambda_prefetch.prefetching import pixels

v1 = torchvision_transforms()
if v1 is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)
from torchvision.transforms import functional, v2  # noqa: E402  # after its operators are declared

FILTERS = {name: v1.InterpolationMode(name) for name in INTERPOLATIONS}
NAMED, MODES = FILTERS.items(), PADDING_MODES
SIDES = st.integers(1, 70)
SAME = [  # a step, and the name and arguments of torchvision's transform
    *[({"op": "resize", "size": 31, "interpolation": n}, "Resize", (31, f)) for n, f in NAMED],
    *[({"op": "resize", "size": [23, 9], "interpolation": n}, "Resize", ((23, 9), f)) for n, f in NAMED],
    ({"op": "resize", "size": [31, 31]}, "Resize", ((31, 31),)),
    ({"op": "resize", "size": 31, "max_size": 40}, "Resize", (31, FILTERS["bilinear"], 40)),
    ({"op": "center_crop", "size": [30, 17]}, "CenterCrop", ((30, 17),)),
    ({"op": "center_crop", "size": [16, 41]}, "CenterCrop", ((16, 41),)),
    ({"op": "pad", "padding": [1, 2]}, "Pad", ((1, 2),)),
    *[({"op": "pad", "padding": [5, 1, 0, 9], "mode": m}, "Pad", ([5, 1, 0, 9], 0, m)) for m in MODES],
    ({"op": "grayscale"}, "Grayscale", ()),
    ({"op": "grayscale", "channels": 3}, "Grayscale", (3,)),
]


def run(steps, image):
    recipe = Recipe(steps)
    program = Program(recipe, bucket="b", epoch=0, limit_pixels=10**6, step_modules=frozenset())
    return program.run(image, "k"), recipe


def as_array(image):
    array = np.asarray(image)
    return array[..., None] if array.ndim == 2 else array


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize(("step", "name", "arguments"), SAME, ids=lambda value: str(value)[:60])
@given(height=SIDES, width=SIDES)
def test_every_pixel_is_torchvisions(step, name, arguments, grey, height, width):
    image, steps = Image.fromarray(pixels(height, width)), [step]
    if grey:
        steps, image = [{"op": "grayscale"}, step], image.convert("L")
    for version in (v1, v2):
        try:
            expected = as_array(getattr(version, name)(*arguments)(image))
        except ValueError:  # a side would have no pixel
            with pytest.raises(SampleFailedError, match="become"):
                run(steps, Image.fromarray(pixels(height, width)))
            continue
        made, _ = run(steps, Image.fromarray(pixels(height, width)))
        assert np.array_equal(made, expected)


@pytest.mark.parametrize("name", FILTERS)
def test_a_random_resized_crop_is_torchvisions_of_the_drawn_box(name):
    image = Image.fromarray(pixels(60, 90))
    step = {"op": "random_resized_crop", "size": [20, 31], "interpolation": name}
    made, recipe = run([step], image)
    draws = SampleRandom(recipe.digest, 1, 0, 0, "b", "k")
    left, top, right, bottom = random_crop_box(90, 60, [0.08, 1.0], [3 / 4, 4 / 3], draws)
    box = (top, left, bottom - top, right - left)
    with warnings.catch_warnings(action="error"):
        expected = functional.resized_crop(image, *box, [20, 31], FILTERS[name])
    assert np.array_equal(made, np.asarray(expected))
