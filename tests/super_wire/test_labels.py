"""Labels of all supported dtypes survive packing. Invalid texts and bytes are refused."""

import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.labels import (
    LABEL_KINDS,
    MAX_LABEL_BYTES,
    LabelField,
    RaggedLabels,
    SampleList,
    joined,
    label_dtype_of,
    label_dtype_text,
    label_sizes,
    labels_text,
    pack_labels,
    unpack_labels,
)
from tests.hostile.fuzz_wire import mutate


@st.composite
def ragged(draw, bare=None):
    """Labels, and each sample's own: an array, or a dict of arrays and a number."""
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
    """Convert a label to Python values for comparison."""
    return (
        {name: value.tolist() for name, value in label.items()} if isinstance(label, dict) else label.tolist()
    )


def given_of(given):
    return [
        plain({name: np.asarray(one) for name, one in label.items()} if isinstance(label, dict) else label)
        for label in given
    ]


@given(ragged(), st.data())
def test_ragged_labels_survive_packing_indexing_and_joining(made, data):
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


def test_a_field_of_ragged_labels_is_an_array_or_a_sequence():
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
def test_corrupted_labels_are_refused_or_within_bounds(made, seed):
    labels, _ = made
    text = labels_text(labels)
    data = mutate(random.Random(seed), b"".join(pack_labels(labels, text)))
    try:
        found = unpack_labels(data, text)
    except ConfigError:
        return
    assert len(found) == len(list(found))
    assert sum(label_sizes(found, text)) + 4 == len(data)


HUGE = (1).to_bytes(4, "little") + MAX_LABEL_BYTES.to_bytes(4, "little") + bytes(MAX_LABEL_BYTES)


@pytest.mark.parametrize(
    ("data", "text", "size"),
    [
        (b"", "int64[*]", None),
        (b"\1\0\0\0", "int64[*]", None),
        (bytes(4), "int64[*]", 1),
        (b"\1\0\0\0" + b"\xff" * 4, "int64[*,2]", None),
        (b"\1\0\0\0" + bytes(5), "int64[*]", None),
        (bytes(7), "int64", None),
        (HUGE, "uint8[*]", 1),
    ],
)
def test_bytes_that_do_not_match_the_dtype_are_refused(data, text, size):
    with pytest.raises(ConfigError):
        unpack_labels(data, text, size)


def test_labels_of_fixed_size_are_packed_as_arrays():
    labels = np.array(
        [(1, [0.5, 1]), (2, [2, 3])], dtype=label_dtype_of('{"age":"int64","box":"float64[2]"}')
    )
    text = labels_text(labels)
    assert b"".join(pack_labels(labels, text)) == labels.tobytes()
    assert unpack_labels(labels.tobytes(), text, 2).tobytes() == labels.tobytes()
    assert label_sizes(labels, text).tolist() == [24, 24]
    narrow = np.array([1, 2], dtype=np.uint8)
    assert b"".join(pack_labels(narrow, "int64")) == np.array([1, 2]).tobytes()


KINDS = st.sampled_from(sorted(LABEL_KINDS))
SHAPES = st.lists(st.integers(1, 4), max_size=4).map(tuple)
FIELDS = st.builds(
    lambda kind, shape, varies: LabelField(np.dtype((kind, shape)), varies), KINDS, SHAPES, st.booleans()
)


def test_dtype_texts_are_as_documented():
    field = LabelField(np.dtype(("f8", 4)), varies=True)
    assert label_dtype_text({"": field}) == "float64[*,4]"
    fields = {"age": LabelField(np.dtype("i8")), "ids": LabelField(np.dtype("i8"), varies=True)}
    assert label_dtype_text(fields) == '{"age":"int64","ids":"int64[*]"}'


@pytest.mark.parametrize(
    "text",
    [
        "", "object", "O", "|O8", "<U5", "<i8", "i8", "S100", "V8", "M8[ns]", "datetime64", "complex64",
        "int64,float64", "(2,)int64", "int64[]", "int64[0]", "int64[-1]", "int64[1,]", "int64[ 1]", "int64[1",
        "int64[*", "int64[**]", "int64[*1]", "int64[4,*]", "int64[*,*]", "int64[*,0]", "float64[*,10000]",
        "int64[1][1]", "int64[1,1,1,1,1,1,1,1,1]", f"uint8[{MAX_LABEL_BYTES + 1}]", "float64[10000]",
        "float64[999999,999999,999999,999999,999999,999999,999999,999999]", "int64[9999999]",
        "{", "{}", "[]", '{"a":"object"}', '{"a":1}', '{"a":{"b":"int64"}}', '{"a":["int64"]}',
        '{"":"int64"}',
        '{"a":"int64","a":"int64"}', '{"a":"int64"} x', '{"a":"uint8[40000]","b":"uint8[40000]"}',
        "{" + ",".join(f'"{n}":"int8"' for n in range(65)) + "}",
        '{"a":' * 20_000, "[" * 200_000, '{"' + "x" * 20_000 + '":"int8"}',
    ],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_invalid_dtype_texts_are_refused(text):
    with pytest.raises(ConfigError):
        label_dtype_of(text)


@pytest.mark.parametrize(
    "dtype", [np.dtype(object), np.dtype("<U5"), np.dtype([("a", object)]), np.dtype("V8")]
)
def test_unsupported_dtypes_are_refused(dtype):
    with pytest.raises(ConfigError):
        labels_text(np.empty(0, dtype=dtype))


KEYS = [b"cat/a.jpg", b"dog/\xff.jpg", "dog/größe.jpg".encode()]


def listed(bucket="file:///images", labels=(0, 1, 1)):
    lengths = np.array([len(key) for key in KEYS], dtype="<u4").tobytes()
    return SampleList(bucket, b"".join(KEYS), lengths, joined([np.array(labels)]))


def test_a_sample_list_is_a_sequence_of_paths_and_labels():
    samples = listed()
    assert len(samples) == 3
    assert samples[0] == samples[-3] == samples[np.int64(0)] == ("/images/cat/a.jpg", 0)
    assert type(samples[0][1]) is int
    assert samples[-1] == ("/images/dog/größe.jpg", 1)
    assert samples[1:] == list(samples)[1:] == [samples[1], samples[2]]
    assert [label for _, label in samples] == [0, 1, 1]
    assert samples[0] in samples
    assert random.Random(0).sample(samples, 3)
    assert list(pickle.loads(pickle.dumps(samples))) == list(samples)
    assert repr(samples).startswith("<SampleList of 3: ('/images/cat/a.jpg', 0), ")
    for index in (3, -4):
        with pytest.raises(IndexError, match="list of 3 samples"):
            samples[index]
    with pytest.raises(TypeError):
        samples["cat"]


def test_paths_of_a_sample_list_can_be_opened():
    assert listed("s3://bucket")[0][0] == "s3://bucket/cat/a.jpg"
    assert listed("file:///")[0][0] == "/cat/a.jpg"
    assert listed()[1][0].encode(errors="surrogateescape") == b"/images/dog/\xff.jpg"
