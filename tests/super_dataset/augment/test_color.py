"""Colour jitter compared with Pillow's ImageEnhance and the standard library's HSV."""

import colorsys
from itertools import permutations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from superdl.super_dataset.augment.color import JITTERS, Jitter, JitterValues
from superdl.super_dataset.augment.geometry import BatchRandom
from tests.super_dataset.augmenting import batch, ids_of

ANY = (0.0, 2.0)
ORDER = [0, 1, 2, 3]


def changed(images, *, orders=None, **factors):
    """Apply jitter with these factors, one per image; other adjustments are off."""
    ranges = tuple(ANY if name in factors else None for name in JITTERS)
    table = [np.broadcast_to(factors.get(name, 1.0), len(images)) for name in JITTERS]
    drawn = JitterValues(np.array(table, dtype=np.float32), np.array(orders or [ORDER] * len(images)))
    made = images.to(torch.float32, memory_format=torch.contiguous_format)
    Jitter(ranges).apply(made, drawn)
    return made


@pytest.mark.parametrize(
    ("name", "enhancer"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
    ],
)
@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.7])
def test_jitter_equals_pillow_up_to_rounding(name, enhancer, factor):
    images = batch(1, 2, 3)
    made = changed(images, **{name: factor})
    for image, result in zip(images, made, strict=True):
        pillow = enhancer(Image.fromarray(image.movedim(0, -1).numpy())).enhance(factor)
        expected = torch.from_numpy(np.array(pillow)).movedim(-1, 0)
        assert (
            result - expected.float()
        ).abs().max() <= 1.5  # Pillow truncates, and rounds the grey it blends with


@pytest.mark.parametrize("factor", [-0.5, -0.1, 0.0, 0.3, 0.5])
def test_hue_equals_the_standard_library_s_hsv(factor):
    images = batch(4, height=16, width=16)
    images[0, :, 0] = (
        torch.tensor([[0, 255, 7, 90], [0, 255, 7, 90], [0, 255, 7, 3]]).repeat(1, 4).to(torch.uint8)
    )
    made = changed(images, hue=factor)[0].movedim(0, -1).reshape(-1, 3).tolist()
    for pixel, result in zip(images[0].movedim(0, -1).reshape(-1, 3).tolist(), made, strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*(level / 255 for level in pixel))
        expected = colorsys.hsv_to_rgb((hue + factor) % 1, saturation, value)
        assert result == pytest.approx([level * 255 for level in expected], abs=0.01)


def test_each_image_has_its_own_order_and_factors():
    orders = [list(order) for order in permutations(range(4))]
    images = batch(*range(24), height=8, width=8)
    generator = np.random.default_rng(0)
    factors = {name: generator.uniform(0.3, 1.7, 24).astype(np.float32) for name in JITTERS[:3]}
    factors["hue"] = generator.uniform(-0.5, 0.5, 24).astype(np.float32)
    together = changed(images, orders=orders, **factors)
    for at, order in enumerate(orders):
        image = images[at : at + 1]
        for number in order:
            name = JITTERS[number]
            image = changed(image, **{name: factors[name][at]})
        assert torch.allclose(image[0], together[at], atol=1e-3)


def test_factors_and_orders_are_uniform():
    jitter = Jitter(((0.6, 1.4), None, (1.0, 3.0), (-0.1, 0.1)))
    drawn = jitter.draw(BatchRandom(ids_of(*range(20_000)), seed=3, epoch=1))
    for row, (low, high) in zip(drawn.factors[[0, 2, 3]], [(0.6, 1.4), (1.0, 3.0), (-0.1, 0.1)], strict=True):
        shares = (np.sort(row) - low) / (high - low)
        assert np.abs(shares - (np.arange(20_000) + 0.5) / 20_000).max() < 1.95 / np.sqrt(20_000)
    orders, counts = np.unique(drawn.orders, axis=0, return_counts=True)
    assert sorted(map(tuple, orders)) == sorted(permutations(range(4)))
    assert ((counts - 20_000 / 24) ** 2 / (20_000 / 24)).sum() < 49.7  # chi-squared, p = 0.001
