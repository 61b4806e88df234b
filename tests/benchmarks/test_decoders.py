"""The comparison of decoders calls equal what is equal, and finds what is not."""

from __future__ import annotations

import numpy as np

from benchmarks import decoders


def test_every_kind_of_jpeg_is_compared():
    jpegs = list(decoders._jpegs())
    assert len(set(jpegs)) == len(jpegs) == len(decoders._SIDES) * 8
    for data in jpegs:
        assert decoders._pillow(data).ndim == 3


def test_one_grey_level_makes_a_difference():
    data = decoders._jpeg((64, 64), 0)

    def one_off(data):
        pixels = decoders._pillow(data).copy()
        pixels[3, 5, 1] ^= 1
        return pixels

    def refuses(_):
        raise ValueError

    assert decoders._equal(decoders._pillow, decoders._pillow, data)
    assert not decoders._equal(one_off, decoders._pillow, data)
    assert not decoders._equal(refuses, decoders._pillow, data)


def test_the_box_of_the_crop_gives_other_pixels_and_so_is_not_used():
    data = decoders._jpeg((500, 375), 0)
    assert not decoders._equal(decoders._boxed, decoders._whole, data)
    difference = decoders._boxed(data).astype(int) - decoders._whole(data)
    assert np.abs(difference).max() == 1
