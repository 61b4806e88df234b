"""The decoder's fingerprint, ``golden`` on the wire: proof that all functions decode alike."""

from __future__ import annotations

import hashlib
from base64 import b64decode
from typing import Any

import numpy as np
from PIL import Image

from superdl.lambda_prefetch.transforms import Program
from superdl.super_wire.ids import digest128
from superdl.super_wire.recipe import Recipe

_LIMIT_PIXELS = 4096
_RECIPES: tuple[list[dict[str, Any]], ...] = (
    [],
    [{"op": "resize", "size": 17}, {"op": "center_crop", "size": 15}],
    [{"op": "reduced_decode", "size": 11}],
    [{"op": "random_resized_crop", "size": 13}, {"op": "horizontal_flip", "p": 0.5}],
)

# Noise of these sizes, (width, height), is resized as well: smooth images hide the order in which a resampler
# handles columns and rows. Pillow 13 does the cheaper one first, earlier versions always columns.
_NOISE_SIZES = ((23, 61), (61, 23), (31, 33))

# Filters that were added later. If they give these pixels, the fingerprint stays as it was before, so that
# stores written back then remain usable.
_FILTERS: tuple[list[dict[str, Any]], ...] = tuple(
    [{"op": "resize", "size": size, "interpolation": name}]
    for name in ("nearest", "box", "hamming", "bicubic", "lanczos")
    for size in (17, 37)
)
_PILLOW_13 = "bf565ab92b121519bfc3b6744c36fcb5"


def decoder_fingerprint() -> str:
    """Return 32 hex digits over the reference images after all recipes; takes milliseconds."""
    # Another libjpeg, Pillow or processor may give other bytes for the same sample ids: executors
    # refuse such a function.
    fingerprint = _digest_of(_RECIPES, REFERENCE_IMAGES)
    filters = _digest_of(_FILTERS, {})
    return fingerprint if filters == _PILLOW_13 else digest128(f"{fingerprint} {filters}".encode()).hex()


def _digest_of(recipes: tuple[list[dict[str, Any]], ...], encoded_images: dict[str, str]) -> str:
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
            array = np.asarray(program.make(b64decode(encoded), name))
            fields += [str(array.shape).encode(), array.tobytes()]
        for width, height in _NOISE_SIZES:
            noise = hashlib.shake_256(b"golden noise").digest(width * height * 3)
            noisy = Image.frombytes("RGB", (width, height), noise)
            array = np.asarray(program.run(noisy, f"noise {width}x{height}"))
            fields += [str(array.shape).encode(), array.tobytes()]
    return digest128(*fields).hex()


# Encoded once by Pillow 13 and never again: a new encoding would be a new standard.
# name -> the encoded image in base64; all show the same 29 x 23 gradients
REFERENCE_IMAGES = {
    "colour_420.jpg": (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAYEBQYFBAYGBQYHBwYIChAKCgkJChQODwwQFxQYGBcUFhYaHSUfGhsjHBYWICwgIyYn"
        "KSopGR8tMC0oMCUoKSj/2wBDAQcHBwoIChMKChMoGhYaKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgoKCgo"
        "KCgoKCgoKCj/wAARCAAXAB0DASIAAhEBAxEB/8QAGQAAAgMBAAAAAAAAAAAAAAAAAAUDBAYH/8QAJxAAAQMEAQMDBQAAAAAAAAAA"
        "AQIDBAAFESExBhIiB2GBExRBUZH/xAAZAQACAwEAAAAAAAAAAAAAAAACBgEDBAf/xAAoEQABAwMCAwkAAAAAAAAAAAABAgMEAAUR"
        "BiESkbETMUFRYXGB0fH/2gAMAwEAAhEDEQA/AG0iz9P3JLwmWmEtTyu9xxLQQ4pWck96cKyTzvdVVenfTMl9C2DNhpCcFth/KScn"
        "fmFHPzjXFK41yOvKm8O4nIwqqNQXCfFUeyWrmelKljhS2AA24oD3OOXdULXpZMQyg269R33e4ApfZU0kJwd5BVvjWPmriegeq461"
        "tNQ2pSE4w61IQEq1+O4pPtsDitLaLkfHyq9fOsHrSY7UX6S3FpKlhxJOBwMYI/Sv5R2O+3R5XCcKPqPrFdBF9lWqOZEkhSR5p33P"
        "hjH5XAYk062aeQZhyOaKKd77AYUs5FTa4ze21am1zCMbNZSfefvrjKkJIKFLwkgEZSNA79gKKKHTtvYClqArFrZCQywzjYlR+QAB"
        "1Nf/2Q=="
    ),
    "greyscale.jpg": (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAYEBQYFBAYGBQYHBwYIChAKCgkJChQODwwQFxQYGBcUFhYaHSUfGhsjHBYWICwgIyYn"
        "KSopGR8tMC0oMCUoKSj/wAALCAAXAB0BAREA/8QAGAAAAwEBAAAAAAAAAAAAAAAABAUGAgf/xAAnEAABAwQBAwMFAAAAAAAAAAAB"
        "AgMEAAURITEGEiIHYYETFEFRkf/aAAgBAQAAPwBtIs/T9yS8JlphLU8rvccS0EOKVnJPenCsk873QqvTvpmS+hbBmw0hOC2w/lJO"
        "TvzCjn5xrisNelkxDKDbr1Hfd7gCl9lTSQnB3kFW+NY+aMT0D1XHWtpqG1KQnGHWpCAlWvx3FJ9tgcUijXI68qbw7icjCqq7Rcj4"
        "+VHXzrB60mO1F+ktxaSpYcSTgcDGCP0r+VwGJNOtmnkGYcjmqm1zCMbNSk+8/fXGVISQUKXhJAIykaB37AV//9k="
    ),
    "cmyk.jpg": (
        "/9j/7gAOQWRvYmUAZAAAAAAA/9sAQwANCQoLCggNCwoLDg4NDxMgFRMSEhMnHB4XIC4pMTAuKS0sMzpKPjM2RjcsLUBXQUZMTlJT"
        "UjI+WmFaUGBKUVJP/8AAFAgAFwAdBEMRAE0RAFkRAEsRAP/EABkAAAMBAQEAAAAAAAAAAAAAAAAEBgUHA//EACgQAAEDBAICAQMF"
        "AAAAAAAAAAEAAgMEBREhEjEGUSIHYWIUIzJBgf/aAA4EQwBNAFkASwAAPwCIt8XWlT1VrsNwbKKq1UjnTO5PkbGGPcc5zzbh2c97"
        "2qK715aXbXTlT2+LrSy6jwPxyolD4TV0jQ3HCGbIJ9/MOOf9xpStTd+MmOSFUW+LrSxqj6b1bIgaG8QTScttmiMQA95BdvrWE3br"
        "oXuHyQqOli/b6WbP4X5RDM6OOkiqGtxiWKdga7X9ciD9thV9BWkwdoXHLfF1pUkdy/JTd8DvlhCp7fF1pNR3L8lBXJk5l+Ge0Knt"
        "8XWkzHcvyWpZWyAt5ZQs3zXy6q8amo6W3R00s0rHSStmY48W5w0gggbId76TLblr+SvLcHfp0KRt8XS5lHcT7K9btQci7pCqLfF0"
        "mo7ifZUxUWkOedBCp7fF0mo7ifZTVvtga4aCFxvyCubePIa+vYWOjklxG5rSA5jRxacHeS0An7+ky24nHZVZQ0WIUL//2Q=="
    ),
    "palette.png": (
        "iVBORw0KGgoAAAANSUhEUgAAAB0AAAAXBAMAAAAFJllaAAAAMFBMVEXd4Z2f4lbfqIKgqShh4mci5L1hqVQjqbHfb5Kgb1piboAg"
        "cMq9O7DAEK1gPrxZD6XosR+CAAAAyUlEQVR42lXQPUrEUBQF4C9vHmNjMQEXEJINDESsA6O9VVqnyrpcgq2YYpYwG1BcgRPUEUTG"
        "WLwQ8Hbn3vPHze7upXke8Bm+2jbhLM8R0Y4/DyAXIwxuPCZWxIjThfMdAgbs+agqglDihIxqHUv/JqLk9P77StKP2AsUk1+SF1mY"
        "8cQs3IbG5bRYCYoQN5qZUwhTBkucJf3mqtNt53wZHZbbw3f2VPccMA7Ux7BwnbyGlLqmsUotF6lPbOZz8osV+vTFN3gBfe34B3qB"
        "LYikiRxwAAAAAElFTkSuQmCC"
    ),
}
