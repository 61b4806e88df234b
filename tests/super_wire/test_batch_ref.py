"""A BatchRef is small, picklable and says all that a reader needs."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.batch_ref import BatchRef
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.ids import digest128
from tests.fixtures.ids import batch_id


def ref_of(count, *, labels=None, padding=b"", keys=()):
    ids = b"".join(digest128(b"%d" % number) for number in range(count))
    column = np.arange(count, dtype=np.int64) if labels is None else labels
    return BatchRef(
        dataset_id=bytes(16),
        job="9f" * 16,
        rank=3,
        epoch=7,
        position=12_345,
        batch_id=batch_id(ids),
        sample_ids=ids,
        labels=column.tobytes(),
        label_dtype=column.dtype.name,
        padding=padding,
        keys=keys,
        cache="unix:///run/user/1000/super/redis.sock",
    )


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(protocol):
    ref = ref_of(5, padding=b"\0\0\0\0\1", keys=("a", "b", "ä", "d", "e"))
    back = pickle.loads(pickle.dumps(ref, protocol))
    assert back == ref
    assert hash(back) == hash(ref)


@given(st.integers(0, 20), st.sampled_from(["int64", "float64", "uint8", "float32"]))
def test_labels_and_length(count, dtype):
    labels = np.arange(count).astype(dtype)
    ref = ref_of(count, labels=labels)
    assert len(ref) == count
    assert ref.label_array().dtype == dtype
    assert ref.label_array().tolist() == labels.tolist()
    assert not ref.label_array().flags.writeable


def test_labels_that_are_arrays_or_have_fields():
    arrays = replace(ref_of(2), labels=np.arange(8.0).tobytes(), label_dtype="float64[2,2]")
    assert arrays.label_array().tolist() == np.arange(8.0).reshape(2, 2, 2).tolist()
    rows = np.array([(1, (0.5, 2)), (3, (4, 5))], dtype=[("age", "i8"), ("box", "f8", (2,))])
    fields = replace(ref_of(2), labels=rows.tobytes(), label_dtype='{"age":"int64","box":"float64[2]"}')
    assert pickle.loads(pickle.dumps(fields)).label_array().tobytes() == rows.tobytes()
    assert fields.label_array()["box"].tolist() == [[0.5, 2], [4, 5]]
    with pytest.raises(ConfigError, match="labels of dtype 'object'"):
        replace(ref_of(2), label_dtype="object").label_array()


def test_names_a_sample_by_its_key_or_by_id_and_how_to_resolve_it():
    named = ref_of(2, keys=("cat/1.jpg", "cat/2.jpg"))
    assert named.name_of(1) == "cat/2.jpg"
    ref = replace(named, keys=())
    hex_id = ref.sample_ids[16:32].hex()
    assert ref.name_of(1) == f"sample {hex_id} (its key: superdl stats --batch {ref.batch_id.hex()})"
