"""Dirty input: what can be decoded becomes upright RGB, as independently decoded; the rest fails for good."""

from __future__ import annotations

import io
import math
import struct
import time
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from superdl.lambda_prefetch import decode as decode_module
from superdl.lambda_prefetch.decode import decode
from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.super_wire.request import Outcome
from tests.lambda_prefetch.prefetching import encode, pixels

LIMIT = 1_000_000


def decoded(data, limit_pixels=LIMIT):
    image = decode(data, limit_pixels=limit_pixels)
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


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF"])
def test_lossless_formats_give_the_very_pixels(kind):
    assert np.array_equal(decoded(encode(pixels(), kind)), pixels())


def encoded_forms():
    """Name -> an image in a form that others decode to the same RGB, and how far its pixels may be off."""
    image = Image.fromarray(pixels())
    palette = bytes([0, 128, 255, 255, 255, 255, 255, 7])
    grey_16_bit = Image.fromarray((pixels()[..., 0].astype(np.uint16)) * 16)
    return {
        "webp": encode(image, "WEBP", lossless=True),
        "jpeg": encode(image, "JPEG", quality=90),
        "grey jpeg": encode(image.convert("L"), "JPEG"),
        "grey png": encode(image.convert("L"), "PNG"),
        "grey png with alpha": encode(image.convert("LA"), "PNG"),
        "grey png of 16 bits": encode(grey_16_bit, "PNG"),
        "cmyk": encode(image.convert("CMYK"), "JPEG", quality=95, subsampling=0),
        "palette": encode(image.quantize(64), "PNG"),
        "palette with transparency": encode(image.quantize(8), "PNG", transparency=palette),
    }


@pytest.mark.parametrize("form", encoded_forms())
def test_each_form_is_what_others_make_of_it(form):
    data = encoded_forms()[form]
    array = decoded(data)
    assert array.shape == (37, 53, 3)
    assert np.array_equal(array, independent(data))
    if form in ("webp", "jpeg", "cmyk", "palette"):  # CMYK is not inverted
        assert np.abs(array.astype(int) - pixels()).mean() < 12


@st.composite
def plain_jpegs(draw):
    """A JPEG of noise as encoders write them, and the same with a few bytes changed, cut off or added."""
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
    return data, how["progressive"], bytes(changed[:cut]) + draw(st.sampled_from([b"", bytes(99)]))


@given(plain_jpegs())
def test_a_plain_jpeg_is_what_opening_it_gives_whole_or_broken(jpeg):
    data, is_progressive, broken = jpeg
    assert (decode_module._plain_jpeg(data, LIMIT) is not None) == (not is_progressive)
    assert np.array_equal(decoded(data), independent(data))
    told = told_of(broken)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_module, "_plain_jpeg", lambda *_: None)
        assert told == told_of(broken)


def test_a_header_that_pillow_cannot_read_or_that_promises_much_goes_the_long_way():
    plain = encode(Image.fromarray(pixels()), "JPEG")
    app0 = plain[2 : 4 + int.from_bytes(plain[4:6], "big")]
    short = plain.replace(app0, b"\xff\xe0\x00\x07JFIF\0", 1)
    at = plain.index(b"\xff\xc0")
    huge = plain[: at + 5] + struct.pack(">HH", 900, 1000) + plain[at + 9 : at + 60]
    for data in (short, huge):
        assert decode_module._plain_jpeg(data, LIMIT) is None
        assert failure_of(data).reason in {"not_an_image", "undecodable"}


def test_large_scans_that_are_broken_are_what_opening_gives():
    noise = np.random.default_rng(0).integers(0, 256, (600, 600, 3), dtype=np.uint8)
    data = encode(Image.fromarray(noise), "JPEG", quality=95, restart_marker_blocks=50)
    assert len(data) > 3 * 65536  # what Pillow gives its decoder at once
    for at in range(1000, len(data), 40_000):
        broken = data[:at] + b"\xff\xd4\x00\x12" + data[at + 4 :]
        told = told_of(broken)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decode_module, "_plain_jpeg", lambda *_: None)
            assert told == told_of(broken)


def told_of(data):
    try:
        return decoded(data).tobytes()
    except SampleFailedError as failure:
        return failure.reason, failure.why


def test_gif_gives_its_first_frame():
    frames = [Image.fromarray(pixels(seed=seed)).quantize(32) for seed in (0, 1)]
    data = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert np.array_equal(decoded(data), np.asarray(frames[0].convert("RGB")))


def test_alpha_is_dropped():
    alpha = np.random.default_rng(0).integers(0, 256, (37, 53, 1), dtype=np.uint8)
    data = encode(Image.fromarray(np.concatenate([pixels(), alpha], axis=-1)), "PNG")
    assert np.array_equal(decoded(data), pixels())


def png_16_bit(samples):
    """A PNG of 16 bits per channel, which Pillow cannot write; ``samples`` is uint16 of shape (h, w, 4)."""
    height, width = samples.shape[:2]

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    header = struct.pack(">IIBBBBB", width, height, 16, 6, 0, 0, 0)
    ihdr, idat, iend = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + ihdr + idat + iend


def test_16_bit_colour_with_alpha():
    samples = np.random.default_rng(0).integers(0, 65536, (9, 11, 4), dtype=np.uint16)
    assert np.array_equal(decoded(png_16_bit(samples)), (samples[..., :3] >> 8).astype(np.uint8))


# EXIF orientation -> how a stored array is turned upright, by the EXIF standard
TURN = {
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: np.swapaxes(a, 0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.swapaxes(np.rot90(a, 2), 0, 1),
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG"])
@pytest.mark.parametrize("orientation", list(TURN))
def test_exif_rotation_becomes_upright(kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(pixels(), kind, exif=exif)
    stored = np.asarray(Image.open(io.BytesIO(encode(pixels(), kind))).convert("RGB"))
    assert np.array_equal(decoded(data), TURN[orientation](stored))


def test_broken_exif_spoils_no_image():
    data = encode(pixels(), "JPEG", exif=b"Exif\0\0this is no TIFF header")
    assert np.array_equal(decoded(data), decoded(encode(pixels(), "JPEG")))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "GIF", "BMP"])
def test_truncated(kind):
    data = encode(pixels(300, 300), kind)
    assert failure_of(data[: len(data) // 2]).reason in {"undecodable", "not_an_image"}


def progressive(scans, side=64):
    """A JPEG with so many scans: the last one, which refines one bit, is repeated."""
    data = encode(Image.fromarray(pixels(side, side)), "JPEG", progressive=True)
    begins = [at for at in range(len(data)) if data[at : at + 2] == b"\xff\xda"]
    return data[:-2] + data[begins[-1] : -2] * (scans - len(begins)) + data[-2:]


@pytest.mark.parametrize("scans", [101, 2000])
def test_too_many_scans_are_told_before_any_is_decoded(scans):
    data = progressive(scans, side=3000)
    began = time.thread_time()
    found = failure_of(data, 10**7)
    assert time.thread_time() - began < 0.1  # decoding takes a hundred times as long
    assert found.reason == "too_large"
    assert f"its {scans} scans are over the limit of 100" in found.why


def test_scans_within_the_limit_are_decoded():
    assert np.array_equal(decoded(progressive(100)), independent(progressive(100)))


def test_what_only_looks_like_a_scan_is_none():
    """Of 200 marks, in a segment of metadata and behind the image's end, none begins a scan of it."""
    plain = encode(pixels(), "JPEG")
    marks = b"\xff\xda" * 200
    comment = b"\xff\xfe" + struct.pack(">H", len(marks) + 2) + marks
    data = plain[:2] + comment + plain[2:] + marks
    assert np.array_equal(decoded(data), decoded(plain))


@pytest.mark.parametrize(
    "data", [b"<html>404</html>", b"\0" * 100, b"\xff\xd8\xff", b"%!PS-Adobe-3.0 EPSF-3.0\n"]
)
def test_not_an_image(data):
    assert failure_of(data).reason in {"not_an_image", "undecodable"}
    assert failure_of(b"").reason == "empty"


def test_formats_that_nobody_asked_for_are_no_images():
    failure = failure_of(encode(pixels(), "PDF"))
    assert failure.reason == "not_an_image"
    assert "JPEG" in failure.why


def test_the_bound_on_pixels_is_checked_before_decoding():
    # 2 KB that claim 30000 x 30000 pixels, with no data behind: only the header was looked at if the reason
    # is the size.
    header = struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0)
    crc = struct.pack(">I", zlib.crc32(b"IHDR" + header))
    bomb = (
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header + crc + b"\0\0\0\0IDAT" + b"\0" * 2000
    )
    assert failure_of(bomb).reason == "too_large"


def test_the_bound_on_pixels_is_the_requests():
    data = encode(pixels(100, 100))
    assert decoded(data, limit_pixels=10_000).shape == (100, 100, 3)
    failure = failure_of(data, limit_pixels=9_999)
    assert failure.reason == "too_large"
    assert "100 x 100" in failure.why
    assert "9999" in failure.why


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
def test_reduced_decoding_leaves_enough_pixels_and_takes_the_smallest_scale(size, enough, scale):
    data = encode(pixels(size[1], size[0]), "JPEG", quality=95)
    image = decode(data, limit_pixels=LIMIT, enough_side=enough)
    assert image.size == tuple(math.ceil(side / scale) for side in size)
    shown = np.asarray(decode(data, limit_pixels=LIMIT).resize(image.size, Image.Resampling.BOX))
    assert np.abs(np.asarray(image).astype(int) - shown).mean() < 3


def grey_png(bits, rows):
    """A greyscale PNG of so many bits a pixel, written by hand: Pillow writes no two or four."""
    height, width = rows.shape
    packed = np.unpackbits(rows.astype(np.uint8)[..., None], axis=2)[..., 8 - bits :].reshape(height, -1)
    lines = b"".join(b"\0" + np.packbits(line).tobytes() for line in packed)

    def chunk(kind, content):
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )


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
def test_numbers_of_masks_are_as_they_were_written(data, numbers):
    found = np.asarray(decode(data, limit_pixels=LIMIT, of_mask=True))
    assert found.dtype == numbers.dtype
    assert np.array_equal(found, numbers)


@pytest.mark.parametrize("mode", ["RGB", "LA", "RGBA", "CMYK"])
def test_a_mask_of_several_channels_is_none(mode):
    data = encode(Image.fromarray(pixels()).convert(mode), "TIFF")
    with pytest.raises(SampleFailedError, match=f"and this TIFF is {mode}"):
        decode(data, limit_pixels=LIMIT, of_mask=True)


def test_numbers_that_pillow_would_spread_are_refused():
    for whole in (True, False):
        data = b"P5 2 1 %d\n" % (255 if whole else 20) + bytes([3, 20])
        if whole:
            assert np.asarray(decode(data, limit_pixels=LIMIT, of_mask=True)).tolist() == [[3, 20]]
            continue
        with pytest.raises(SampleFailedError, match="whose numbers go to 20"):
            decode(data, limit_pixels=LIMIT, of_mask=True)
