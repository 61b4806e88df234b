"""Collect and compare what integration tests read: samples, their order and their pixels."""

import os
import shutil
from collections import Counter
from contextlib import contextmanager

import numpy as np
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.workers import until

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


@contextmanager
def reading(
    source,
    address,
    recipe=RECIPE,
    *,
    batch_size=4,
    shuffle=True,
    seed=1,
    workers=0,
    straight=True,
    **dataset,
):
    """A sampler over a source and a DataLoader of its batches. Other arguments go to the dataset.

    Unless ``straight``, read as on a host that cannot see the store.
    """
    made = SuperDataset(source, recipe, **dataset)
    made.reads_straight = straight
    with SuperSampler(
        made, batch_size=batch_size, shuffle=shuffle, seed=seed, coordinator=address
    ) as sampler:
        yield sampler, DataLoader(made, sampler=sampler, batch_size=None, num_workers=workers)


def settled_stats(sampler):
    """A job's statistics once no request is pending: the last responses may follow the last batch."""
    until(lambda: not sampler.job_stats().total_requests_in_flight, 30.0)
    return sampler.job_stats()


def spoil(files):
    """Overwrite each file with zeros, keeping size and mtime, so that no reader finds its data."""
    for file in files:
        status = file.stat()
        file.write_bytes(bytes(status.st_size))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def remove_busy(folder, tries=1000):
    """Remove a folder while other processes may still write to it."""
    for last in range(tries):
        try:
            shutil.rmtree(folder)
        except OSError:  # an entry appeared or disappeared meanwhile
            if last == tries - 1:
                raise
        else:
            return


def pixels_of(images):
    """Each image of a batch [n, 3, h, w] as bytes: its RGB pixels, row by row."""
    return [np.ascontiguousarray(image).tobytes() for image in images.permute(0, 2, 3, 1).numpy()]


def collect(loader):
    """Read one epoch: (pixels, label) of every sample in delivery order, copied."""
    delivered = []
    for images, labels, *_ in loader:
        delivered += list(zip(pixels_of(images), labels.tolist(), strict=True))
    return delivered


def epoch_of(source, recipe, address, **how):
    """Collect one shuffled epoch over a source. ``how`` is passed to :func:`reading`."""
    with reading(source, address, recipe, **how) as (_, loader):
        return collect(loader)


def assert_exactly_once(delivered, expected):
    """Assert that every expected image came once, with its label and exact pixels, and nothing else came."""
    assert Counter(pixels for pixels, _ in delivered) == Counter(dict.fromkeys(expected, 1))
    assert all(expected[pixels] == label for pixels, label in delivered)


def train(stack, images, source="", *, disturb=None, side=SIDE, figures=True, **how):
    """Train an epoch with actions at batches (``disturb``), the same again without, and the next. Each
    delivers every sample once with its pixels, the first two in the same order, the third in another.

    ``images`` is the directory behind ``source``, and the source where none is given. Returns the first
    epoch's statistics unless ``figures`` is false: a coordinator that just restarted may have none. ``how``
    goes to :func:`reading`.
    """
    recipe = Recipe.image(resize=side, crop=side)
    with reading(source or images.as_uri(), stack.address, recipe, **how) as (sampler, loader):
        delivered = []
        for number, batch in enumerate(loader):
            (disturb or {}).get(number, lambda: None)()
            delivered += collect([batch])
        stats = sampler.job_stats() if figures else None
        sampler.set_epoch(0)
        assert collect(loader) == delivered
        following = collect(loader)
    assert following != delivered
    expected = expected_pixels(images, resize=side, crop=side)
    for epoch in (delivered, following):
        assert_exactly_once(epoch, expected)
    return stats
