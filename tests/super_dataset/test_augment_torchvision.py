"""Augmentation beside torchvision's: the same distributions, and the same pixels for the same draws.

torchvision is no dependency; without it these tests are skipped.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.augment import torchvision_transforms
from superdl.super_dataset.augment.color import JITTERS, Jitter, JitterValues
from superdl.super_dataset.augment.geometry import crop_resize, random_boxes
from superdl.super_dataset.augment.random_numbers import BatchRandom
from tests.super_dataset.augmenting import batch, ids_of, picture

SAMPLES = 10_000
transforms = torchvision_transforms()
pytestmark = pytest.mark.skipif(
    transforms is None, reason="torchvision is not installed: pip install --no-deps"
)


def two_samples(ours, theirs):
    """Distance of Kolmogorov and Smirnov between two samples, as a multiple of what comes once in 1,000."""
    every = np.concatenate([ours, theirs])
    apart = [np.searchsorted(np.sort(values), every, side="right") / len(values) for values in (ours, theirs)]
    return np.abs(apart[0] - apart[1]).max() / (1.95 * math.sqrt(1 / len(ours) + 1 / len(theirs)))


@pytest.mark.parametrize(("height", "width"), [(256, 256), (256, 340), (500, 120)])
def test_boxes_are_distributed_like_random_resized_crops(height, width):
    sides = np.full(SAMPLES, height), np.full(SAMPLES, width)
    draws = BatchRandom(ids_of(*range(SAMPLES)), seed=1, epoch=0)
    ours = random_boxes(draws, *sides, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    image = torch.empty(3, height, width)
    torch.manual_seed(0)
    crop = transforms.RandomResizedCrop
    theirs = np.array(
        [crop.get_params(image, scale=[0.08, 1.0], ratio=[3 / 4, 4 / 3]) for _ in range(SAMPLES)]
    ).T
    columns = (ours.top, ours.left, ours.height, ours.width)
    for mine, other in zip(columns, theirs, strict=True):
        assert two_samples(mine, other) < 1
    for fact in (lambda t, _, h, w: h * w, lambda t, _, h, w: w / h, lambda t, left, h, w: t * left):
        assert two_samples(fact(*columns), fact(*theirs)) < 1


def test_jitter_is_distributed_like_color_jitter():
    ranges = ((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1))
    ours = Jitter(ranges).draw(BatchRandom(ids_of(*range(SAMPLES)), seed=1, epoch=0))
    torch.manual_seed(0)
    theirs = [transforms.ColorJitter.get_params(*ranges) for _ in range(SAMPLES)]
    for number in range(len(JITTERS)):
        assert two_samples(ours.factors[number], np.array([one[1 + number] for one in theirs])) < 1
        place = (ours.orders == number).argmax(axis=1)
        assert two_samples(place, np.array([int((one[0] == number).nonzero()) for one in theirs])) < 1


def test_pixels_are_those_of_torchvision_on_pil_images():
    functional = transforms.functional
    for number, box in enumerate([(0, 0, 90, 120), (10, 20, 70, 44), (3, 1, 20, 30)]):
        image = picture(number, 96, 128)
        pil = Image.fromarray(image.movedim(0, -1).numpy())
        expected = np.asarray(functional.resized_crop(pil, *box, [64, 64], antialias=True)).astype(int)
        made = crop_resize(image, box, (64, 64))[0].movedim(0, -1).numpy()
        assert np.abs(made - expected).max() <= 1


def test_jitter_gives_what_torchvision_gives_float_images():
    functional = transforms.functional
    images = batch(*range(8), height=16, width=16)
    drawn = Jitter(((0.6, 1.4), (0.6, 1.4), (0.6, 1.4), (-0.1, 0.1))).draw(
        BatchRandom(ids_of(*range(8)), seed=1, epoch=0)
    )
    made = images.to(torch.float32, memory_format=torch.contiguous_format)
    Jitter(((0, 2),) * 4).apply(made, JitterValues(drawn.factors, drawn.orders))
    for at, image in enumerate(images):
        expected = image.float() / 255
        for number in drawn.orders[at]:
            adjust = getattr(functional, f"adjust_{JITTERS[number]}")
            expected = adjust(expected, float(drawn.factors[number, at]))
        assert (made[at] - expected * 255).abs().max() < 0.6  # its grey is darker by 0.01%, which hue spreads
