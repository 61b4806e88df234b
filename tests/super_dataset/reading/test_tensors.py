"""Shapes, strides, dtypes and sharing of what the trainer gets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from superdl.super_dataset.memory.batch_memory import FreshMemory
from superdl.super_dataset.memory.handover import shared_bytes
from superdl.super_dataset.reading.buffer import BatchBuffer
from superdl.super_dataset.reading.delivery import check_label_dtype, label_tensor, sample_tensors
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.label_dtype import label_dtype_of
from superdl.super_wire.record import DTYPE_CODES, HEADER_BYTES
from tests.super_dataset.stored_batches import images, record


class SharedMemory:
    shared = True

    def take(self, size):
        return shared_bytes(size)


def received(arrays, *, shared=False, uniform=True) -> BatchBuffer:
    memory = SharedMemory() if shared else FreshMemory()
    buffer = BatchBuffer(len(arrays), memory=memory, uniform=uniform)
    for offset, array in enumerate(arrays):
        whole = record(array)
        incoming = buffer.place(offset, whole[:HEADER_BYTES], len(whole) - HEADER_BYTES)
        incoming.payload[:] = whole[HEADER_BYTES:]
        buffer.note_record(incoming)
    return buffer


@pytest.mark.parametrize("shared", [False, True])
def test_images_are_the_block_itself_seen_as_channels_last(shared):
    arrays = images(4, 6)
    buffer = received(arrays, shared=shared)
    batch = sample_tensors(buffer, None)
    assert batch.shape == (4, 3, 6, 6)
    assert batch.dtype == torch.uint8
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert batch.data_ptr() == buffer.block.data_ptr()
    assert batch.is_shared() is shared
    assert np.array_equal(batch.permute(0, 2, 3, 1).numpy(), np.stack(arrays))


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_what_is_an_image(channels):
    arrays = [np.full((5, 7, channels), n, dtype=np.uint8) for n in range(2)]
    assert sample_tensors(received(arrays), None).shape == (2, channels, 5, 7)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((5, 7, 2), np.uint8),
        np.zeros((5, 7, 3), np.float32),
        np.zeros((5, 3), np.uint8),
        np.zeros((2, 2, 2, 3), np.uint8),
        np.float64(3.5),
        np.zeros((0, 3), np.int16),
    ],
)
def test_what_is_no_image_is_stacked_as_it_is(array):
    array = np.asarray(array)
    for order in (None, [1, 0]):
        batch = sample_tensors(received([array, array]), order)
        assert batch.shape == (2, *array.shape)
        assert batch.numpy().dtype == array.dtype


@pytest.mark.parametrize("dtype", DTYPE_CODES)
def test_every_dtype_of_records_becomes_a_tensor(dtype):
    array = (np.arange(6).reshape(2, 3) % 2).astype(dtype)
    batch = sample_tensors(received([array, 1 - array if dtype != "bool" else ~array]), None)
    assert batch[0].numpy().dtype == np.dtype(dtype)
    assert np.array_equal(batch[0].numpy(), array)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("uniform", [False, True])
def test_samples_that_differ_come_as_a_list(shared, uniform):
    arrays = [
        *images(1, 6),
        *images(1, 8),
        np.arange(5, dtype=np.int64),
        np.zeros((0,), np.uint8),
        *images(1, 6),
    ]
    batch = sample_tensors(received(arrays, shared=shared, uniform=uniform), None)
    assert isinstance(batch, list)
    assert [tuple(item.shape) for item in batch] == [(3, 6, 6), (3, 8, 8), (5,), (0,), (3, 6, 6)]
    assert np.array_equal(batch[1].permute(1, 2, 0).numpy(), arrays[1])
    assert batch[2].tolist() == [0, 1, 2, 3, 4]
    assert all(item.is_shared() for item in batch) is shared
    if shared:
        assert len({item.untyped_storage().data_ptr() for item in batch}) == 1


def test_one_size_and_two_layouts_come_as_a_list():
    batch = sample_tensors(received([np.zeros((2, 6), np.uint8), np.zeros((3, 4), np.uint8)]), None)
    assert [tuple(item.shape) for item in batch] == [(2, 6), (3, 4)]


@pytest.mark.parametrize("shared", [False, True])
def test_an_order_picks_and_repeats(shared):
    arrays = images(4, 6)
    batch = sample_tensors(received(arrays, shared=shared), [3, 1, 1])
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert batch.is_shared() is shared
    assert np.array_equal(batch.permute(0, 2, 3, 1).numpy(), np.stack([arrays[3], arrays[1], arrays[1]]))


def test_alike_after_all_is_stacked():
    arrays = images(3, 6)
    batch = sample_tensors(received(arrays, uniform=False), None)
    assert batch.shape == (3, 3, 6, 6)
    assert np.array_equal(batch[2].permute(1, 2, 0).numpy(), arrays[2])


def test_labels_are_a_writable_copy():
    labels = np.frombuffer(np.arange(3, dtype="<i8").tobytes(), dtype="<i8")
    tensor = label_tensor(labels, None)
    assert tensor.dtype == torch.int64
    tensor += 1
    assert labels.tolist() == [0, 1, 2]
    assert label_tensor(labels, [2, 0]).tolist() == [2, 0]


def test_labels_that_are_arrays_or_have_fields():
    arrays = label_tensor(np.arange(12.0).reshape(3, 2, 2), [2, 0])
    assert arrays.tolist() == [[[8, 9], [10, 11]], [[0, 1], [2, 3]]]
    dtype = label_dtype_of('{"flag":"bool","age":"int64","box":"float32[2]"}')
    labels = np.frombuffer(
        np.array([(True, 1, (2, 3)), (False, 4, (5, 6))], dtype=dtype).tobytes(), dtype=dtype
    )
    for order, places in ((None, [0, 1]), ([1], [1])):
        tensors = label_tensor(labels, order)
        assert list(tensors) == ["flag", "age", "box"]
        assert [one.dtype for one in tensors.values()] == [torch.bool, torch.int64, torch.float32]
        assert tensors["age"].tolist() == [[1, 4][place] for place in places]
        assert tensors["box"].tolist() == [[[2, 3], [5, 6]][place] for place in places]
        tensors["box"][:] = 0
        assert labels["box"].max() == 6


def test_label_dtypes():
    check_label_dtype("float32")
    check_label_dtype("float32[2]")
    check_label_dtype('{"a":"uint8","b":"float16[2]"}')
    with pytest.raises(ConfigError, match="<U5"):
        check_label_dtype("<U5")
