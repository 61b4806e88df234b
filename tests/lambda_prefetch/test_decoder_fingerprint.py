"""The decoder's fingerprint is equal in every process and changes when a pixel would."""

import PIL
import pytest
from PIL import Image

from superdl.lambda_prefetch.decoder_fingerprint import REFERENCE_IMAGES, decoder_fingerprint
from tests.lambda_prefetch.prefetching import encode


@pytest.mark.skipif(not PIL.__version__.startswith("13."), reason="another Pillow decodes otherwise")
def test_the_fingerprint_has_not_changed():
    assert decoder_fingerprint() == "b76d29924a254d4d818f0726b0cdfd3e"


def test_a_different_pixel_changes_the_fingerprint(monkeypatch):
    image, fingerprints = Image.new("RGB", (29, 23)), {decoder_fingerprint()}
    for colour in ((0, 0, 0), (0, 0, 1)):
        image.putpixel((3, 4), colour)
        monkeypatch.setitem(REFERENCE_IMAGES, "palette.png", encode(image))
        fingerprints.add(decoder_fingerprint())
    assert len(fingerprints) == 3


def test_a_different_resampler_changes_the_fingerprint(monkeypatch):
    """Whether it takes columns or rows first, and each filter that gives other pixels."""
    resize, fingerprints = Image.Image.resize, {decoder_fingerprint()}

    def columns_first(image, size, method):
        return resize(resize(image, (size[0], image.height), method), size, method)

    def rows_first(image, size, method):
        return resize(resize(image, (image.width, size[1]), method), size, method)

    def without(missing):
        box = Image.Resampling.BOX
        return lambda image, size, method: resize(image, size, box if method == missing else method)

    filters = (Image.Resampling.BICUBIC, Image.Resampling.LANCZOS, Image.Resampling.NEAREST)
    for each in (columns_first, rows_first, *map(without, filters)):
        monkeypatch.setattr(Image.Image, "resize", each)
        fingerprints.add(decoder_fingerprint())
    assert len(fingerprints) >= 5  # one of the two orders may be the own one
