"""The golden digest is equal in every process and changes when a pixel would."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

from PIL import Image

from superdl.lambda_prefetch import golden
from superdl.lambda_prefetch.golden_images import GOLDEN_IMAGES
from tests.lambda_prefetch.prefetching import encode

ROOT = Path(__file__).resolve().parents[2]


def test_equal_in_every_process():
    program = "from superdl.lambda_prefetch.golden import golden_digest; print(golden_digest())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "3", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == golden.golden_digest()


def test_one_pixel_makes_a_difference(monkeypatch):
    before = golden.golden_digest()
    image = Image.new("RGB", (29, 23))
    monkeypatch.setitem(GOLDEN_IMAGES, "palette.png", b64encode(encode(image)).decode())
    black = golden.golden_digest()
    image.putpixel((3, 4), (0, 0, 1))
    monkeypatch.setitem(GOLDEN_IMAGES, "palette.png", b64encode(encode(image)).decode())
    assert len({before, black, golden.golden_digest()}) == 3


def test_a_resampler_that_differs_shows(monkeypatch):
    before, resize = golden.golden_digest(), Image.Image.resize

    def other_resize(image, size, _):
        return resize(image, size, Image.Resampling.BICUBIC)

    monkeypatch.setattr(Image.Image, "resize", other_resize)
    assert golden.golden_digest() != before


def test_the_order_in_which_a_resampler_takes_columns_and_rows_shows(monkeypatch):
    resize = Image.Image.resize
    digests = set()
    for columns_first in (True, False):

        def in_order(image, size, method, columns_first=columns_first):
            half_way = (size[0], image.height) if columns_first else (image.width, size[1])
            return resize(resize(image, half_way, method), size, method)

        monkeypatch.setattr(Image.Image, "resize", in_order)
        digests.add(golden.golden_digest())
    assert len(digests) == 2
