"""Policies for bad samples and padding, samples as tensors, and their info."""

import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from accelerate.utils import send_to_device
from lightning_utilities.core.apply_func import apply_to_collection
from torch.utils.data import default_convert

from superdl.super_dataset.reading.delivery import (
    batch_info,
    delivered_order,
    sample_tensors,
)
from superdl.super_dataset.reading.reader import BatchReader, ReadSettings
from tests.super_dataset.stored_batches import id_at, images, received, record, ref_of, stored, tombstone

REF = ref_of(5, "unix:///c")


@pytest.mark.parametrize(
    ("bad", "skip", "replace"),
    [
        ({}, None, None),
        ({0}, [1, 2, 3, 4], [1, 1, 2, 3, 4]),
        ({4}, [0, 1, 2, 3], [0, 1, 2, 3, 0]),
        ({1, 2}, [0, 3, 4], [0, 3, 3, 3, 4]),
        ({0, 3, 4}, [1, 2], [1, 1, 2, 1, 1]),
        ({0, 1, 3, 4}, [2], [2, 2, 2, 2, 2]),
        ({0, 1, 2, 3, 4}, [], []),
    ],
)
def test_policies_determine_the_delivered_order(bad, skip, replace):
    reasons = dict.fromkeys(bad, "undecodable")
    assert delivered_order(REF, reasons, "skip") == skip
    assert delivered_order(REF, reasons, "replace") == replace


@pytest.mark.parametrize(
    ("padding", "bad", "skip", "replace"),
    [
        (b"", {}, None, None),
        (b"\0\0\0\1\1", {}, [0, 1, 2], [0, 1, 2]),
        (b"\0\0\0\1\1", {2, 4}, [0, 1], [0, 1, 0]),
        (b"\1\1\1\1\1", {}, [0], [0]),
    ],
)
def test_padding_can_be_skipped(padding, bad, skip, replace):
    ref, reasons = ref_of(5, "unix:///c", padding=padding), dict.fromkeys(bad, "undecodable")
    assert delivered_order(ref, reasons, "skip", "skip") == skip
    assert delivered_order(ref, reasons, "replace", "skip") == replace


@pytest.fixture
def ref_and_read(valkey):
    arrays = images(4)
    values = [record(array, fetch_us=1000, decode_us=2_000_000) for array in arrays]
    values[2] = tombstone("train/7-2.jpg")
    times = np.array([0, 1, 0, 2], dtype="<u4").tobytes()
    ref = stored(valkey, values, position=7, epoch=3, padding=b"\0\0\0\1")
    ref = replace(ref, repetitions=times)
    return ref, BatchReader(ReadSettings(stop_at_bad=False)).read(ref)


def test_info_matches_the_delivered_samples(ref_and_read):
    ref, read = ref_and_read
    info = batch_info(read, [0, 1, 3, 3])
    assert (info.job, info.batch_id, info.epoch, info.position, info.rank) == (ref.job, ref.batch_id, 3, 7, 0)
    assert info.sample_ids == b"".join(id_at(ref, offset) for offset in (0, 1, 3, 3))
    assert info.keys == tuple(ref.keys[offset] for offset in (0, 1, 3, 3))
    assert info.padding.tolist() == [False, False, True, True]
    assert info.repetitions.tolist() == [0, 1, 2, 2]
    chances = [info.draw_ids[at : at + 16] for at in range(0, 64, 16)]
    assert chances[0] == id_at(ref, 0)
    assert len({*chances, id_at(ref, 1), id_at(ref, 3)}) == 5, "the last two are one repetition of one sample"
    assert info.bad == (("train/7-2.jpg", "undecodable: cannot identify image file"),)
    assert info.decode_s == pytest.approx(8.0)
    assert info.fetch_s == pytest.approx(0.004)
    assert (info.hits, info.misses) == (4, 0)
    assert info.size_bytes == 3 * (64 + 192) + len(tombstone("train/7-2.jpg"))


def test_moving_a_batch_does_not_change_its_info(ref_and_read):
    info = batch_info(ref_and_read[1], None)
    assert info.to("meta", non_blocking=True) is info
    assert send_to_device([info], "meta") == [info]
    (converted,) = apply_to_collection([info], dtype=torch.Tensor, function=torch.Tensor.half)
    assert all(getattr(converted, item.name) is not None for item in fields(info))
    assert default_convert(info) is info
    assert len(pickle.dumps(info)) < 2000


@pytest.mark.parametrize("shared", [False, True])
def test_images_are_a_channels_last_view_of_the_block(shared):
    arrays = images(4, 6)
    buffer = received([*map(record, arrays)], shared=shared)
    batch = sample_tensors(buffer, None)
    assert batch.shape == (4, 3, 6, 6)
    assert batch.dtype == torch.uint8
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert batch.data_ptr() == buffer.block.data_ptr()
    assert batch.is_shared() is shared
    assert np.array_equal(batch.permute(0, 2, 3, 1).numpy(), np.stack(arrays))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("uniform", [False, True])
def test_samples_of_different_shapes_form_a_list(shared, uniform):
    arrays = [
        *images(1, 6),
        *images(1, 8),
        np.arange(5, dtype=np.int64),
        np.zeros((0,), np.uint8),
        *images(1, 6),
    ]
    batch = sample_tensors(received([*map(record, arrays)], shared=shared, uniform=uniform), None)
    assert isinstance(batch, list)
    assert [tuple(item.shape) for item in batch] == [(3, 6, 6), (3, 8, 8), (5,), (0,), (3, 6, 6)]
    assert np.array_equal(batch[1].permute(1, 2, 0).numpy(), arrays[1])
    assert batch[2].tolist() == [0, 1, 2, 3, 4]
    assert all(item.is_shared() for item in batch) is shared
    if shared:
        assert len({item.untyped_storage().data_ptr() for item in batch}) == 1


@pytest.mark.parametrize("shared", [False, True])
def test_an_order_selects_and_repeats_samples(shared):
    arrays = images(4, 6)
    batch = sample_tensors(received([*map(record, arrays)], shared=shared), [3, 1, 1])
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert batch.is_shared() is shared
    assert np.array_equal(batch.permute(0, 2, 3, 1).numpy(), np.stack([arrays[3], arrays[1], arrays[1]]))
