"""What the trials of a process share: a cache, a store of objects, and images whose pixels are known."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.images import CLASSES, SIDE, independent_decode, write_images
from tests.fixtures.object_store import ObjectStore, serve_objects
from tests.fixtures.valkey import Valkey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["IMAGES", "Ground", "ground"]

IMAGES = 61
_BAD = ("ant/00008.jpg", "dog/00031.jpg")


@dataclass
class Ground:
    """What trials share: a cache that is emptied between them, and images whose pixels are known."""

    valkey: Valkey
    store: ObjectStore
    directories: dict[bool, Path]
    """Images; under ``True`` with some that cannot be decoded."""
    pixels: list[bytes]
    labels: list[int]
    bad: list[int]


@contextlib.contextmanager
def ground(directory: Path) -> Iterator[Ground]:
    """Start what trials share; files go into a directory."""
    good, with_bad = write_images(directory / "good", IMAGES), write_images(directory / "with-bad", IMAGES)
    for name in _BAD:
        (with_bad / name).write_bytes(b"no image at all")
    names = sorted(str(path.relative_to(good)) for path in good.glob("*/*.jpg"))
    valkey = Valkey()
    valkey.start()
    try:
        with pytest.MonkeyPatch.context() as patch, serve_objects(directory / "buckets", patch) as store:
            write_images(store.directory / "photos" / "train", IMAGES)
            yield Ground(
                valkey,
                store,
                {False: good, True: with_bad},
                [independent_decode(good / name, resize=SIDE, crop=SIDE).tobytes() for name in names],
                [CLASSES.index(name.split("/")[0]) for name in names],
                [names.index(name) for name in _BAD],
            )
    finally:
        valkey.close()
