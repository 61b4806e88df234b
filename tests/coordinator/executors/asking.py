"""Make prefetch requests whose id tells the tests' misbehaving functions what to do."""

import numpy as np
import pytest
from PIL import Image

from superdl.coordinator.executors.base import ExecutorError
from superdl.super_wire.ids import sample_ids, split_ids
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.record import unpack
from superdl.super_wire.request import PrefetchRequest

TIMEOUT_S = 30.0


def ask(request_id="plain", bucket="file:///nowhere", keys=("k",), versions=("1-1",), cache="unix:///none"):
    recipe = Recipe([])
    names = [[text.encode() for text in texts] for texts in (keys, versions)]
    return PrefetchRequest(
        request_id=request_id,
        bucket=bucket,
        recipe=recipe.json,
        epoch=0,
        cache=cache,
        expires_in_s=TIMEOUT_S,
        keys=tuple(keys),
        versions=tuple(versions),
        ids=sample_ids(bucket, *names, recipe.digest),
    )


def ask_for_images(directory, cache):
    """Write eight images to a directory. Return a request for them, and their pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    names, versions = [f"{n}.png" for n in range(8)], []
    for n, name in enumerate(names):
        Image.fromarray(pixels + n).save(directory / name)
        status = (directory / name).stat()
        versions.append(f"{status.st_size}-{status.st_mtime_ns}")
    return ask("real", f"file://{directory.resolve()}", names, versions, cache), pixels


def assert_cached(valkey, request, pixels):
    """Check that the cache holds the pixels of all images of :func:`ask_for_images`."""
    with valkey.client() as client:
        for n, one in enumerate(split_ids(request.ids)):
            assert np.array_equal(unpack(client.get(f"super:r1:{one.hex()}"))[1], pixels + n)


def failing(kind, match=None):
    """Expect an executor error of this kind."""
    return pytest.raises(ExecutorError, match=match, check=lambda error: error.kind is kind)
