"""Memory is reused once a batch is unreferenced, and not earlier."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_dataset.memory.batch_memory import RecycledMemory

SIZE = 4096

# What a training loop may keep instead of the batch.
HOLDERS = {
    "the tensor": lambda tensor: tensor,
    "a slice": lambda tensor: tensor[3:5],
    "a view of another shape": lambda tensor: tensor.view(64, 64).t(),
    "a view of another dtype": lambda tensor: tensor.view(torch.int32),
    "a numpy array": lambda tensor: tensor.numpy(),
    "a slice of a numpy array": lambda tensor: tensor.numpy()[10:20][2:],
    "its storage": lambda tensor: tensor.untyped_storage(),
    "a memoryview": lambda tensor: memoryview(tensor.numpy()),
    "a DLPack copy": torch.from_dlpack,
    "a detached tensor": lambda tensor: tensor.detach(),
    "a parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
}


@pytest.mark.parametrize("keep", HOLDERS.values(), ids=HOLDERS)
def test_memory_is_reused_once_it_is_unreferenced(keep):
    memory = RecycledMemory()
    tensor = memory.take(SIZE)
    address = tensor.data_ptr()
    kept = keep(tensor)
    del tensor
    gc.collect()
    other = memory.take(SIZE)
    assert other.data_ptr() != address
    del kept
    gc.collect()
    assert memory.take(SIZE).data_ptr() == address


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5000)), max_size=60))
def test_referenced_memory_is_never_overwritten(steps):
    memory = RecycledMemory()
    kept = {}
    for number, (place, size) in enumerate(steps):
        tensor = memory.take(size)
        tensor.fill_(number % 256)
        kept[place] = (tensor[size // 2 :], number % 256)
        del tensor
        assert all(bool((view == value).all()) for view, value in kept.values())
