"""The bare socket loop gathers what the cache holds, whole batches and short ones, over every socket."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import redis

from benchmarks.harness.image_sets import Loading
from benchmarks.loaders.bare_loops import SocketLoop, connected

SIDE = 40
COUNT = 90


IDS = [hashlib.blake2b(bytes([label]), digest_size=16).hexdigest() for label in range(COUNT)]
PIXELS = np.random.default_rng(0).integers(0, 256, size=(COUNT, SIDE, SIDE, 3), dtype=np.uint8)


def fill(client: redis.Redis) -> None:
    """Records of all images; an image's label is its number."""
    for digits, image in zip(IDS, PIXELS, strict=True):
        client.set(f"super:r1:{digits}", bytes(64) + image.tobytes())


def labels_of_an_epoch(loop: SocketLoop) -> list[int]:
    """The labels in their order, once the images that came with them have been compared."""
    seen: list[int] = []
    for batch, labels in loop:
        assert batch.shape == (len(labels), 3, SIDE, SIDE)
        assert np.array_equal(batch.permute(0, 2, 3, 1).numpy(), PIXELS[labels.numpy()])
        seen += labels.tolist()
    return seen


def loading_of(batch_size: int) -> Loading:
    return Loading("", "", COUNT, SIDE, SIDE, batch_size)


@pytest.mark.parametrize("batch_size", [1, 32, 45, COUNT, 2 * COUNT])
def test_every_image_comes_once_with_its_label(valkey, batch_size):
    with redis.Redis(unix_socket_path=valkey.unix_url.removeprefix("unix://")) as client:
        fill(client)
    loop = SocketLoop(connected(valkey.unix_url), IDS, list(range(COUNT)), loading_of(batch_size))
    orders = [labels_of_an_epoch(loop) for _ in range(2)]
    loop.close()
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(COUNT))
    assert orders[0] != orders[1]
