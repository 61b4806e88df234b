"""``SuperDataset`` in real DataLoader workers, with a list of ``BatchRef`` s in the sampler's place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from superdl.super_wire.errors import BadSampleError, UsageError
from tests.super_dataset.stored_batches import (
    bound_dataset,
    images,
    reports,
    stored,
    tombstone,
)

BATCHES = 6
SIZE = 16


@pytest.fixture
def refs(valkey):
    return [stored(valkey, images(SIZE, seed=n), position=n) for n in range(BATCHES)]


def loader_of(dataset, refs, workers, method=None, **arguments) -> DataLoader:
    return DataLoader(
        dataset,
        sampler=refs,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        timeout=60 if workers else 0,
        **arguments,
    )


def check(batch, labels, n) -> None:
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(batch.permute(0, 2, 3, 1).numpy(), np.stack(images(SIZE, seed=n)))
    assert labels.tolist() == list(range(100, 100 + SIZE))


@pytest.mark.parametrize(
    ("workers", "method"), [(0, None), (1, "fork"), (2, "fork"), (1, "spawn"), (1, "forkserver")]
)
def test_every_batch_arrives_whole_and_in_order(valkey, refs, workers, method):
    dataset = bound_dataset()
    dataset[refs[0]]  # the parent has a connection of its own before any fork
    for n, (batch, labels) in enumerate(loader_of(dataset, refs, workers, method)):
        check(batch, labels, n)
        last = n
    assert last == BATCHES - 1
    dataset[refs[0]]
    assert [r.position for r in reports(valkey) if r.done].count(0) == 3


def test_a_worker_s_errors_reach_the_trainer_with_their_types_and_the_worker_goes_on(valkey, refs):
    bad = stored(valkey, [*images(1), tombstone("train/50-1.jpg")], position=50)
    foreign = replace(refs[1], dataset_id=b"x" * 16)
    batches = iter(loader_of(bound_dataset(), [bad, foreign, refs[0]], 1, "fork"))
    with pytest.raises(BadSampleError, match=r"train/50-1\.jpg"):
        next(batches)
    with pytest.raises(UsageError, match=foreign.dataset_id.hex()):
        next(batches)
    check(*next(batches), 0)
    assert list(batches) == []  # read to its end, so that the worker is let go at once
