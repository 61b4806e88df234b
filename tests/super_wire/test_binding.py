"""A binding passes between sampler and dataset, and with the dataset to worker processes."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest

from superdl.super_wire.batch_ref import DatasetBinding

BINDING = DatasetBinding(bytes(16), b"\1" * 16, 3, ("cat", "dog"), "int64", "redis://127.0.0.1:1")


def test_pickles():
    assert pickle.loads(pickle.dumps(BINDING)) == BINDING


def test_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        BINDING.size = 4
