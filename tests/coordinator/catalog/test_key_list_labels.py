"""Labels that are arrays or have named fields: all rows of one form, packed, and the same over the wire."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.coordinator.catalog.catalog import Catalog
from superdl.super_wire.errors import SourceError
from superdl.super_wire.labels import RaggedLabels, unpack_labels
from tests.coordinator.catalog.key_lists import read, write_jsonl, written

BOXED = [
    {"age": 3, "box": [0, 1, 2.5, 3], "kind": "dog"},
    {"kind": "cat", "age": 4, "box": [1, 1, 1, 1]},
]


@pytest.mark.parametrize("extension", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    ("labels", "dtype", "values"),
    [
        ([[1, 2], [3, -4]], "int64", [[1, 2], [3, -4]]),
        ([[0.5, 2.0], [3.0, 4.0]], "float64", [[0.5, 2.0], [3.0, 4.0]]),
        ([[[1], [2]], [[3], [4]]], "int64", [[[1], [2]], [[3], [4]]]),
    ],
    ids=["integers", "floats", "nested"],
)
def test_lists_become_arrays(tmp_path, extension, labels, dtype, values):
    found = read(
        written(tmp_path, extension, [{"key": f"{n}", "label": one} for n, one in enumerate(labels)])
    )
    assert found.labels.dtype == dtype
    assert found.labels.shape == np.shape(values)
    assert found.labels.tolist() == values
    assert found.classes == ()


def test_integers_in_a_list_become_floats_with_the_first_float(tmp_path):
    rows = [{"key": "a", "label": [1, 2]}, {"key": "b", "label": [3, 0.5]}]
    assert read(written(tmp_path, "jsonl", rows)).labels.tolist() == [[1.0, 2.0], [3.0, 0.5]]


@pytest.mark.parametrize("extension", ["jsonl", "parquet"])
def test_objects_become_named_fields_of_which_one_may_name_the_class(tmp_path, extension):
    found = read(written(tmp_path, extension, [{"key": f"{n}", "label": one} for n, one in enumerate(BOXED)]))
    assert found.labels.dtype.names == ("age", "box", "kind")
    assert found.labels["age"].tolist() == [3, 4]
    assert found.labels["box"].tolist() == [[0.0, 1.0, 2.5, 3.0], [1.0, 1.0, 1.0, 1.0]]
    assert found.labels["kind"].tolist() == [1, 0]
    assert found.classes == ("cat", "dog")


def test_csv_writes_the_fields_of_a_label_as_columns(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("label.age,key,label.kind,other\n3,a,dog,x\n4.5,b,cat,y\n")
    found = read(path)
    assert found.labels["age"].tolist() == [3.0, 4.5]
    assert found.labels["kind"].tolist() == [1, 0]
    assert found.classes == ("cat", "dog")
    path.write_text("label.age,key,label\n3,a,7\n")  # a column of its own goes before
    assert read(path).labels.tolist() == [7]


NUMBER = st.integers(-(2**40), 2**40) | st.floats(-1e9, 1e9)


@st.composite
def label_columns(draw):
    """Labels of one form, and what numpy makes of each field."""
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
def test_any_labels_come_out_as_they_went_in_also_over_the_wire(tmp_path_factory, made):
    labels, columns = made
    path = tmp_path_factory.getbasetemp() / "any-labels.jsonl"
    write_jsonl(path, [{"key": f"{n}", "label": label} for n, label in enumerate(labels)])
    found = read(path)
    catalog = Catalog("file:///x", found.keys, found.keys, found.labels, found.classes)
    travelled = unpack_labels(catalog.labels_at(np.arange(len(catalog))), catalog.label_dtype)
    for name, column in columns.items():
        assert np.array_equal(travelled[name], column)
        assert travelled[name].dtype == column.dtype


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
def test_lists_whose_names_say_so_may_have_any_length_and_name_classes(tmp_path, extension):
    found = read(
        written(tmp_path, extension, [{"key": f"{n}", "label": one} for n, one in enumerate(DETECTED)])
    )
    assert found.classes == ("cat", "dog", "emu")
    assert found.labels.names == ("boxes", "classes", "size")
    assert found.labels["size"].tolist() == [[48, 64], [5, 6], [7, 8]]
    for label, given_label in zip(found.labels, DETECTED, strict=True):
        assert label["boxes"].shape == (len(given_label["boxes[]"]), 4)
        assert label["boxes"].tolist() == given_label["boxes[]"]
        assert [found.classes[place] for place in label["classes"]] == given_label["classes[]"]


@pytest.mark.parametrize("extension", ["jsonl", "parquet"])
def test_a_label_itself_may_be_such_a_list(tmp_path, extension):
    tokens = [[5, 6, 7], [], [8]]
    rows = [{"key": f"{n}", "label[]": one} for n, one in enumerate(tokens)]
    found = read(written(tmp_path, extension, rows))
    assert isinstance(found.labels, RaggedLabels)
    assert [one.tolist() for one in found.labels] == tokens
    rows = [{"key": f"{n}", "label[]": []} for n in range(3)]  # nothing says of what
    assert [one.shape for one in read(written(tmp_path, "jsonl", rows)).labels] == [(0,)] * 3


@given(
    st.lists(st.lists(st.lists(NUMBER, min_size=2, max_size=2), max_size=4), min_size=1, max_size=6),
    st.randoms(),
)
def test_any_lists_come_out_as_they_went_in_also_over_the_wire_and_in_any_order(
    tmp_path_factory, lists, chance
):
    rows = [{"key": f"{n:03}", "label": {"n": n, "pairs[]": one}} for n, one in enumerate(lists)]
    path = tmp_path_factory.getbasetemp() / "any-lists.jsonl"
    write_jsonl(path, rows)
    fingerprints = set()
    for _ in range(2):
        found = read(path)
        columns = found.keys, found.keys, found.labels, found.classes
        catalog = Catalog.build("file:///x", *columns)
        fingerprints.add(catalog.fingerprint)
        places = chance.choices(range(len(lists)), k=5)
        travelled = unpack_labels(catalog.labels_at(np.array(places)), catalog.label_dtype, 5)
        assert [label["pairs"].tolist() for label in travelled] == [lists[place] for place in places]
        assert [label["n"] for label in travelled] == places
        sizes = catalog.label_sizes(np.array(places))
        assert len(catalog.labels_at(np.array(places))) == sizes.sum() + 4
        assert catalog.most_label_bytes(5, again=True) >= sizes.sum()
        chance.shuffle(rows)  # the order of rows is none of a catalog's
        write_jsonl(path, rows)
    assert len(fingerprints) == 1
    rows[0]["label"]["pairs[]"] = [*rows[0]["label"]["pairs[]"], [1, 2]]
    write_jsonl(path, rows)
    found = read(path)
    columns = found.keys, found.keys, found.labels, found.classes
    assert Catalog.build("file:///x", *columns).fingerprint not in fingerprints


def test_such_lists_take_the_bytes_of_their_numbers(tmp_path):
    rows = [{"key": f"{n}", "label": {"ids[]": list(range(n % 7))}} for n in range(700)]
    path = tmp_path / "x.jsonl"
    write_jsonl(path, rows)
    found = read(path)
    catalog = Catalog.build("file:///x", found.keys, found.keys, found.labels)
    assert catalog.labels.values["ids"].nbytes == 100 * sum(range(7))  # in one byte each
    assert catalog.label_bytes == 4 + 8 * 3


BAD = {
    "label is an empty list": ('{"key": "a", "label": []}\n', "line 1: a list has 1 to 8192 numbers"),
    "label has an empty list": ('{"key": "a", "label": [[1], []]}\n', "line 1: a label is a number"),
    "list of texts": ('{"key": "a", "label": ["x"]}\n', "line 1: .* is a list of texts"),
    "list of null": ('{"key": "a", "label": [1, null]}\n', "line 1: a label is a number.*; not 'None'"),
    "list too deep": (
        '{"key": "a", "label": ' + "[" * 9 + "1" + "]" * 9 + "}\n",
        "line 1: .*at most 8 dimensions",
    ),
    "list too long": ('{"key": "a", "label": [' + "0," * 8192 + "0]}\n", "line 1: a list has 1 to 8192"),
    "longer list": (
        '{"key": "a", "label": [1, 2]}\n{"key": "b", "label": [1, 2, 3]}\n',
        r"line 2: '\[1, 2, 3\]' has the shape \(3,\), the first label has \(2,\)",
    ),
    "number among lists": (
        '{"key": "a", "label": [1, 2]}\n{"key": "b", "label": 1}\n',
        r"line 2: '1' has the shape \(\), the first label has \(2,\)",
    ),
    "list among numbers": ('{"key": "a", "label": 1}\n{"key": "b", "label": [1]}\n', "line 2: .*not '.1.'"),
    "list among texts": ('{"key": "a", "label": "x"}\n{"key": "b", "label": [1]}\n', "line 2: .*not '.1.'"),
    "no fields": ('{"key": "a", "label": {}}\n', "line 1: a label that is an object has 1 to 64 fields"),
    "field without a name": ('{"key": "a", "label": {"": 1}}\n', "line 1: a field's name has 1 to 200 bytes"),
    "two classes": (
        '{"key": "a", "label": {"x": "u", "y": "v"}}\n',
        "line 1: one field of a label may be a text",
    ),
    "objects in objects": (
        '{"key": "a", "label": {"x": {"y": 1}}}\n',
        "line 1: in the field 'x': a label is",
    ),
    "other fields": (
        '{"key": "a", "label": {"x": 1, "y": 2}}\n{"key": "b", "label": {"x": 1, "z": 2}}\n',
        "line 2: the label is 'the fields x, z', those before it have the fields x, y",
    ),
    "number among objects": (
        '{"key": "a", "label": {"x": 1}}\n{"key": "b", "label": 7}\n',
        "line 2: the label is '7', those before it have the fields x",
    ),
    "a longer list, and how to say so": (
        '{"key": "a", "label": {"x": [1]}}\n{"key": "b", "label": {"x": [1, 2]}}\n',
        r"""line 2: in the field 'x': .*; where the length of a list varies by row, its name says so: "b""",
    ),
    "no list": ('{"key": "a", "label": {"x[]": 1}}\n', r"line 1: in the field 'x\[\]': '1' is no list"),
    "no list itself": (
        '{"key": "a", "label[]": "x"}\n',
        "line 1: .*'x' is no list, as the .. behind its name",
    ),
    "an empty text among names": (
        '{"key": "a", "label": {"x[]": ["u"]}}\n{"key": "b", "label": {"x[]": ["u", ""]}}\n',
        "line 2: .*the label is empty",
    ),
    "a number among names": (
        '{"key": "a", "label": {"x[]": ["u"]}}\n{"key": "b", "label": {"x[]": [3]}}\n',
        "line 2: .*the label 3 is a number, those before it are texts",
    ),
    "other boxes": (
        '{"key": "a", "label": {"x[]": [[1, 2]]}}\n{"key": "b", "label": {"x[]": [[1, 2], [1, 2, 3]]}}\n',
        r"line 2: .*has the shape \(3,\), the first label has \(2,\)",
    ),
    "two names of one field": (
        '{"key": "a", "label": {"x[]": [], "x": 1}}\n',
        "line 1: .*is there once; not 'x'",
    ),
    "classes twice": (
        '{"key": "a", "label": {"x[]": [], "y": "u"}}\n{"key": "b", "label": {"x[]": ["v"], "y": "u"}}\n',
        "line 2: one field of a label may be a text, which names its class; these are: x.., y",
    ),
    "varying or not": (
        '{"key": "a", "label[]": [1]}\n{"key": "b", "label": [1]}\n',
        r'line 2: a row is {"key": ..., "label\[\]": ...}',
    ),
    "too many": (
        '{"key": "a", "label": {"x[]": [' + "0," * 8191 + "0]}}\n",
        "line 1: a label has at most 65536 bytes, 8 a number; this has 65540",
    ),
    "too many together": (
        '{"key": "a", "label": {"x[]": [' + "0," * 5000 + '0], "y[]": [' + "0," * 5000 + "0]}}\n",
        "line 1: a label has at most 65536 bytes, 8 a number; this has 80024",
    ),
    "bad field": (
        '{"key": "a", "label": {"x": 1}}\n{"key": "b", "label": {"x": "u"}}\n',
        "line 2: in the field 'x': the label 'u' is a text, those before it are numbers",
    ),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD)
def test_bad_labels(tmp_path, text, reason):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(SourceError, match=f"^key_list {path}, {reason}"):
        read(path)


def test_a_label_of_texts_that_name_too_much_is_refused_in_a_field_too(tmp_path):
    rows = [{"key": str(i), "label": {"kind": f"{i:05d}" + "x" * 60_000}} for i in range(40)]
    with pytest.raises(SourceError, match="line 35: in the field 'kind': labels that are texts name classes"):
        read(written(tmp_path, "jsonl", rows))
