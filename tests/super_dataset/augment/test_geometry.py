"""Boxes drawn as by torchvision, pixels compared with Pillow's, and random numbers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from superdl.super_dataset.augment.geometry import (
    BatchRandom,
    below,
    crop_resize,
    crop_resize_by_products,
    philox4x32,
    random_boxes,
    unit_interval,
)
from tests.super_dataset.augmenting import ids_of, picture

SAMPLES = 20_000
KS = 1.95 / math.sqrt(SAMPLES)  # Kolmogorov-Smirnov distance at p = 0.001


def boxes_of(count, height, width, *, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3), seed=0):
    draws = BatchRandom(ids_of(*range(count)), seed=seed, epoch=0)
    sides = np.full(count, height), np.full(count, width)
    return random_boxes(draws, *sides, scale=scale, ratio=ratio)


def distance(values, low, high):
    """The Kolmogorov-Smirnov distance of the values' distribution from the uniform one."""
    shares = (np.sort(values) - low) / (high - low)
    return np.abs(shares - (np.arange(len(values)) + 0.5) / len(values)).max()


@given(
    height=st.integers(1, 300),
    width=st.integers(1, 300),
    low=st.floats(0.01, 1),
    high=st.floats(0.01, 1),
    ratio=st.floats(0.1, 1),
    seed=st.integers(0, 10),
)
def test_boxes_are_inside_the_image(height, width, low, high, ratio, seed):
    scale = (min(low, high), max(low, high))
    tops, lefts, heights, widths = boxes_of(
        20, height, width, scale=scale, ratio=(ratio, 1 / ratio), seed=seed
    )
    assert min(tops.min(), lefts.min()) >= 0
    assert min(heights.min(), widths.min()) >= 1
    assert (tops + heights).max() <= height
    assert (lefts + widths).max() <= width


def test_area_aspect_and_position_are_uniform():
    top, left, height, width = boxes_of(SAMPLES, 1000, 1000, scale=(0.1, 0.5))
    area = height * width / 1e6
    assert distance(area, 0.1, 0.5) < KS + 0.003  # sides are whole pixels
    aspect = np.log(width / height)
    assert distance(aspect, math.log(3 / 4), math.log(4 / 3)) < KS + 0.003
    for place, length in ((top, height), (left, width)):
        assert distance((place + 0.5) / (1000 - length + 1), 0, 1) < KS + 0.003
    facts = np.stack([area, aspect, top / (1001 - height), left / (1001 - width)])
    assert np.abs(np.corrcoef(facts) - np.eye(4)).max() < 4.5 / math.sqrt(SAMPLES)


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(10, 1000, (0, 493, 10, 13)), (1000, 10, (493, 0, 13, 10)), (1, 1, (0, 0, 1, 1))],
)
def test_the_largest_central_box_is_the_fallback(height, width, expected):
    boxes = boxes_of(50, height, width, scale=(1.0, 1.0))
    assert {tuple(box) for box in boxes.T.tolist()} == {expected}


def pillow(image, box, size):
    """The box resized by Pillow, cropped first as in torchvision."""
    top, left, height, width = box
    part = Image.fromarray(image.movedim(0, -1).numpy()).crop((left, top, left + width, top + height))
    return np.asarray(part.resize(size[::-1], Image.Resampling.BILINEAR)).astype(int)


def by_products(image, box, size, *, flip=False):
    sides = torch.tensor(box)[:, None]
    made = crop_resize_by_products(image[None].float(), sides, torch.tensor([flip]), size)
    return made[0].movedim(0, -1).numpy().astype(int)


@given(st.data())
def test_crops_equal_pillow_up_to_rounding(data):
    height, width = data.draw(st.integers(2, 90)), data.draw(st.integers(2, 90))
    box_height, box_width = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    top, left = data.draw(st.integers(0, height - box_height)), data.draw(st.integers(0, width - box_width))
    box = (top, left, box_height, box_width)
    size = (data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60)))
    image = picture(data.draw(st.integers(0, 5)), height, width)
    expected = pillow(image, box, size)
    one = crop_resize(image, box, size)[0].movedim(0, -1).numpy().astype(int)
    assert np.abs(one - expected).max() <= 2  # torch rounds weights to 16 bits, and after each pass
    products = by_products(image, box, size)
    # A value halfway between two integers may be rounded the other way in each pass.
    assert np.abs(products - expected).max() <= 2
    assert (np.abs(products - expected) > 1).mean() < 0.01
    assert np.abs(products - one).max() <= 3
    assert (by_products(image, box, size, flip=True) == products[:, ::-1]).all()


@pytest.mark.parametrize(
    ("counter", "key", "expected"),  # test vectors published with Random123
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_numbers(counter, key, expected):
    made = philox4x32(np.array(counter, dtype=np.uint64), np.array(key, dtype=np.uint64))
    assert made.tolist() == expected


def test_draws_reach_both_ends_of_their_ranges():
    ends = np.array([0, 2**32 - 1], dtype=np.uint64)
    assert below(ends, np.array([7, 7])).tolist() == [0, 6]
    assert unit_interval(ends).tolist() == [0.0, 1 - 2.0**-32]
