"""``superdl bench function --decoders``: which ways of decoding a JPEG give the same bytes, and their time.

The standard is what the function does: Pillow, the whole image, resized whole and cropped. Every other way is
run over JPEGs of many kinds (sides, subsamplings, progressive, greyscale, CMYK) and counts the images that
came out equal, byte for byte; its time is that of photographs. simplejpeg and opencv are compared where they
are installed. What the function makes of it stands in DECISIONS.md.
"""

from __future__ import annotations

import functools
import io
import time
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from benchmarks.image_sets import photo_jpeg
from benchmarks.results import BenchmarkReport, Column, Started
from superdl.lambda_prefetch.decode import decode
from superdl.lambda_prefetch.transforms import center_crop_box, resized_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Way = Callable[[bytes], NDArray[np.uint8]]

__all__ = ["compare_decoders"]

_LIMIT_PIXELS = 10**8
_RESIZE, _CROP = 256, 224
_SIDES = (
    (500, 375),
    (375, 500),
    (640, 480),
    (333, 500),
    (301, 257),
    (256, 256),
    (1600, 1200),
    (64, 64),
    (17, 9),
)
_SUBSAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}
_PHOTOS = 16
_SMALL = (64, 64)
_REPEATS = 5

_COLUMNS = (
    Column("what", "what"),
    Column("way", "way"),
    Column("equal", "equal\nimages", "d"),
    Column("images", "\nof", "d"),
    Column("ms", "ms, 110 KB\n500x375", ".3f"),
    Column("small_ms", "ms\n64x64", ".4f"),
    Column("version", "version"),
)
_METHOD = (
    (
        f"'decode' is from bytes to RGB pixels, 'resize' from decoded pixels to the crop of {_CROP} after "
        f"the shorter side became {_RESIZE}. A way that cannot do an image (CMYK, say) counts as not equal. "
        f"Times are CPU, the best of {_REPEATS}."
    ),
)


def compare_decoders(say: Callable[[str], None]) -> BenchmarkReport:
    """Compare all ways that are installed; ``say`` gets a line for each."""
    started = Started("function --decoders")
    say("making JPEGs")
    jpegs = list(_jpegs())
    photos = [photo_jpeg(number) for number in range(_PHOTOS)]
    small = [_jpeg(_SMALL, number, subsampling=2) for number in range(64)]
    rows = []
    for name, way in _decoders().items():
        say(f"decode: {name}")
        rows.append(_row("decode", name, way, _pillow, jpegs, photos, small))
    for name, way in _resizers().items():
        say(f"resize: {name}")
        rows.append(_row("resize", name, way, _whole, jpegs, photos, None))
    return started.report(
        settings={"images": len(jpegs), "resize": _RESIZE, "crop": _CROP},
        method=_METHOD,
        columns=_COLUMNS,
        rows=rows,
    )


def _row(
    what: str,
    name: str,
    way: Way,
    standard: Way,
    jpegs: list[bytes],
    photos: list[bytes],
    small: list[bytes] | None,
) -> dict[str, Any]:
    package = name.partition(" ")[0]
    return {
        "what": what,
        "way": name,
        "equal": sum(_equal(way, standard, data) for data in jpegs),
        "images": len(jpegs),
        "ms": _cpu_ms(way, photos),
        "small_ms": None if small is None else _cpu_ms(way, small),
        "version": metadata.version({"opencv": "opencv-python-headless"}.get(package, package)),
    }


def _equal(way: Way, standard: Way, data: bytes) -> bool:
    try:
        return bool(np.array_equal(way(data), standard(data)))
    except (ValueError, AttributeError, TypeError):  # it cannot do this kind
        return False


def _cpu_ms(way: Way, images: list[bytes]) -> float:
    """Milliseconds of CPU per image; what resizing ways decode first is remembered, and so not counted."""
    for data in images:
        way(data)
    times = []
    for _ in range(_REPEATS):
        begun_s = time.process_time()
        for data in images:
            way(data)
        times.append(time.process_time() - begun_s)
    return 1e3 * min(times) / len(images)


# ------------------------------------------------------------------------------------------ decoding


def _decoders() -> dict[str, Way]:
    ways: dict[str, Way] = {"pillow": _pillow}
    if (simplejpeg := _installed("simplejpeg")) is not None:
        ways["simplejpeg"] = lambda data: simplejpeg.decode_jpeg(data, colorspace="RGB")
        ways["simplejpeg fast DCT"] = lambda data: simplejpeg.decode_jpeg(
            data, colorspace="RGB", fastdct=True
        )
    if (cv2 := _installed("cv2")) is not None:
        ways["opencv"] = lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    return ways


def _installed(module: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        return None


def _pillow(data: bytes) -> NDArray[np.uint8]:
    return np.asarray(decode(data, limit_pixels=_LIMIT_PIXELS))


# ------------------------------------------------------------------------------------------ resizing


@functools.cache
def _image(data: bytes) -> Image.Image:
    return decode(data, limit_pixels=_LIMIT_PIXELS)


def _resizers() -> dict[str, Way]:
    ways: dict[str, Way] = {
        "pillow": _whole,
        "pillow with the box of the crop": _boxed,
        "pillow in two passes": _two_passes,
        "pillow with reducing_gap": _with_gap,
    }
    if (cv2 := _installed("cv2")) is not None:
        ways["opencv"] = lambda data: _by_opencv(cv2, data)
    return ways


def _sizes(image: Image.Image) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    size = resized_size(*image.size, _RESIZE)
    return size, center_crop_box(*size, _CROP)


def _whole(data: bytes) -> NDArray[np.uint8]:
    image = _image(data)
    size, box = _sizes(image)
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR).crop(box))


def _boxed(data: bytes) -> NDArray[np.uint8]:
    image = _image(data)
    (width, height), (left, top, right, bottom) = _sizes(image)
    across, down = image.width / width, image.height / height
    box = (left * across, top * down, right * across, bottom * down)
    return np.asarray(image.resize((_CROP, _CROP), Image.Resampling.BILINEAR, box=box))


def _two_passes(data: bytes) -> NDArray[np.uint8]:
    """Columns first; rows only of the columns that are kept."""
    image = _image(data)
    (width, height), (left, top, right, bottom) = _sizes(image)
    columns = image.resize((width, image.height), Image.Resampling.BILINEAR).crop(
        (left, 0, right, image.height)
    )
    rows = columns.resize((right - left, height), Image.Resampling.BILINEAR)
    return np.asarray(rows.crop((0, top, right - left, bottom)))


def _with_gap(data: bytes) -> NDArray[np.uint8]:
    image = _image(data)
    size, box = _sizes(image)
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0).crop(box))


def _by_opencv(cv2: Any, data: bytes) -> NDArray[np.uint8]:
    image = _image(data)
    size, (left, top, right, bottom) = _sizes(image)
    resized: NDArray[np.uint8] = cv2.resize(np.asarray(image), size, interpolation=cv2.INTER_LINEAR)
    return resized[top:bottom, left:right]


# -------------------------------------------------------------------------------------------- images


def _jpegs() -> Iterator[bytes]:
    """JPEGs of every side, and of every kind that an encoder makes of them."""
    for number, sides in enumerate(_SIDES):
        for subsampling in _SUBSAMPLINGS.values():
            for progressive in (False, True):
                yield _jpeg(sides, number, subsampling=subsampling, progressive=progressive)
        for mode in ("L", "CMYK"):
            yield _jpeg(sides, number, mode=mode)


def _jpeg(sides: tuple[int, int], seed: int, mode: str = "RGB", **options: Any) -> bytes:
    random = np.random.default_rng([seed, *sides])
    coarse = Image.fromarray(random.integers(0, 256, (12, 12, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize(sides, Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = smooth + random.integers(-20, 21, smooth.shape, dtype=np.int16)
    content = io.BytesIO()
    image = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).convert(mode)
    image.save(content, "JPEG", quality=90, **options)
    return content.getvalue()
