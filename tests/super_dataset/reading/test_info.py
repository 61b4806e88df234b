"""What a batch's info tells, and that it travels well."""

from __future__ import annotations

import pickle
from dataclasses import fields

import numpy as np
import pytest
import torch
from accelerate.utils import send_to_device
from lightning_utilities.core.apply_func import apply_to_collection
from torch.utils.data import default_convert

from superdl.super_dataset.reading.delivery import batch_info
from superdl.super_dataset.reading.reader import BatchReader, ReadSettings
from tests.super_dataset.stored_batches import id_at, images, record, stored, tombstone


@pytest.fixture
def ref_and_read(valkey):
    arrays = images(4)
    values = [record(array, fetch_us=1000, decode_us=2_000_000) for array in arrays]
    values[2] = tombstone("train/7-2.jpg")
    ref = stored(valkey, values, position=7, epoch=3, padding=b"\0\0\0\1")
    return ref, BatchReader(ReadSettings(stop_at_bad=False)).read(ref)


def test_it_follows_the_delivered_samples(ref_and_read):
    ref, read = ref_and_read
    info = batch_info(read, [0, 1, 3, 3])
    assert (info.job, info.batch_id, info.epoch, info.position, info.rank) == (ref.job, ref.batch_id, 3, 7, 0)
    assert info.sample_ids == b"".join(id_at(ref, offset) for offset in (0, 1, 3, 3))
    assert info.keys == tuple(ref.keys[offset] for offset in (0, 1, 3, 3))
    assert info.padding.tolist() == [False, False, True, True]
    assert info.bad == (("train/7-2.jpg", "undecodable: cannot identify image file"),)
    assert info.decode_s == pytest.approx(8.0)
    assert info.fetch_s == pytest.approx(0.004)
    assert (info.hits, info.misses) == (4, 0)
    assert info.size_bytes == 3 * (64 + 192) + len(tombstone("train/7-2.jpg"))


def test_as_planned_it_is_the_plan_s(ref_and_read):
    ref, read = ref_and_read
    info = batch_info(read, None)
    assert info.sample_ids == ref.sample_ids
    assert info.keys == ref.keys
    assert info.padding.dtype == np.bool_


def test_moving_a_batch_to_a_device_leaves_it_alone(ref_and_read):
    info = batch_info(ref_and_read[1], None)
    assert info.to("meta", non_blocking=True) is info
    assert send_to_device([info], "meta") == [info]
    (converted,) = apply_to_collection([info], dtype=torch.Tensor, function=torch.Tensor.half)
    assert all(getattr(converted, item.name) is not None for item in fields(info))


def test_it_pickles_small_and_collating_leaves_it_alone(ref_and_read):
    info = batch_info(ref_and_read[1], None)
    assert default_convert(info) is info
    copy = pickle.loads(pickle.dumps(info))
    assert copy.batch_id == info.batch_id
    assert len(pickle.dumps(info)) < 2000
