"""Labels that are arrays or objects: all rows have one form, and labels travel unchanged."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.catalog.catalog import Catalog
from superdl.super_wire.errors import SourceError
from superdl.super_wire.labels import RaggedLabels, unpack_labels
from tests.coordinator.catalog.key_lists import read, write_jsonl, written


def test_fields_of_a_label_are_columns_in_csv(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("label.age,key,label.kind,other\n3,a,dog,x\n4.5,b,cat,y\n")
    key_list = read(path)
    assert key_list.labels["age"].tolist() == [3.0, 4.5]
    assert key_list.labels["kind"].tolist() == [1, 0]
    assert key_list.classes == ("cat", "dog")
    path.write_text("label.age,key,label\n3,a,7\n")  # a column called label takes precedence
    assert read(path).labels.tolist() == [7]


NUMBER = st.integers(-(2**40), 2**40) | st.floats(-1e9, 1e9)


@st.composite
def label_columns(draw):
    """Draw labels of one form, and the numpy column expected for each field."""
    shapes = draw(
        st.dictionaries(
            st.text("abcäß猫 .", min_size=1, max_size=5),
            st.lists(st.integers(1, 3), max_size=3),
            min_size=1,
            max_size=4,
        )
    )
    rows = draw(st.integers(1, 4))
    columns = {}
    for name, shape in shapes.items():
        size = int(np.prod(shape)) * rows
        columns[name] = np.array(draw(st.lists(NUMBER, min_size=size, max_size=size))).reshape(rows, *shape)
    return [{name: column[row].tolist() for name, column in columns.items()} for row in range(rows)], columns


@given(label_columns())
def test_labels_travel_unchanged(tmp_path_factory, drawn):
    labels, columns = drawn
    rows = [{"key": f"{n}", "label": label} for n, label in enumerate(labels)]
    # A label that is not an object is a field without a name.
    name, column = next(iter(columns.items()))
    unnamed = [{"key": f"{n}", "label": label[name]} for n, label in enumerate(labels)]
    for extension in ("jsonl", "parquet"):
        for some, expected in ((rows, columns), (unnamed, {"": column})):
            key_list = read(written(tmp_path_factory.getbasetemp(), extension, some))
            keys = key_list.own.keys
            catalog = Catalog("file:///x", keys, keys, key_list.labels, key_list.classes)
            travelled = unpack_labels(catalog.labels_at(np.arange(len(catalog))), catalog.label_dtype)
            for name, column in expected.items():
                returned = travelled[name] if name else travelled
                assert np.array_equal(returned, column)
                assert returned.dtype == column.dtype


# ------------------------------------------------------------------------ lists that vary in length by row

DETECTED = [
    {"boxes[]": [], "classes[]": [], "size": [48, 64]},
    {
        "classes[]": ["dog", "cat", "dog"],
        "boxes[]": [[0, 1, 2, 3.5], [4, 5, 6, 7], [0, 0, 1, 1]],
        "size": [5, 6],
    },
    {"boxes[]": [[1, 1, 2, 2]], "classes[]": ["emu"], "size": [7, 8]},
]


@pytest.mark.parametrize("extension", ["jsonl", "parquet"])
def test_lists_in_varying_fields_may_have_any_length_and_contain_class_names(tmp_path, extension):
    key_list = read(
        written(tmp_path, extension, [{"key": f"{n}", "label": label} for n, label in enumerate(DETECTED)])
    )
    assert key_list.classes == ("cat", "dog", "emu")
    assert key_list.labels.names == ("boxes", "classes", "size")
    assert key_list.labels["size"].tolist() == [[48, 64], [5, 6], [7, 8]]
    for label, given_label in zip(key_list.labels, DETECTED, strict=True):
        assert label["boxes"].shape == (len(given_label["boxes[]"]), 4)
        assert label["boxes"].tolist() == given_label["boxes[]"]
        assert [key_list.classes[place] for place in label["classes"]] == given_label["classes[]"]


@pytest.mark.parametrize("extension", ["jsonl", "parquet"])
def test_a_label_may_be_a_list_of_any_length(tmp_path, extension):
    tokens = [[5, 6, 7], [], [8]]
    rows = [{"key": f"{n}", "label[]": label} for n, label in enumerate(tokens)]
    key_list = read(written(tmp_path, extension, rows))
    assert isinstance(key_list.labels, RaggedLabels)
    assert [label.tolist() for label in key_list.labels] == tokens
    rows = [{"key": f"{n}", "label[]": []} for n in range(3)]  # the element type is unknown
    assert [label.shape for label in read(written(tmp_path, "jsonl", rows)).labels] == [(0,)] * 3


@given(
    st.lists(st.lists(st.lists(NUMBER, min_size=2, max_size=2), max_size=4), min_size=1, max_size=6),
    st.randoms(),
)
def test_lists_travel_unchanged_whatever_the_order_of_rows(tmp_path_factory, lists, chance):
    rows = [{"key": f"{n:03}", "label": {"n": n, "pairs[]": pairs}} for n, pairs in enumerate(lists)]
    path = tmp_path_factory.getbasetemp() / "any-lists.jsonl"
    write_jsonl(path, rows)
    fingerprints = set()
    for _ in range(2):
        key_list = read(path)
        columns = key_list.own.keys, key_list.own.keys, key_list.labels, key_list.classes
        catalog = Catalog.build("file:///x", *columns)
        fingerprints.add(catalog.fingerprint)
        places = chance.choices(range(len(lists)), k=5)
        travelled = unpack_labels(catalog.labels_at(np.array(places)), catalog.label_dtype, 5)
        assert [label["pairs"].tolist() for label in travelled] == [lists[place] for place in places]
        assert [label["n"] for label in travelled] == places
        sizes = catalog.label_sizes(np.array(places))
        assert len(catalog.labels_at(np.array(places))) == sizes.sum() + 4
        assert catalog.max_label_bytes(5, may_repeat=True) >= sizes.sum()
        chance.shuffle(rows)  # the order of rows must not affect the catalog
        write_jsonl(path, rows)
    assert len(fingerprints) == 1
    rows[0]["label"]["pairs[]"] = [*rows[0]["label"]["pairs[]"], [1, 2]]
    write_jsonl(path, rows)
    key_list = read(path)
    columns = key_list.own.keys, key_list.own.keys, key_list.labels, key_list.classes
    assert Catalog.build("file:///x", *columns).fingerprint not in fingerprints


def row(label, name="label", key="a"):
    return json.dumps({"key": key, name: label})


BAD = {  # labels of a list, the last of which is bad
    "an empty list": [[]],
    "a list with an empty list": [[[1], []]],
    "texts": [["x"]],
    "null in a list": [[1, None]],
    "true in a list of floats": [[1.5, True]],
    "too deep": [[[[[[[[[[1]]]]]]]]]],
    "too long": [[0] * 8193],
    "a longer list": [[1, 2], [1, 2, 3]],
    "a number among lists": [[1, 2], 1],
    "a list among numbers": [1, [1]],
    "a list among texts": ["x", [1]],
    "no fields": [{}],
    "a field without a name": [{"": 1}],
    "a field with a long name": [{"x" * 201: 1}],
    "65 fields": [{f"{n}": n for n in range(65)}],
    "two classes": [{"x": "u", "y": "v"}],
    "an object in an object": [{"x": {"y": 1}}],
    "other fields": [{"x": 1, "y": 2}, {"x": 1, "z": 2}],
    "a field more": [{"x": 1}, {"x": 1, "z": 2}],
    "a field less": [{"x": 1, "y": 2}, {"x": 1}],
    "null in a field": [{"x": None}],
    "a number among objects": [{"x": 1}, 7],
    "an object among numbers": [7, {"x": 1}],
    "a longer list in a field": [{"x": [1]}, {"x": [1, 2]}],
    "a text among numbers in a field": [{"x": 1}, {"x": "u"}],
    "no list": [{"x[]": 1}],
    "null in place of a list": [{"x[]": [1]}, {"x[]": None}],
    "an empty text among names": [{"x[]": ["u"]}, {"x[]": ["u", ""]}],
    "a number among names": [{"x[]": ["u"]}, {"x[]": [3]}],
    "other boxes": [{"x[]": [[1, 2]]}, {"x[]": [[1, 2], [1, 2, 3]]}],
    "two names of a field": [{"x[]": [], "x": 1}],
    "too many items": [{"x[]": [0] * 8192}],
    "too many items together": [{"x[]": [0] * 5001, "y[]": [0] * 5001}],
}


# Lines are also counted in later batches of rows.
LATER = [("a longer list", 9000), ("a text among numbers in a field", 9000), ("other boxes", 9000)]


@pytest.mark.parametrize(("name", "rows_before"), [*((name, 0) for name in BAD), *LATER])
def test_the_line_of_a_bad_label_is_named(tmp_path, name, rows_before):
    path, labels = tmp_path / "x.jsonl", BAD[name][:1] * rows_before + BAD[name]
    path.write_text("\n".join(row(label, key=f"{n}") for n, label in enumerate(labels)))
    with pytest.raises(SourceError, match=f"^key_list {path}, line {len(labels)}: ") as caught:
        read(path)
    assert len(str(caught.value)) < 1000


def test_mixed_kinds_of_lists_and_two_fields_of_classes_are_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    for lines in (
        [row([1], "label[]"), row([1])],
        [row("x", "label[]")],
        [row({"x[]": [], "y": "u"}), row({"x[]": ["v"], "y": "u"})],
    ):
        path.write_text("\n".join(lines))
        with pytest.raises(SourceError, match=f"^key_list {path}, line "):
            read(path)


def test_too_many_class_names_in_a_field_are_refused(tmp_path):
    rows = [{"key": str(i), "label": {"kind": f"{i:05d}" + "x" * 60_000}} for i in range(40)]
    with pytest.raises(SourceError, match="line 35: field 'kind': "):
        read(written(tmp_path, "jsonl", rows))
