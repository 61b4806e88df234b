"""Dtypes of labels survive as text, and no text makes a dtype that labels cannot have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.labels import (
    LABEL_KINDS,
    MAX_LABEL_BYTES,
    LabelField,
    label_dtype_of,
    label_dtype_text,
    label_fields_of,
    labels_text,
)

KINDS = st.sampled_from(sorted(LABEL_KINDS))
SHAPES = st.lists(st.integers(1, 4), max_size=4).map(tuple)
FIELDS = st.builds(
    lambda kind, shape, varies: LabelField(np.dtype((kind, shape)), varies), KINDS, SHAPES, st.booleans()
)


@given(FIELDS)
def test_numbers_arrays_and_lists_travel(field):
    text = label_dtype_text({"": field})
    assert label_fields_of(text) == {"": field}
    row = label_dtype_of(text)
    assert row == (np.uint32 if field.varies else field.dtype)
    assert np.frombuffer(bytes(3 * row.itemsize), dtype=row).shape == (3, *row.shape)


@given(st.dictionaries(st.text(min_size=1, max_size=8), FIELDS, min_size=1, max_size=6))
def test_named_fields_travel_in_their_order(fields):
    text = label_dtype_text(fields)
    assert list(label_fields_of(text).items()) == list(fields.items())
    assert label_dtype_of(text).names == tuple(fields)


def test_texts_are_those_that_stand_in_the_module():
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
def test_other_texts_are_refused(text):
    with pytest.raises(ConfigError, match="labels of dtype .* cannot be read"):
        label_dtype_of(text)


@pytest.mark.parametrize(
    "dtype", [np.dtype(object), np.dtype("<U5"), np.dtype([("a", object)]), np.dtype("V8")]
)
def test_labels_of_other_dtypes_have_no_text(dtype):
    with pytest.raises(ConfigError):
        labels_text(np.empty(0, dtype=dtype))
