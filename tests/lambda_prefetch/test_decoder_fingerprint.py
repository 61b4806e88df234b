"""The decoder's fingerprint is equal in every process and changes when a pixel would."""

from __future__ import annotations

from base64 import b64encode

import PIL
from PIL import Image

from superdl.lambda_prefetch import decoder_fingerprint as module
from superdl.lambda_prefetch.decoder_fingerprint import REFERENCE_IMAGES
from tests.lambda_prefetch.prefetching import encode


def test_one_pixel_makes_a_difference(monkeypatch):
    before = module.decoder_fingerprint()
    image = Image.new("RGB", (29, 23))
    monkeypatch.setitem(REFERENCE_IMAGES, "palette.png", b64encode(encode(image)).decode())
    black = module.decoder_fingerprint()
    image.putpixel((3, 4), (0, 0, 1))
    monkeypatch.setitem(REFERENCE_IMAGES, "palette.png", b64encode(encode(image)).decode())
    assert len({before, black, module.decoder_fingerprint()}) == 3


def test_the_order_in_which_a_resampler_takes_columns_and_rows_shows(monkeypatch):
    resize = Image.Image.resize
    digests = set()
    for columns_first in (True, False):

        def in_order(image, size, method, columns_first=columns_first):
            half_way = (size[0], image.height) if columns_first else (image.width, size[1])
            return resize(resize(image, half_way, method), size, method)

        monkeypatch.setattr(Image.Image, "resize", in_order)
        digests.add(module.decoder_fingerprint())
    assert len(digests) == 2


def test_filters_that_were_added_show_and_leave_the_fingerprint_where_they_are_as_known(monkeypatch):
    known = module._digest_of(module._FILTERS, {})
    assert known == module._PILLOW_13 or not PIL.__version__.startswith("13.")
    monkeypatch.setattr(module, "_PILLOW_13", known)
    before = module._digest_of(module._RECIPES, REFERENCE_IMAGES)
    assert module.decoder_fingerprint() == before, "or stores of earlier versions are decoded again"
    resize = Image.Image.resize
    digests = {module.decoder_fingerprint()}
    for other in (Image.Resampling.BICUBIC, Image.Resampling.LANCZOS, Image.Resampling.NEAREST):

        def wrong(image, size, method, other=other):
            return resize(image, size, Image.Resampling.BOX if method == other else method)

        monkeypatch.setattr(Image.Image, "resize", wrong)
        digests.add(module.decoder_fingerprint())
    assert len(digests) == 4
