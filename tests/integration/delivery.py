"""What integration tests collect and compare: which samples came, in which order, with which pixels."""

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
    """A sampler over a source and a DataLoader of its batches; the rest are arguments of the dataset.

    Not ``straight``: as on a host that does not see the store.
    """
    made = SuperDataset(source, recipe, **dataset)
    made.reads_straight = straight
    with SuperSampler(
        made, batch_size=batch_size, shuffle=shuffle, seed=seed, coordinator=address
    ) as sampler:
        yield sampler, DataLoader(made, sampler=sampler, batch_size=None, num_workers=workers)


def settled_stats(sampler):
    """The figures of a job once no request is under way: the last answers come later than the last batch."""
    until(lambda: not sampler.job_stats().total_requests_in_flight, 30.0)
    return sampler.job_stats()


def spoil(files):
    """Make each file zeros, of its length and time: whoever reads it finds nothing that it had."""
    for file in files:
        status = file.stat()
        file.write_bytes(bytes(status.st_size))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def remove_busy(folder, tries=1000):
    """Remove a folder into which other processes may write meanwhile."""
    for last in range(tries):
        try:
            shutil.rmtree(folder)
        except OSError:  # something new is in it, or is gone from it
            if last == tries - 1:
                raise
        else:
            return


def pixels_of(images):
    """Each image of a batch [n, 3, h, w] as the bytes of its rows of RGB pixels."""
    return [np.ascontiguousarray(image).tobytes() for image in images.permute(0, 2, 3, 1).numpy()]


def collect(loader):
    """One epoch: (pixels, label) of every sample, in the order of delivery, copied."""
    delivered = []
    for images, labels, *_ in loader:
        delivered += list(zip(pixels_of(images), labels.tolist(), strict=True))
    return delivered


def epoch_of(source, recipe, address, **how):
    """One shuffled epoch over a source, collected; ``how`` are further arguments of :func:`reading`."""
    with reading(source, address, recipe, **how) as (_, loader):
        return collect(loader)


def assert_exactly_once(delivered, expected):
    """Every expected image came once, with its label and its exact pixels, and nothing else did."""
    assert Counter(pixels for pixels, _ in delivered) == Counter(dict.fromkeys(expected, 1))
    assert all(expected[pixels] == label for pixels, label in delivered)


def train(stack, images, source="", *, disturb=None, side=SIDE, figures=True, **how):
    """An epoch, at some of whose batches something is done: every sample comes once, with its pixels, in the
    order in which it comes again when nothing is done; and so it does in the next epoch, in another order.

    ``images`` is the directory of what ``source`` has, and the source where none is named. ``figures`` are
    those of the first time; a coordinator that was just restarted may have none. ``how`` goes to
    :func:`reading`.
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
