"""What users may set about decoding: truncated images, optional formats, the bounds on text and pixels."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageFile, PngImagePlugin, features

from superdl.lambda_prefetch.decode import set_pillows_bounds
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.lambda_prefetch.transforms import Program
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import Outcome
from tests.lambda_prefetch.prefetching import encode, file_request, pixels, run
from tests.lambda_prefetch.test_decode import LIMIT, decoded, failure_of


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF"])
def test_truncated_images_are_filled_as_pillow_fills_them(form, monkeypatch):
    whole = encode(pixels(256, 192), form)
    part = whole[: len(whole) * 3 // 4] if form != "TIFF" else whole[:-10]
    program, plain = program_of(Recipe.image(truncated="fill")), program_of(Recipe([]))
    with ThreadPoolExecutor(4) as pool:  # a recipe that fills changes nothing of what others decode
        jobs = [pool.submit(each.make, part, "key") for each in [program, plain] * 20]
    filled = [job.result() for job in jobs[::2]]
    assert all(isinstance(job.exception(), SampleFailedError) for job in jobs[1::2])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    expected = np.asarray(Image.open(io.BytesIO(part)).convert("RGB"))
    assert all(np.array_equal(array, expected) for array in filled)


def test_a_recipe_without_the_option_keeps_its_digest():
    assert Recipe.image(resize=256, truncated="error").digest == Recipe.image(resize=256).digest
    assert Recipe.image(resize=256, truncated="fill").digest != Recipe.image(resize=256).digest


@pytest.mark.parametrize(("form", "feature"), [("AVIF", "avif"), ("JPEG2000", "jpg_2000")])
def test_formats_that_the_installed_pillow_reads_are_read(form, feature):
    if not features.check(feature):
        pytest.skip(f"this Pillow was built without {form}")
    data = encode(pixels(64, 48), form)
    assert np.array_equal(decoded(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
    assert failure_of(data, limit_pixels=64 * 48 - 1).reason == "too_large"


def test_the_bound_on_text_in_a_png_is_a_setting():
    info = PngImagePlugin.PngInfo()
    info.add_text("a", "x" * 2_000_000, zip=True)
    data = encode(pixels(8, 8), "PNG", pnginfo=info)
    try:
        assert failure_of(data).reason == "undecodable"
        set_pillows_bounds(FunctionSettings.from_environment({"SUPER_MAX_TEXT_BYTES": "3000000"}).text_bytes)
        assert decoded(data).shape == (8, 8, 3)
    finally:
        set_pillows_bounds()


def test_the_bound_on_pixels_is_a_setting(valkey, tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(encode(pixels(8, 8), "PNG"))
    for bound, outcome in (("63", Outcome.TOMBSTONE), ("64", Outcome.CACHED)):
        monkeypatch.setenv("SUPER_MAX_PIXELS", bound)
        assert run(file_request(tmp_path, ["a.png"], valkey.unix_url)).outcomes == (outcome,)


def program_of(recipe):
    return Program(recipe, bucket="b", epoch=0, limit_pixels=LIMIT, step_modules=frozenset())
