"""Steps produce torchvision's pixels and random distributions, and reject impossible results."""

import io
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from superdl.lambda_prefetch.image_steps import SampleRandom, random_crop_box
from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.recipe_steps import INTERPOLATIONS, PADDING_MODES
from superdl.super_wire.request import Outcome
from tests.fixtures.torchvision import torchvision_transforms
from tests.lambda_prefetch.prefetching import encode, pixels, program_of

v1 = torchvision_transforms()
torchvision = pytest.mark.skipif(v1 is None, reason="torchvision is not installed")
SCALE, RATIO = [0.08, 1.0], [3 / 4, 4 / 3]
SIDES = st.integers(1, 70)


@st.composite
def drawn_recipes(draw):
    """Draw up to three steps, with the names and arguments of torchvision's transforms."""
    side, filters = st.integers(1, 60), st.sampled_from(INTERPOLATIONS)
    drawn = []
    for kind in draw(st.lists(st.sampled_from("rpcgf"), min_size=1, max_size=3)):
        if kind == "r":
            size, name = draw(side | st.lists(side, min_size=2, max_size=2)), draw(filters)
            most = draw(st.none() | st.integers(size + 1, 70)) if isinstance(size, int) else None
            step = {"op": "resize", "size": size, "interpolation": name} | (
                {"max_size": most} if most else {}
            )
            drawn.append((step, "Resize", (size, v1.InterpolationMode(name), most)))
        elif kind == "p":
            padding = draw(
                st.lists(st.integers(0, 9), min_size=4, max_size=4)
                | st.lists(st.integers(0, 9), min_size=2, max_size=2)
            )
            mode = draw(st.sampled_from(PADDING_MODES))
            drawn.append(({"op": "pad", "padding": padding, "mode": mode}, "Pad", (padding, 0, mode)))
        elif kind == "c":
            size = draw(st.lists(side, min_size=2, max_size=2))
            drawn.append(({"op": "center_crop", "size": size}, "CenterCrop", (size,)))
        elif kind == "g":
            channels = draw(st.sampled_from([1, 3]))
            drawn.append(({"op": "grayscale", "channels": channels}, "Grayscale", (channels,)))
        else:
            way, p = draw(st.sampled_from(["horizontal", "vertical"])), draw(st.integers(0, 1))
            drawn.append(({"op": f"{way}_flip", "p": p}, f"Random{way.title()}Flip", (p,)))
    return drawn


def run(steps, array, **options):
    return program_of(Recipe(steps), **options).run(Image.fromarray(array), "k")


@torchvision
@settings(max_examples=300, deadline=None)
@given(drawn=st.deferred(drawn_recipes), height=SIDES, width=SIDES)
def test_every_pixel_equals_torchvisions(drawn, height, width):
    from torchvision.transforms import v2

    array, steps = pixels(height, width), [step for step, _, _ in drawn]
    for version in (v1, v2):
        expected = Image.fromarray(array)
        try:
            for _, name, arguments in drawn:
                expected = getattr(version, name)(*arguments)(expected)
        except ValueError:  # a side would have no pixel
            with pytest.raises(SampleFailedError):
                run(steps, array)
            continue
        made, expected = run(steps, array), np.asarray(expected)
        assert np.array_equal(made, expected if expected.ndim == made.ndim else expected[..., None])


@torchvision
@pytest.mark.parametrize("name", INTERPOLATIONS)
def test_a_random_resized_crop_equals_torchvisions_crop_of_its_box(name):
    from torchvision.transforms import functional

    recipe = Recipe([{"op": "random_resized_crop", "size": [20, 31], "interpolation": name}])
    image = Image.fromarray(pixels(60, 90))
    draws = SampleRandom(recipe.digest, 1, 0, 0, "b", "k")
    left, top, right, bottom = random_crop_box(90, 60, SCALE, RATIO, draws)
    box = (top, left, bottom - top, right - left)
    with warnings.catch_warnings(action="error"):
        expected = functional.resized_crop(image, *box, [20, 31], v1.InterpolationMode(name))
    assert np.array_equal(program_of(recipe).run(image, "k"), np.asarray(expected))


def test_random_crop_boxes_have_the_right_distribution():
    streams = [SampleRandom(bytes(16), 1, 0, n, "b", "k") for n in range(4000)]
    boxes = np.array([random_crop_box(1000, 1000, SCALE, RATIO, stream) for stream in streams])
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, log_ratio = w * h / 1e6, np.log(w / h)
    # On a square, only the largest areas meet a ratio that does not fit, and are drawn again.
    small = area[area < 0.7]
    assert abs(np.histogram(small, bins=4, range=(0.08, 0.7))[0] / len(small) - 0.25).max() < 0.03
    assert abs(log_ratio.mean()) < 0.02
    assert log_ratio.min() >= np.log(3 / 4) - 0.01
    assert log_ratio.max() <= np.log(4 / 3) + 0.01
    middle = (boxes[:, 0] + boxes[:, 2]) / 2
    assert abs(middle.mean() - 500) < 15


@pytest.mark.parametrize(
    ("width", "height", "box"),
    [
        # Nothing of these ratios fits with the whole area: torchvision falls back to the central part.
        (300, 30, (130, 0, 170, 30)),
        (30, 300, (0, 130, 30, 170)),
    ],
)
def test_a_random_crop_box_that_never_fits_is_central(width, height, box):
    stream = SampleRandom(bytes(16), 1, 0, 0, "b", "k")
    assert random_crop_box(width, height, [1.0, 1.0], RATIO, stream) == box


def test_random_crops_are_uniform_over_the_padded_image():
    array = np.arange(1, 13, dtype=np.uint8).reshape(2, 2, 3)
    padded = np.pad(array, ((1, 1), (1, 1), (0, 0)))
    windows = [padded[top : top + 2, left : left + 2].tobytes() for top in range(3) for left in range(3)]
    steps = [{"op": "pad", "padding": 1}, {"op": "random_crop", "size": 2}]
    places = [windows.index(run(steps, array, epoch=epoch).tobytes()) for epoch in range(900)]
    assert np.bincount(places, minlength=9).min() > 70


@pytest.mark.parametrize(
    "step", [{"op": "random_crop", "size": [20, 61]}, {"op": "resize", "size": 8, "max_size": 9}]
)
def test_an_image_too_small_for_a_step_fails_permanently(step):
    with pytest.raises(SampleFailedError, match=r"60 x 1 pixels|60 x 20 pixels cannot be cropped") as caught:
        run([step], np.zeros((20 if step["op"] == "random_crop" else 1, 60, 3), np.uint8))
    assert (caught.value.outcome, caught.value.reason) == (Outcome.TOMBSTONE, "too_small")


@pytest.mark.parametrize(
    "steps",
    [
        [{"op": "resize", "size": 1000}],  # 1 x 3000 pixels become 1000 x 3000000
        [{"op": "center_crop", "size": 1001}],
        [{"op": "center_crop", "size": [1000, 1001]}],
        [{"op": "resize", "size": [1000, 1001]}],
        [{"op": "resize", "size": [1000, 1]}],  # by way of 1000 x 3000
        [{"op": "pad", "padding": [0, 500]}],
        [{"op": "random_resized_crop", "size": 1001}],
    ],
)
def test_a_steps_result_is_limited(steps):
    with pytest.raises(SampleFailedError) as caught:
        run(steps, np.zeros((1, 3000, 3), np.uint8), limit_pixels=1_000_000)
    assert caught.value.outcome is Outcome.TOMBSTONE
    assert caught.value.reason == "too_large"


def test_only_a_recipe_with_reduced_decoding_decodes_at_a_smaller_scale():
    whole, reduced = (Recipe.image(resize=50, crop=40, reduced_decode=flag) for flag in (False, True))
    data = encode(pixels(200, 300), "JPEG", quality=95)
    made = [program_of(recipe).make(data, "k") for recipe in (whole, reduced)]
    assert made[0].shape == made[1].shape == (40, 40, 3)
    assert not np.array_equal(*made)
    by_hand = Image.open(io.BytesIO(data))
    by_hand.draft(None, (75, 50))
    assert by_hand.size == (75, 50)
    assert np.array_equal(made[1], np.asarray(by_hand.crop((18, 5, 58, 45))))


def test_random_numbers_never_change():
    # With other numbers, ids no longer identify samples, so raise PIPELINE_VERSION. Every argument counts.
    stream = SampleRandom(bytes(range(16)), 1, 7, 3, "s3://data", "a/b.jpg")
    assert [stream.below(1000) for _ in range(6)] == [641, 789, 592, 86, 417, 248]
