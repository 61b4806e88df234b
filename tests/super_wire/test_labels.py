"""Labels whose lists vary by sample: packed, taken, joined and sent, they are what each sample was given."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.labels import (
    MAX_LABEL_BYTES,
    RaggedLabels,
    joined,
    label_dtype_of,
    label_sizes,
    labels_text,
    pack_labels,
    unpack_labels,
)
from tests.hostile.fuzz_wire import mutate


@st.composite
def ragged(draw, bare=None):
    """Labels, and what each sample was given: an array, or a dict of such and of one number."""
    counts = draw(st.lists(st.integers(0, 4), max_size=6))
    inner = draw(st.lists(st.integers(1, 3), max_size=2))
    lists = [np.arange(count * np.prod(inner)).reshape(count, *inner) / 2 + count for count in counts]
    items = np.concatenate([np.empty((0, *inner)), *lists])
    if draw(st.booleans()) if bare is None else bare:
        return RaggedLabels(np.array(counts, dtype=np.uint32), {"": items}), lists
    rows = np.zeros(len(counts), dtype=[("boxes", "u4"), ("age", "i8"), ("classes", "u4")])
    rows["boxes"], rows["age"], rows["classes"] = counts, -np.arange(len(counts)), counts[::-1]
    classes = [np.arange(count) for count in counts[::-1]]
    labels = RaggedLabels(rows, {"boxes": items, "classes": np.concatenate([np.empty(0, int), *classes])})
    return labels, [
        {"boxes": boxes, "age": -place, "classes": numbers}
        for place, (boxes, numbers) in enumerate(zip(lists, classes, strict=True))
    ]


def plain(label):
    """A label by Python's own values, so that it can be compared."""
    return (
        {name: value.tolist() for name, value in label.items()} if isinstance(label, dict) else label.tolist()
    )


def given_of(given):
    return [
        plain({name: np.asarray(one) for name, one in label.items()} if isinstance(label, dict) else label)
        for label in given
    ]


@given(ragged(), st.data())
def test_any_are_what_each_sample_was_given_also_over_the_wire(made, data):
    labels, whole = made
    text, size = labels_text(labels), len(labels)
    packed = b"".join(pack_labels(labels, text))
    travelled = unpack_labels(packed, text, size)
    for found in (labels, travelled):
        assert [plain(label) for label in found] == given_of(whole)
        assert len(found) == size
    assert labels_text(travelled) == text
    assert label_sizes(labels, text).sum() + 4 == len(packed)
    if not size:
        return
    places = data.draw(st.lists(st.integers(0, size - 1), max_size=9))
    some = labels[np.array(places, dtype=np.int64)]
    assert [plain(label) for label in some] == [given_of(whole)[place] for place in places]
    cut = data.draw(st.integers(0, size))
    again = joined([labels[:cut], labels[cut:], labels[:0]])
    assert b"".join(pack_labels(again, text)) == packed
    assert plain(labels[-1]) == given_of(whole)[-1]
    with pytest.raises(IndexError):
        labels[size]


def test_a_field_is_an_array_or_a_sequence_of_arrays():
    rows = np.array([(2, 7), (0, 8), (1, 9)], dtype=[("boxes", "u4"), ("age", "i8")])
    labels = RaggedLabels(rows, {"boxes": np.arange(12.0).reshape(3, 4)})
    assert labels["age"].tolist() == [7, 8, 9]
    assert [one.shape for one in labels["boxes"]] == [(2, 4), (0, 4), (1, 4)]
    assert repr(labels) == '<RaggedLabels of 3 samples: {"boxes":"float64[*,4]","age":"int64"}>'
    whole = joined([labels])
    with pytest.raises(ValueError, match="read-only"):
        whole[0]["boxes"][0] = 1
    with pytest.raises(ValueError, match="read-only"):
        whole["age"][0] = 1


@given(ragged(), st.integers(0, 2**32))
def test_spoilt_bytes_are_refused_or_labels_within_bounds(made, seed):
    labels, _ = made
    text = labels_text(labels)
    data = mutate(random.Random(seed), b"".join(pack_labels(labels, text)))
    try:
        found = unpack_labels(data, text)
    except ConfigError:
        return
    assert len(found) == len(list(found))
    assert sum(label_sizes(found, text)) + 4 == len(data)


@pytest.mark.parametrize(
    ("data", "text", "size", "message"),
    [
        (b"", "int64[*]", None, "0 bytes are no labels"),
        (b"\1\0\0\0", "int64[*]", None, "buffer is smaller than requested"),
        (b"\1\0\0\0" + b"\xff" * 4, "int64[*,2]", None, "buffer is smaller than requested"),
        (b"\1\0\0\0" + bytes(5), "int64[*]", None, "1 bytes are left over"),
        (bytes(4), "int64[*]", 1, "no labels of 1 samples"),
        (bytes(7), "int64", None, "no labels of samples, of dtype 'int64'"),
        (
            (1).to_bytes(4, "little") + (MAX_LABEL_BYTES).to_bytes(4, "little") + bytes(MAX_LABEL_BYTES),
            "uint8[*]",
            1,
            "one has more than 65536 bytes",
        ),
    ],
)
def test_bytes_of_no_such_labels(data, text, size, message):
    with pytest.raises(ConfigError, match=message):
        unpack_labels(data, text, size)


def test_labels_of_one_form_travel_as_arrays():
    labels = np.array(
        [(1, [0.5, 1]), (2, [2, 3])], dtype=label_dtype_of('{"age":"int64","box":"float64[2]"}')
    )
    text = labels_text(labels)
    assert b"".join(pack_labels(labels, text)) == labels.tobytes()
    assert unpack_labels(labels.tobytes(), text, 2).tobytes() == labels.tobytes()
    assert label_sizes(labels, text).tolist() == [24, 24]
    narrow = np.array([1, 2], dtype=np.uint8)
    assert b"".join(pack_labels(narrow, "int64")) == np.array([1, 2]).tobytes()
