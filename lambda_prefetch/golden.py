"""Golden images: proof that this function decodes as all others do.

A few small images of the kinds that decoders disagree about are carried along, encoded, and run through fixed
recipes; the digest of all their pixels is told when the function warms up. One that differs (another libjpeg,
another Pillow, another processor) would give other bytes for the same sample ids, so whoever starts functions
refuses it.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from typing import Any

from PIL import Image

from superdl.lambda_prefetch.golden_images import GOLDEN_IMAGES
from superdl.lambda_prefetch.transforms import Program
from superdl.super_wire.ids import digest128
from superdl.super_wire.recipe import Recipe

__all__ = ["golden_digest"]

_LIMIT_PIXELS = 4096
_RECIPES: tuple[list[dict[str, Any]], ...] = (
    [],
    [{"op": "resize", "size": 17}, {"op": "center_crop", "size": 15}],
    [{"op": "reduced_decode", "size": 11}],
    [{"op": "random_resized_crop", "size": 13}, {"op": "horizontal_flip", "p": 0.5}],
)

# Noise of these sizes, (width, height), is resized as well: smooth images hide the order in which a resampler
# takes columns and rows. Pillow 13 takes the cheaper one first, earlier versions always columns.
_NOISE_SIZES = ((23, 61), (61, 23), (31, 33))


def golden_digest() -> str:
    """32 hex digits over the pixels of all golden images after all golden recipes; takes a millisecond."""
    fields = []
    for steps in _RECIPES:
        program = Program(
            Recipe(steps, augment_seed=7),
            bucket="golden",
            epoch=1,
            limit_pixels=_LIMIT_PIXELS,
            step_modules=frozenset(),
        )
        for name, encoded in GOLDEN_IMAGES.items():
            array = program.make(b64decode(encoded), name)
            fields += [str(array.shape).encode(), array.tobytes()]
        for width, height in _NOISE_SIZES:
            noise = hashlib.shake_256(b"golden noise").digest(width * height * 3)
            array = program.run(Image.frombytes("RGB", (width, height), noise), f"noise {width}x{height}")
            fields += [str(array.shape).encode(), array.tobytes()]
    return digest128(*fields).hex()
