"""Images and batch infos for the augmentation tests."""

import hashlib

import numpy as np
import torch

from superdl.super_dataset import BatchInfo


def ids_of(*numbers):
    """Sample ids derived from the numbers alone."""
    return b"".join(hashlib.blake2b(str(n).encode(), digest_size=16).digest() for n in numbers)


def info_of(*numbers, epoch=0):
    """The info of a batch of these samples."""
    return BatchInfo(
        job="j",
        batch_id=b"b" * 16,
        epoch=epoch,
        position=0,
        rank=0,
        sample_ids=ids_of(*numbers),
        keys=(),
        padding=None,
        fetch_s=0.0,
        decode_s=0.0,
        read_s=0.0,
        check_s=0.0,
        wait_s=0.0,
        size_bytes=0,
        hits=len(numbers),
        misses=0,
    )


def picture(number, height=48, width=40, channels=3):
    """An image with smooth and detailed parts, uint8 of shape (channels, height, width), channels_last."""
    generator = np.random.default_rng(number)
    y, x = np.mgrid[0:height, 0:width]
    phases = generator.uniform(0, 6, size=channels)
    waves = np.sin(y[..., None] / 7 + phases) + np.cos(x[..., None] / 5 - phases)
    noise = generator.integers(-30, 31, size=(height, width, channels))
    pixels = np.clip(128 + 50 * waves + noise * (x[..., None] > width // 2), 0, 255).astype(np.uint8)
    return torch.from_numpy(pixels).movedim(-1, 0)


def batch(*numbers, height=48, width=40, channels=3):
    """Images of the samples as a dataset delivers them: (samples, channels, height, width)."""
    images = [picture(n, height, width, channels).movedim(0, -1) for n in numbers]
    return torch.stack(images).movedim(-1, 1)
