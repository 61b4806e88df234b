"""Dtypes of labels survive as text, and no text makes a dtype that labels cannot have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.label_dtype import LABEL_KINDS, MAX_LABEL_BYTES, label_dtype_of, label_dtype_text

KINDS = st.sampled_from(sorted(LABEL_KINDS))
SHAPES = st.lists(st.integers(1, 4), max_size=4).map(tuple)
PLAIN = st.tuples(KINDS, SHAPES)


@given(PLAIN)
def test_numbers_and_arrays_travel(plain):
    kind, shape = plain
    text = label_dtype_text(np.dtype(kind), shape)
    dtype = label_dtype_of(text)
    assert (dtype.base, dtype.shape) == (np.dtype(kind), shape)
    labels = np.zeros((3, *shape), dtype=kind)
    assert np.frombuffer(labels.tobytes(), dtype=dtype).shape == labels.shape


@given(st.dictionaries(st.text(min_size=1, max_size=8), PLAIN, min_size=1, max_size=6))
def test_named_fields_travel_in_their_order(fields):
    dtype = np.dtype([(name, kind, shape) for name, (kind, shape) in fields.items()])
    again = label_dtype_of(label_dtype_text(dtype))
    assert again == dtype
    assert again.names == tuple(fields)


@pytest.mark.parametrize(
    "text",
    [
        "", "object", "O", "|O8", "<U5", "<i8", "i8", "S100", "V8", "M8[ns]", "datetime64", "complex64",
        "int64,float64", "(2,)int64", "int64[]", "int64[0]", "int64[-1]", "int64[1,]", "int64[ 1]", "int64[1",
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
def test_other_texts_are_refused(text):
    with pytest.raises(ConfigError, match="labels of dtype .* cannot be read"):
        label_dtype_of(text)


@pytest.mark.parametrize(
    "dtype", [np.dtype(object), np.dtype("<U5"), np.dtype([("a", object)]), np.dtype("V8")]
)
def test_labels_of_other_dtypes_have_no_text(dtype):
    with pytest.raises(ConfigError):
        label_dtype_text(dtype)
