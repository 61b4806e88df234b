"""The decoder's fingerprint (``golden`` on the wire). Functions that decode identically have the same one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from superdl.lambda_prefetch.image_steps import Program
from superdl.super_wire.ids import digest128
from superdl.super_wire.recipe import Recipe

# Encoded by Pillow 13, from the same 29 x 23 gradients, and hashed in this order. Never encode them again,
# because other bytes would change the fingerprint.
_FOLDER = Path(__file__).with_name("reference_images")
_NAMES = ("colour_420.jpg", "greyscale.jpg", "cmyk.jpg", "palette.png")
REFERENCE_IMAGES = {name: (_FOLDER / name).read_bytes() for name in _NAMES}
_LIMIT_PIXELS = 4096
_RECIPES: tuple[list[dict[str, Any]], ...] = (
    [],
    [{"op": "resize", "size": 17}, {"op": "center_crop", "size": 15}],
    [{"op": "reduced_decode", "size": 11}],
    [{"op": "random_resized_crop", "size": 13}, {"op": "horizontal_flip", "p": 0.5}],
)

# Sizes of noise images (width, height). Smooth images do not show whether a resampler processes columns or
# rows first. Pillow 13 starts with the cheaper axis, earlier versions with columns.
_NOISE_SIZES = ((23, 61), (61, 23), (31, 33))

# Filters that were added later. If they produce Pillow 13's pixels, the fingerprint does not change, and
# older stores remain usable.
_FILTERS: tuple[list[dict[str, Any]], ...] = tuple(
    [{"op": "resize", "size": size, "interpolation": name}]
    for name in ("nearest", "box", "hamming", "bicubic", "lanczos")
    for size in (17, 37)
)
_PILLOW_13 = "bf565ab92b121519bfc3b6744c36fcb5"


def decoder_fingerprint() -> str:
    """Apply several recipes to reference images and hash the results to 32 hex digits. Takes milliseconds."""
    # A different libjpeg, Pillow or processor may produce different bytes for the same sample ids.
    fingerprint = _digest_of(_RECIPES, REFERENCE_IMAGES)
    filters = _digest_of(_FILTERS, {})
    return fingerprint if filters == _PILLOW_13 else digest128(f"{fingerprint} {filters}".encode()).hex()


def _digest_of(recipes: tuple[list[dict[str, Any]], ...], encoded_images: dict[str, bytes]) -> str:
    fields = []
    for steps in recipes:
        program = Program(
            Recipe(steps, augment_seed=7),
            bucket="golden",  # hashed, as are the names below: never rename them
            epoch=1,
            limit_pixels=_LIMIT_PIXELS,
            step_modules=frozenset(),
        )
        for name, encoded in encoded_images.items():
            array = np.asarray(program.make(encoded, name))
            fields += [str(array.shape).encode(), array.tobytes()]
        for width, height in _NOISE_SIZES:
            noise = hashlib.shake_256(b"golden noise").digest(width * height * 3)
            noisy = Image.frombytes("RGB", (width, height), noise)
            array = np.asarray(program.run(noisy, f"noise {width}x{height}"))
            fields += [str(array.shape).encode(), array.tobytes()]
    return digest128(*fields).hex()
