"""Steps give torchvision's pixels: geometry, resampling, and chance by its law."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.lambda_prefetch.transforms import Program, SampleRandom, random_crop_box, resized_size
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import Outcome
from tests.lambda_prefetch.prefetching import encode, pixels

ROOT = Path(__file__).resolve().parents[2]
SIDES = st.integers(1, 400)
SCALE, RATIO = [0.08, 1.0], [3 / 4, 4 / 3]


def run(steps, array, *, seed=0, epoch=0, key="k", limit_pixels=10**6):
    program = Program(
        Recipe(steps, augment_seed=seed),
        bucket="s3://data",
        epoch=epoch,
        limit_pixels=limit_pixels,
        step_modules=frozenset(),
    )
    return program.run(Image.fromarray(array), key)


@pytest.mark.parametrize(
    ("width", "height", "shorter", "longest", "expected"),
    [
        # What torchvision.transforms.functional.resize gives for an int size.
        (500, 375, 256, None, (341, 256)),
        (375, 500, 256, None, (256, 341)),
        (333, 500, 256, None, (256, 384)),
        (256, 256, 256, None, (256, 256)),
        (300, 300, 64, None, (64, 64)),
        (1, 7, 3, None, (3, 21)),
        (640, 427, 232, None, (347, 232)),
        (101, 67, 67, None, (101, 67)),
        # And with max_size.
        (500, 375, 256, 341, (341, 256)),
        (500, 375, 256, 300, (300, 225)),
        (375, 500, 256, 257, (192, 257)),
        (7, 3, 5, 10, (10, 4)),
    ],
)
def test_resize_rounds_down_what_it_is_not_told(width, height, shorter, longest, expected):
    assert resized_size(width, height, shorter, longest) == expected


def test_resize_is_pillows_antialiased_bilinear():
    array = run([{"op": "resize", "size": 20}], pixels(37, 53))
    reference = Image.fromarray(pixels(37, 53)).resize((28, 20), Image.Resampling.BILINEAR)
    assert np.array_equal(array, np.asarray(reference))


def reference_center_crop(array, side):
    """torchvision's rule: pad what is too small, the smaller half first; then crop, half pixels to even."""
    for axis in (0, 1):
        missing = side - array.shape[axis]
        if missing > 0:
            padding = [(0, 0)] * 3
            padding[axis] = (missing // 2, (missing + 1) // 2)
            array = np.pad(array, padding)
        at = round((array.shape[axis] - side) / 2.0)
        array = np.take(array, range(at, at + side), axis=axis)
    return array


@given(height=st.integers(1, 60), width=st.integers(1, 60), side=st.integers(1, 80))
def test_center_crop_is_torchvisions(height, width, side):
    array = pixels(height, width)
    assert np.array_equal(
        run([{"op": "center_crop", "size": side}], array), reference_center_crop(array, side)
    )


@given(width=SIDES, height=SIDES, key=st.text(max_size=8))
def test_a_random_crop_lies_inside_and_keeps_scale_and_ratio(width, height, key):
    draws = SampleRandom(bytes(16), 1, 0, 0, "b", key)
    left, top, right, bottom = random_crop_box(width, height, SCALE, RATIO, draws)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_random_crops_follow_their_law():
    boxes = np.array(
        [
            random_crop_box(1000, 1000, SCALE, RATIO, SampleRandom(bytes(16), 1, 0, n, "b", "k"))
            for n in range(4000)
        ]
    )
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
def test_a_random_crop_that_never_fits_is_central(width, height, box):
    assert (
        random_crop_box(width, height, [1.0, 1.0], RATIO, SampleRandom(bytes(16), 1, 0, 0, "b", "k")) == box
    )


def test_random_resized_crop_is_crop_then_resize():
    array = pixels(200, 300)
    recipe = Recipe([{"op": "random_resized_crop", "size": 32}])
    made = run(recipe.steps, array, key="some")
    box = random_crop_box(300, 200, SCALE, RATIO, SampleRandom(recipe.digest, 1, 0, 0, "s3://data", "some"))
    reference = Image.fromarray(array).crop(box).resize((32, 32), Image.Resampling.BILINEAR)
    assert np.array_equal(made, np.asarray(reference))


@pytest.mark.parametrize(
    ("op", "flipped"), [("horizontal_flip", pixels()[:, ::-1]), ("vertical_flip", pixels()[::-1])]
)
def test_flip_flips_with_its_probability(op, flipped):
    for p, expected in ((0, pixels()), (1, flipped)):
        assert np.array_equal(run([{"op": op, "p": p}], pixels()), expected)


def test_random_crops_lie_anywhere_in_the_padded_image_alike_often():
    array = np.arange(1, 13, dtype=np.uint8).reshape(2, 2, 3)
    padded = np.pad(array, ((1, 1), (1, 1), (0, 0)))
    windows = [padded[top : top + 2, left : left + 2].tobytes() for top in range(3) for left in range(3)]
    steps = [{"op": "pad", "padding": 1}, {"op": "random_crop", "size": 2}]
    found = [windows.index(run(steps, array, epoch=epoch).tobytes()) for epoch in range(900)]
    assert np.bincount(found, minlength=9).min() > 70


@pytest.mark.parametrize(
    "step", [{"op": "random_crop", "size": [20, 61]}, {"op": "resize", "size": 8, "max_size": 9}]
)
def test_an_image_that_is_too_small_for_a_step_is_a_failure_for_good(step):
    with pytest.raises(SampleFailedError, match=r"60 x 1 pixels|60 x 20 pixels hold no crop") as caught:
        run([step], np.zeros((20 if step["op"] == "random_crop" else 1, 60, 3), np.uint8))
    assert (caught.value.outcome, caught.value.reason) == (Outcome.TOMBSTONE, "too_small")


def test_grey_images_have_one_channel_on_every_way_through_a_recipe():
    grey, small = {"op": "grayscale"}, {"op": "resize", "size": [8, 9]}
    edge, flip = {"op": "pad", "padding": 1, "mode": "edge"}, {"op": "horizontal_flip", "p": 1}
    assert run([grey, small, edge, flip], pixels()).shape == (10, 11, 1)
    assert np.array_equal(
        run([grey, small], pixels()).repeat(3, axis=2),
        run([{"op": "grayscale", "channels": 3}, small], pixels()),
    )


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
def test_a_step_cannot_blow_an_image_up_beyond_the_limit(steps):
    with pytest.raises(SampleFailedError) as caught:
        run(steps, np.zeros((1, 3000, 3), np.uint8), limit_pixels=1_000_000)
    assert caught.value.outcome is Outcome.TOMBSTONE
    assert caught.value.reason == "too_large"


def test_reduced_decoding_is_for_a_recipe_that_says_so():
    whole, reduced = (Recipe.image(resize=50, crop=40, reduced_decode=flag) for flag in (False, True))
    data = encode(pixels(200, 300), "JPEG", quality=95)
    made = [
        Program(recipe, bucket="b", epoch=0, limit_pixels=10**6, step_modules=frozenset()).make(data, "k")
        for recipe in (whole, reduced)
    ]
    assert made[0].shape == made[1].shape == (40, 40, 3)
    assert not np.array_equal(*made)
    by_hand = Image.open(io.BytesIO(data))
    by_hand.draft(None, (75, 50))
    assert by_hand.size == (75, 50)
    assert np.array_equal(made[1], np.asarray(by_hand.crop((18, 5, 58, 45))))


DIGEST = bytes(range(16))


def draws(step=1, seed=7, epoch=3, bucket="s3://data", key="a/b.jpg", digest=DIGEST):
    return SampleRandom(digest, step, seed, epoch, bucket, key)


def test_a_stream_is_pinned_for_ever():
    # Other numbers mean that cached samples no longer are what their ids say: raise PIPELINE_VERSION then.
    stream = draws()
    assert [stream.below(1000) for _ in range(6)] == [641, 789, 592, 86, 417, 248]


@pytest.mark.parametrize(
    "other",
    [
        {"step": 2},
        {"seed": 8},
        {"seed": -7},
        {"epoch": 4},
        {"bucket": "s3://dat"},
        {"key": "a/b.jpeg"},
        {"digest": bytes(16)},
        {"bucket": "s3://data/a", "key": "b.jpg"},
    ],
)
def test_another_sample_step_seed_or_epoch_draws_otherwise(other):
    assert draws(**other).seed() != draws().seed()
