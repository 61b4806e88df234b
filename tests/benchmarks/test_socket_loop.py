"""The bare socket loop gathers what the cache holds, whole batches and short ones, over every socket."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import redis
import torch

from benchmarks.errors import BenchmarkError
from benchmarks.loading import Loading
from benchmarks.socket_loop import SocketLoop, connected

SIDE = 40
COUNT = 90


@pytest.fixture
def images(valkey):
    """Records of random images in the cache; gives them by label, with their ids."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, size=(COUNT, SIDE, SIDE, 3), dtype=np.uint8)
    ids = [hashlib.blake2b(bytes([label]), digest_size=16).hexdigest() for label in range(COUNT)]
    with redis.Redis(unix_socket_path=valkey.unix_url.removeprefix("unix://")) as client:
        for digits, image in zip(ids, pixels, strict=True):
            client.set(f"super:r1:{digits}", bytes(64) + image.tobytes())
    return ids, pixels


@pytest.mark.parametrize("kind", ["unix_url", "url"])
@pytest.mark.parametrize("batch_size", [1, 32, 45, COUNT, 2 * COUNT])
def test_every_image_comes_once_with_its_label(valkey, images, kind, batch_size):
    ids, pixels = images
    loading = Loading("", "", resize=SIDE, crop=SIDE, batch_size=batch_size, num_workers=0)
    loop = SocketLoop(connected(getattr(valkey, kind)), ids, list(range(COUNT)), loading)
    orders = []
    for _ in range(2):
        seen = []
        for batch, labels in loop:
            assert batch.shape == (len(labels), 3, SIDE, SIDE)
            assert batch.is_contiguous(memory_format=torch.channels_last)
            assert np.array_equal(batch.permute(0, 2, 3, 1).numpy(), pixels[labels.numpy()])
            seen += labels.tolist()
        assert sorted(seen) == list(range(COUNT))
        orders.append(seen)
    loop.close()
    assert orders[0] != orders[1]


def test_an_address_that_it_does_not_know_is_named():
    with pytest.raises(BenchmarkError, match="rediss://cache:6380"):
        connected("rediss://cache:6380")
