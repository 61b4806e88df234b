"""Images become upright RGB, as decoded by other means. Invalid images fail permanently."""

import io
import math
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps, PngImagePlugin, features

from superdl.lambda_prefetch.decode import configure_pillow, decode
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import Outcome
from tests.lambda_prefetch.prefetching import encode, file_request, pixels, program_of, run

LIMIT = 1_000_000


def decoded(data, limit_pixels=LIMIT, **options):
    image = decode(data, limit_pixels=limit_pixels, **options)
    assert image.mode == "RGB"
    return np.asarray(image)


def independent(data):
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    image.info.pop("transparency", None)  # of which Pillow would warn
    return np.asarray(image.convert("RGB"))


def failure_of(data, limit_pixels=LIMIT):
    with pytest.raises(SampleFailedError) as caught:
        decode(data, limit_pixels=limit_pixels)
    assert caught.value.outcome is Outcome.TOMBSTONE
    return caught.value


def png(size, bits, colour, lines):
    """Encode packed ``lines`` as a PNG of a kind that Pillow cannot write."""
    header, data = struct.pack(">IIBBBBB", *size, bits, colour, 0, 0, 0), b"".join(b"\0" + x for x in lines)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def encoded_forms():
    """Return images in many forms, by name, and their allowed mean difference from ``pixels()``."""
    image = Image.fromarray(pixels())
    alpha = np.random.default_rng(0).integers(0, 256, (37, 53, 1), dtype=np.uint8)
    palette = bytes([0, 128, 255, 255, 255, 255, 255, 7])
    grey_16_bit = Image.fromarray((pixels()[..., 0].astype(np.uint16)) * 16)
    frames = [Image.fromarray(pixels(seed=seed)).quantize(32) for seed in (0, 1)]
    deep = np.random.default_rng(0).integers(0, 65536, (37, 53, 4), dtype=np.uint16)
    new = {"AVIF": "avif", "JPEG2000": "jpg_2000"}
    return {
        **{kind: (encode(image, kind), 0) for kind in ("PNG", "BMP", "PPM", "TIFF")},
        **{kind: (encode(image, kind), 12) for kind, feature in new.items() if features.check(feature)},
        "16 bits with alpha": (png((53, 37), 16, 6, [row.astype(">u2").tobytes() for row in deep]), 255),
        "webp": (encode(image, "WEBP", lossless=True), 0),
        "alpha": (encode(Image.fromarray(np.concatenate([pixels(), alpha], axis=-1)), "PNG"), 0),
        "jpeg": (encode(image, "JPEG", quality=90), 12),
        "cmyk": (encode(image.convert("CMYK"), "JPEG", quality=95, subsampling=0), 12),  # not inverted
        "palette": (encode(image.quantize(64), "PNG"), 12),
        "palette with transparency": (encode(image.quantize(8), "PNG", transparency=palette), 255),
        "first frame": (encode(frames[0], "GIF", save_all=True, append_images=frames[1:]), 12),
        "grey jpeg": (encode(image.convert("L"), "JPEG"), 255),
        "grey png": (encode(image.convert("L"), "PNG"), 255),
        "grey png with alpha": (encode(image.convert("LA"), "PNG"), 255),
        "grey png of 16 bits": (encode(grey_16_bit, "PNG"), 255),
    }


@pytest.mark.parametrize(("data", "off"), encoded_forms().values(), ids=encoded_forms())
def test_every_form_decodes_as_pillow_decodes_it(data, off):
    array = decoded(data)
    assert array.shape == (37, 53, 3)
    assert np.array_equal(array, independent(data))
    assert np.abs(array.astype(int) - pixels()).mean() <= off


@st.composite
def plain_jpegs(draw):
    """Draw a JPEG of noise, and the same with a few bytes changed, cut off or added."""
    width, height, seed = draw(st.integers(1, 70)), draw(st.integers(1, 70)), draw(st.integers(0, 99))
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    how = {
        "quality": draw(st.integers(5, 98)),
        "subsampling": draw(st.integers(0, 2)),
        "progressive": draw(st.booleans()),
        "restart_marker_blocks": draw(st.sampled_from([0, 3])),
        "comment": draw(st.sampled_from([b"", b"\xff\xda"])),
    }
    data = encode(Image.fromarray(noise), "JPEG", **how)
    changed = bytearray(data)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data) - 1) | st.integers(0, min(650, len(data)) - 1))
        changed[at] = draw(st.sampled_from(b"\x00\xff\xda\xc0\xd9") | st.integers(0, 255))
    cut = draw(st.just(len(data)) | st.integers(0, len(data)))
    return data, bytes(changed[:cut]) + draw(st.sampled_from([b"", bytes(99)]))


def assert_opening_gives_the_same(data):
    """Compare with the general path, which a minimum side selects."""
    assert result_of(data) == result_of(data, min_side=LIMIT)


def result_of(data, **options):
    try:
        return decoded(data, **options).tobytes()
    except SampleFailedError as failure:
        return failure.reason, failure.message


@given(plain_jpegs())
def test_the_fast_path_for_jpegs_equals_the_general_path(jpeg):
    data, broken = jpeg
    assert np.array_equal(decoded(data), independent(data))
    assert_opening_gives_the_same(broken)


def test_a_jpeg_with_an_unusual_header_takes_the_general_path():
    plain = encode(Image.fromarray(pixels()), "JPEG")
    app0 = plain[2 : 4 + int.from_bytes(plain[4:6], "big")]
    short = plain.replace(app0, b"\xff\xe0\x00\x07JFIF\0", 1)
    at = plain.index(b"\xff\xc0")
    huge = plain[: at + 5] + struct.pack(">HH", 900, 1000) + plain[at + 9 : at + 60]
    for data in (short, huge):
        assert failure_of(data).reason in {"not_an_image", "undecodable"}
        assert_opening_gives_the_same(data)


def test_the_fast_path_equals_the_general_path_for_large_broken_scans():
    noise = np.random.default_rng(0).integers(0, 256, (600, 600, 3), dtype=np.uint8)
    data = encode(Image.fromarray(noise), "JPEG", quality=95, restart_marker_blocks=50)
    assert len(data) > 3 * 65536  # what Pillow gives its decoder at once
    for at in range(1000, len(data), 40_000):
        assert_opening_gives_the_same(data[:at] + b"\xff\xd4\x00\x12" + data[at + 4 :])


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG"])
def test_the_exif_orientation_is_applied(kind):
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encode(pixels(), kind, exif=exif)
        assert decoded(data).shape == ((37, 53, 3) if orientation < 5 else (53, 37, 3))
        assert np.array_equal(decoded(data), independent(data))


def test_broken_exif_is_ignored():
    data = encode(pixels(), "JPEG", exif=b"Exif\0\0this is no TIFF header")
    assert np.array_equal(decoded(data), decoded(encode(pixels(), "JPEG")))


def progressive(scans, side=64):
    """Return a JPEG with this many scans. The last one, which refines one bit, is repeated."""
    data = encode(Image.fromarray(pixels(side, side)), "JPEG", progressive=True)
    begins = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
    return data[:-2] + data[begins[-1] : -2] * (scans - len(begins)) + data[-2:]


def test_too_many_scans_are_refused_before_decoding():
    scans, data = 101, progressive(101, side=3000)
    began = time.thread_time()
    found = failure_of(data, 10**7)
    assert time.thread_time() - began < 0.1  # decoding takes a hundred times as long
    assert found.reason == "too_large"
    assert f"{scans} scans exceed the limit of 100" in found.message
    assert np.array_equal(decoded(progressive(100)), independent(progressive(100)))


def test_scan_markers_outside_the_image_do_not_count():
    """200 markers in metadata and after the image begin no scan."""
    plain = encode(pixels(), "JPEG")
    marks = b"\xff\xda" * 200
    comment = b"\xff\xfe" + struct.pack(">H", len(marks) + 2) + marks
    data = plain[:2] + comment + plain[2:] + marks
    assert np.array_equal(decoded(data), decoded(plain))


@pytest.mark.parametrize(
    ("size", "enough", "scale"),
    [
        ((400, 300), 0, 1),
        ((400, 300), 151, 1),
        ((400, 300), 150, 2),
        ((300, 400), 75, 4),
        ((403, 301), 37, 8),
        ((400, 300), 1, 8),
        ((400, 300), 3000, 1),
    ],
)
def test_reduced_decoding_uses_the_smallest_scale_with_enough_pixels(size, enough, scale):
    data = encode(pixels(size[1], size[0]), "JPEG", quality=95)
    image = decode(data, limit_pixels=LIMIT, min_side=enough)
    assert image.size == tuple(math.ceil(side / scale) for side in size)
    shown = np.asarray(decode(data, limit_pixels=LIMIT).resize(image.size, Image.Resampling.BOX))
    assert np.abs(np.asarray(image).astype(int) - shown).mean() < 3


def grey_png(bits, rows):
    """Encode rows as a greyscale PNG with this many bits per pixel."""
    height, width = rows.shape
    packed = np.unpackbits(rows.astype(np.uint8)[..., None], axis=2)[..., 8 - bits :].reshape(height, -1)
    return png((width, height), bits, 0, [np.packbits(line).tobytes() for line in packed])


def indexed(numbers):
    image = Image.fromarray(numbers, "P")
    image.putpalette([*range(256)] * 3)
    return image


NUMBERS = np.random.default_rng(3).integers(0, 2**16, (9, 7)).astype(np.uint16)
SMALL = (NUMBERS % 256).astype(np.uint8)


@pytest.mark.parametrize(
    ("data", "numbers"),
    [
        (encode(SMALL, "PNG"), SMALL),
        (encode(indexed(SMALL), "PNG"), SMALL),
        (encode(Image.fromarray(SMALL > 99), "PNG"), (SMALL > 99).astype(np.uint8)),
        *((grey_png(bits, SMALL >> (8 - bits)), SMALL >> (8 - bits)) for bits in (1, 2, 4, 8)),
        (encode(indexed(SMALL % 16), "PNG", bits=4), SMALL % 16),
        (encode(NUMBERS, "PNG"), NUMBERS),
        (encode(NUMBERS, "TIFF"), NUMBERS),
        (encode(NUMBERS.astype(np.float32), "TIFF"), NUMBERS.astype(np.float32)),
        (encode(NUMBERS.astype(np.int32), "TIFF"), NUMBERS.astype(np.int32)),
    ],
)
def test_a_masks_numbers_are_unchanged(data, numbers):
    found = np.asarray(decode(data, limit_pixels=LIMIT, is_mask=True))
    assert found.dtype == numbers.dtype
    assert np.array_equal(found, numbers)


@pytest.mark.parametrize("mode", ["RGB", "LA", "RGBA", "CMYK"])
def test_a_mask_has_a_single_channel(mode):
    data = encode(Image.fromarray(pixels()).convert(mode), "TIFF")
    with pytest.raises(SampleFailedError, match=f"but this TIFF is {mode}"):
        decode(data, limit_pixels=LIMIT, is_mask=True)


def test_a_mask_that_pillow_would_rescale_is_refused():
    whole, spread = (b"P5 2 1 %d\n" % most + bytes([3, 20]) for most in (255, 20))
    assert np.asarray(decode(whole, limit_pixels=LIMIT, is_mask=True)).tolist() == [[3, 20]]
    with pytest.raises(SampleFailedError, match="values up to 20"):
        decode(spread, limit_pixels=LIMIT, is_mask=True)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF"])
def test_truncated_images_are_filled_as_by_pillow(form, monkeypatch):
    whole = encode(pixels(256, 192), form)
    part = whole[: len(whole) * 3 // 4] if form != "TIFF" else whole[:-10]
    program, plain = map(program_of, (Recipe.image(truncated="fill"), Recipe([])))
    with ThreadPoolExecutor(4) as pool:  # a recipe that fills changes nothing of what others decode
        jobs = [pool.submit(each.make, part, "key") for each in [program, plain] * 20]
    filled = [job.result() for job in jobs[::2]]
    assert all(isinstance(job.exception(), SampleFailedError) for job in jobs[1::2])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    expected = np.asarray(Image.open(io.BytesIO(part)).convert("RGB"))
    assert all(np.array_equal(array, expected) for array in filled)


def test_the_limit_for_text_in_a_png_is_a_setting():
    info = PngImagePlugin.PngInfo()
    info.add_text("a", "x" * 2_000_000, zip=True)
    data = encode(pixels(8, 8), "PNG", pnginfo=info)
    try:
        assert failure_of(data).reason == "undecodable"
        configure_pillow(FunctionSettings.from_environment({"SUPER_MAX_TEXT_BYTES": "3000000"}).text_bytes)
        assert decoded(data).shape == (8, 8, 3)
    finally:
        configure_pillow()


@pytest.mark.parametrize("form", ["PNG", "JPEG"])  # this JPEG is one that is decoded without being opened
def test_too_many_pixels_are_refused_with_both_numbers(form):
    data = encode(pixels(90, 100), form)
    assert decoded(data, limit_pixels=9000).shape == (90, 100, 3)
    failure = failure_of(data, limit_pixels=8999)
    assert failure.reason == "too_large"
    assert "100 x 90 exceeds the limit of 8999 pixels" in failure.message


def test_the_limit_for_pixels_is_a_setting(valkey, tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(encode(pixels(8, 8), "PNG"))
    for bound, outcome in (("63", Outcome.TOMBSTONE), ("64", Outcome.CACHED)):
        monkeypatch.setenv("SUPER_MAX_PIXELS", bound)
        assert run(file_request(tmp_path, ["a.png"], valkey.unix_url)).outcomes == (outcome,)
