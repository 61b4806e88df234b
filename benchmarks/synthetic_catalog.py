"""Catalogs the size of ImageNet that nobody has to list: keys as ImageNet's, versions as S3's.

What the coordinator does with a catalog depends on its size and on the shape of its strings, not on there
being images behind them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from superdl.coordinator.catalog import Catalog, PackedStrings

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CLASSES", "IMAGENET_SAMPLES", "synthetic_catalog"]

IMAGENET_SAMPLES = 1_280_000
CLASSES = 1000

_FIRST_CLASS = 1_440_764
_CLASS_STEP = 14_197
_NUMBER_STEP = 17
_ETAG_BYTES = 16


def synthetic_catalog(number: int, samples: int) -> Catalog:
    """The ``number``-th catalog: keys ``train/n01440764/n01440764_18.JPEG``, versions of 32 hex digits.

    Catalogs of different numbers have nothing in common but the shape of their keys.
    """
    classes = [f"n{_FIRST_CLASS + _CLASS_STEP * place:08d}" for place in range(min(CLASSES, samples))]
    per_class = -(-samples // len(classes))

    def keys() -> Iterator[bytes]:
        for place in range(samples):
            name = classes[place // per_class]
            yield f"train/{name}/{name}_{1 + _NUMBER_STEP * (place % per_class)}.JPEG".encode()

    etags = np.random.default_rng(number).bytes(samples * _ETAG_BYTES).hex().encode()
    digits = 2 * _ETAG_BYTES
    offsets = np.arange(0, (samples + 1) * digits, digits, dtype=np.uint64)
    labels = np.arange(samples, dtype=np.int64) // per_class
    packed = PackedStrings.pack(keys())
    return Catalog.build(f"s3://bench-{number}", packed, PackedStrings(etags, offsets), labels, classes)
