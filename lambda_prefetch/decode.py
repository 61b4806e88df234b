"""Decode encoded bytes to an upright RGB image with Pillow."""

from __future__ import annotations

import io
import re
import struct
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageFile, PngImagePlugin, UnidentifiedImageError, features

from superdl.lambda_prefetch.sources import SampleFailedError, fatal

if TYPE_CHECKING:
    from collections.abc import Sequence

_OPTIONAL = {"AVIF": "avif", "JPEG2000": "jpg_2000"}
# ImageFolder's formats, GIF, which some datasets contain with a wrong extension, and AVIF and JPEG 2000 if
# Pillow supports them. Some of Pillow's other formats run external programs.
FORMATS = (
    *("JPEG", "PNG", "BMP", "PPM", "GIF", "TIFF", "WEBP"),
    *(kind for kind, feature in _OPTIONAL.items() if features.check(feature)),
)

_FILLS: ContextVar[bool] = ContextVar("_FILLS", default=False)


class _FillsHere:
    """Pillow's switch for loading truncated images, with a separate value for each thread."""

    def __init__(self, elsewhere: object) -> None:
        self._elsewhere = elsewhere

    def __bool__(self) -> bool:
        return _FILLS.get() or bool(self._elsewhere)


# Pillow's own switch would affect the other threads of the process.
ImageFile.LOAD_TRUNCATED_IMAGES = _FillsHere(ImageFile.LOAD_TRUNCATED_IMAGES)  # type: ignore[assignment]

MAX_SCANS = 100  # of a JPEG; encoders write about ten, and each takes a pass over all pixels

_MASKS = frozenset({"1", "L", "P", "I;16", "I;16L", "I;16B", "I", "F"})
_SCALES = {"L;2": 85, "L;4": 17}  # Pillow's multipliers for grey levels of 2 and 4 bits
_WHOLE = (255, 65535)

_JPEGS = frozenset({"JPEG", "MPO"})
_SCAN = b"\xff\xda"
_FEW_BYTES = 2**12
_BLOCK = 2**20  # bytes searched at a time, to bound memory
# A marker is 0xff and another byte. Within a scan, 0 or a restart marker follows 0xff.
_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")
_START_OF_IMAGE = b"\xff\xd8"
_SEGMENT = struct.Struct(">HH")  # marker, and length without the marker
_FRAME = struct.Struct(">BHHB")  # bits, height, width, components
_BASELINE, _FIRST_SCAN = 0xFFC0, 0xFFDA
_APP0, _JFIF_BYTES = 0xFFE0, 16
_BITS, _COMPONENTS = 8, 3
_PIXELS_PER_BYTE = 256  # only images of a single colour exceed it
# The baseline frame, the decoder's tables, JFIF's header, and comments.
_PLAIN_SEGMENTS = frozenset({_BASELINE, 0xFFC4, 0xFFDB, 0xFFDD, 0xFFE0, 0xFFFE})
_END_OF_IMAGE, _ALONE = b"\xd9", frozenset({b"\x01", b"\xd8"})  # no length follows them

_ORIENTATION_TAG = 0x0112
_TILE_SIDE_TAGS = (0x0142, 0x0143)
# EXIF orientation -> the transposition that turns the pixels upright
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(
    data: bytes | bytearray,
    *,
    limit_pixels: int,
    min_side: int = 0,
    is_mask: bool = False,
    fills: bool = False,
) -> Image.Image:
    """Decode to an upright RGB image or to the class indices of a mask.

    Only the first frame of an animation is decoded.

    Args:
        data: the encoded image.
        limit_pixels: maximum number of pixels (width times height) before any reduction.
        min_side: if not 0, decode a JPEG at the smallest of the scales 1, 1/2, 1/4 and 1/8 that leaves
            at least this many pixels on the shorter side. Smaller images keep their size.
        is_mask: return the values of a single channel instead of RGB.
        fills: fill in the missing part of a truncated image instead of failing.

    Raises:
        SampleFailedError: the image is invalid or too large. This failure is permanent.
        MemoryError: the image may still be valid.
    """
    if not data:
        raise fatal("empty", "the object is empty")
    # The fast path needs neither draft() nor the fill switch.
    if not min_side and not is_mask and (plain := _plain_jpeg(data, limit_pixels)) is not None:
        return plain
    token = _FILLS.set(fills)
    try:
        return _decode(data, limit_pixels, min_side, is_mask=is_mask)
    finally:
        _FILLS.reset(token)


def _decode(data: bytes | bytearray, limit_pixels: int, min_side: int, *, is_mask: bool) -> Image.Image:
    try:
        image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        # Only the header has been read, so decompression bombs cost nothing.
        check_pixels(*image.size, limit_pixels)
        if image.format in _JPEGS:
            _check_scans(data)
        if image.format == "TIFF":  # libtiff unpacks whole tiles, which may be huge
            width, height = (image.getexif().get(tag, 0) for tag in _TILE_SIDE_TAGS)
            check_pixels(width, height, limit_pixels)
        if min_side:
            image.draft(None, (min_side, min_side))  # only affects JPEG
        scale = _scale_of(getattr(image, "tile", ())) if is_mask else 1
        image.load()
        # Pillow would warn that convert() drops the transparency, which is intended.
        image.info.pop("transparency", None)
        # Unlike ImageFolder, rotate by the EXIF orientation.
        upright = _UPRIGHT.get(_orientation(image))
        if upright is not None:
            image = image.transpose(upright)
        if is_mask:
            return _numbers_of(image, scale)
        # Drop alpha instead of blending it, like ImageFolder.
        return image if image.mode == "RGB" else image.convert("RGB")
    except (MemoryError, SampleFailedError):
        raise
    except Image.DecompressionBombError as error:
        raise fatal("too_large", str(error)) from error
    except UnidentifiedImageError as error:
        message = (
            f"Pillow cannot open the {len(data)} bytes, which begin with {bytes(data[:8])!r}, as any of "
            f"these formats: {', '.join(FORMATS)}"
        )
        raise fatal("not_an_image", message) from error
    except Exception as error:  # Pillow may raise anything for broken bytes; the tombstone names it
        message = f"Pillow cannot decode the image: {type(error).__name__}: {error}"
        raise fatal("undecodable", message) from error


def _scale_of(tiles: Sequence[tuple[Any, ...]]) -> int:
    """Return the factor by which Pillow multiplies grey levels, given the tiles to decode."""
    if not tiles:
        return 1
    codec, *_, arguments = tiles[0]
    words = arguments if isinstance(arguments, tuple) else (arguments,)
    # Pillow rescales other maximum values to 255, which loses the numbers.
    if str(codec).startswith("ppm") and words[-1] not in _WHOLE:
        message = f"the mask is a PGM with values up to {words[-1]}, which Pillow rescales to 255. Use PNG"
        raise fatal("undecodable", message)
    return _SCALES.get(str(words[0]), 1) if words else 1


def _numbers_of(image: Image.Image, scale: int) -> Image.Image:
    """Return a single-channel image with Pillow's multiplication of its values undone."""
    if image.mode not in _MASKS:
        raise fatal(
            "undecodable",
            f"a mask must have one number per pixel, but this {image.format or 'image'} is {image.mode}. "
            "Save class indices as a greyscale or palette PNG",
        )
    if image.mode == "L" and scale == 1:
        return image
    numbers = np.asarray(image)
    if image.mode in {"1", "L", "P"}:
        return Image.fromarray(numbers.astype(np.uint8) // scale)
    # I;16B holds big-endian numbers.
    return Image.fromarray(numbers.astype(numbers.dtype.newbyteorder("<"), copy=False))


def configure_pillow(text_bytes: int = PngImagePlugin.MAX_TEXT_CHUNK) -> None:
    """Limit the size of unpacked PNG text in this process, and disable Pillow's pixel limit."""
    # Pillow's limit would also apply to crops, so decode() limits pixels instead.
    Image.MAX_IMAGE_PIXELS = None
    PngImagePlugin.MAX_TEXT_CHUNK = text_bytes
    PngImagePlugin.MAX_TEXT_MEMORY = max(text_bytes, 64 * 2**20)


def check_pixels(width: int, height: int, limit_pixels: int) -> None:
    """Raise a permanent failure for an image or step result with too many pixels."""
    if width * height > limit_pixels:
        raise fatal("too_large", f"{width} x {height} exceeds the limit of {limit_pixels} pixels")


def _plain_jpeg(data: bytes | bytearray, limit_pixels: int) -> Image.Image | None:
    """Decode a typical JPEG without opening it as a file. Return ``None`` for any other image."""
    size = _plain_size(data)
    if size is None:
        return None
    # Baseline JPEGs have at most one scan per component. Pillow allocates memory for all declared pixels.
    pixels = size[0] * size[1]
    if not 0 < pixels <= min(limit_pixels, _PIXELS_PER_BYTE * len(data)) or _scan_markers(data) > _COMPONENTS:
        return None
    try:
        # The general path uses the same decoder. Opening a file would add 50% for 64x64 pixels.
        return Image.frombytes("RGB", size, data, "jpeg", "RGB", "")
    except (ValueError, OSError):
        return None


def _plain_size(data: bytes | bytearray) -> tuple[int, int] | None:
    """Return the width and height of a baseline colour JPEG without EXIF, or ``None``."""
    size, at = None, len(_START_OF_IMAGE)
    if not data.startswith(_START_OF_IMAGE):
        return None
    try:
        marker, length = _SEGMENT.unpack_from(data, at)
        while marker in _PLAIN_SEGMENTS:
            if marker == _BASELINE:
                bits, height, width, components = _FRAME.unpack_from(data, at + _SEGMENT.size)
                if size is not None or (bits, components) != (_BITS, _COMPONENTS):
                    return None
                size = width, height
            elif marker == _APP0 and length < _JFIF_BYTES:  # too short for Pillow
                return None
            at += 2 + length
            marker, length = _SEGMENT.unpack_from(data, at)
    except struct.error:  # truncated
        return None
    return size if marker == _FIRST_SCAN else None


def _check_scans(data: bytes | bytearray) -> None:
    """Reject a JPEG with so many scans that it would take minutes to decode."""
    if _scan_markers(data) <= MAX_SCANS:
        return
    # Markers in a thumbnail or after the image do not begin a scan, so walk the segments.
    scans, marker = 0, _MARKER.search(data)
    while marker is not None and marker[1] != _END_OF_IMAGE:
        scans += marker[0] == _SCAN
        end = marker.end()
        if marker[1] not in _ALONE:
            end += int.from_bytes(data[end : end + 2], "big")
        marker = _MARKER.search(data, end)
    if scans > MAX_SCANS:
        raise fatal("too_large", f"{scans} scans exceed the limit of {MAX_SCANS}")


def _scan_markers(data: bytes | bytearray) -> int:
    # For a few bytes, numpy would release the GIL and then wait for it.
    if len(data) <= _FEW_BYTES:
        return data.count(_SCAN)
    # For long inputs, numpy is five times as fast as count().
    array, marks = np.frombuffer(data, dtype=np.uint8), 0
    for at in range(0, array.size, _BLOCK):
        block = array[at : at + _BLOCK + 1]  # one more byte, because a marker may span two blocks
        marks += int(np.count_nonzero((block[:-1] == _SCAN[0]) & (block[1:] == _SCAN[1])))
    return marks


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, from 1 (upright) to 8. The default is 1."""
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    except (SyntaxError, ValueError, TypeError, KeyError, IndexError, OSError, struct.error):
        return 1  # the EXIF block is broken, but the pixels are intact
    return orientation if isinstance(orientation, int) else 1
