"""Key lists of all formats say the same; what is wrong with one is named by file, line and reason."""

from __future__ import annotations

import json
import os
import threading

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from superdl.coordinator.catalog import key_list_rows as rows_module
from superdl.coordinator.catalog.key_list import read_key_list
from superdl.coordinator.catalog.lister import list_source
from superdl.coordinator.catalog.listing import ListingCancelledError, Tally
from superdl.super_wire.errors import SourceEmptyError, SourceError, SourceNotFoundError, SuperError
from tests.coordinator.catalog.key_lists import WRITERS, read, written


@pytest.mark.parametrize("extension", WRITERS)
@pytest.mark.parametrize(
    ("labels", "dtype", "values", "classes"),
    [
        ([7, 0, -3], "int64", [7, 0, -3], ()),
        ([2**63 - 1, -(2**63)], "int64", [2**63 - 1, -(2**63)], ()),
        ([0.5, -1.25e10], "float64", [0.5, -1.25e10], ()),
        (["dog", "Zebra", "ärger", "dog", "cat"], "int64", [2, 0, 3, 2, 1], ("Zebra", "cat", "dog", "ärger")),
    ],
    ids=["integers", "extremes", "floats", "texts"],
)
def test_labels(tmp_path, extension, labels, dtype, values, classes):
    rows = [{"key": f"k/{i}", "label": label, "other": "ignored"} for i, label in enumerate(labels)]
    found = read(written(tmp_path, extension, rows))
    assert list(found.keys) == [row["key"].encode() for row in rows]
    assert found.versions is None
    assert found.labels.dtype.name == dtype
    assert found.labels.tolist() == values
    assert found.classes == classes


def test_numbers_as_people_write_them_and_texts_of_digits(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("key,label\na, 7\nb,+3.\nc,.5e1\nd,007\n")
    found = read(path).labels
    assert (found.dtype, found.tolist()) == (np.float64, [7, 3, 5, 7])
    for extension in ("jsonl", "parquet"):
        rows = [{"key": "a", "label": "7"}, {"key": "b", "label": "x"}]
        assert read(written(tmp_path, extension, rows)).classes == ("7", "x")


@pytest.mark.parametrize("extension", WRITERS)
def test_more_rows_than_are_read_at_a_time_until_nobody_wants_them(tmp_path, extension):
    path = written(tmp_path, extension, [{"key": f"{i:05d}", "label": i} for i in range(20_001)])
    assert np.array_equal(read(path).labels, np.arange(20_001))
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(ListingCancelledError):
        read_key_list(str(path), Tally(lambda _: None, cancelled), of_files=True)


@pytest.mark.parametrize("extension", WRITERS)
def test_versions_and_keys_of_any_script(tmp_path, extension):
    rows = [
        {"version": "etag1", "label": 1, "key": 'größe "1", x.jpg'},
        {"version": '"etag-2"', "label": 2, "key": "猫/ 2.jpg"},
    ]
    told = []
    found = read(written(tmp_path, extension, rows), progress=told.append)
    assert list(found.keys) == [row["key"].encode() for row in rows]
    assert list(found.versions) == [b"etag1", b"etag-2"]
    assert told == [2, None]


def test_dictionary_columns_and_all_integer_types(tmp_path):
    for kind in (pa.int8(), pa.uint32(), pa.uint64()):
        table = pa.table({"key": ["a", "b"], "label": pa.array([1, 2], kind)})
        parquet.write_table(table, tmp_path / "x.parquet")
        assert read(tmp_path / "x.parquet").labels.tolist() == [1, 2]
    table = pa.table({"key": ["a", "b"], "label": pa.array(["u", "t"]).dictionary_encode()})
    parquet.write_table(table, tmp_path / "x.parquet")
    found = read(tmp_path / "x.parquet")
    assert (found.labels.tolist(), found.classes) == ([1, 0], ("t", "u"))


@pytest.mark.parametrize("scheme", ["{}", "file://{}"])
def test_byte_order_mark_blank_lines_crlf_and_quoted_newlines(tmp_path, scheme):
    path = tmp_path / "x.CSV"
    path.write_bytes(b'\xef\xbb\xbf\r\n label ,key\r\n\r\n1,"a\nb"\r\n\r\n2,c')
    assert list(read(scheme.format(path)).keys) == [b"a\nb", b"c"]
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"key": "a", "label": 1}\r\n\n  \n{"key": "b", "label": 2}')
    assert list(read(scheme.format(path)).keys) == [b"a", b"b"]


BAD_CSV = {
    "no header": ("a/1.jpg,0\n", "line 1: the columns are key, label"),
    "column twice": ("key,label,key\na,1,b\n", "line 1: the columns are key, label"),
    "fields missing": ("key,label\na,1\nb\n", "line 3: 1 fields; the header names 2"),
    "fields too many": ("key,label\n\na,1,2\n", "line 3: 3 fields; the header names 2"),
    "quote not closed": ('key,label\n"a,1\n', "line 2: no CSV"),
    "empty key": ("key,label\n,1\n", "line 2: a key is a text"),
    "empty label": ("key,label\na,\n", "line 2: the label is empty"),
    "text among numbers": ("key,label\na,1\nb,7x\n", "line 3: the label '7x' is a text.*CSV cannot tell"),
    "number among texts": ("key,label\na,cat\nb,7\n", "line 3: the label 7 is a number"),
    "empty version": ("key,label,version\na,1,v\nb,1,\n", "line 3: a version is.*leave the column out"),
    "long version": (f"key,label,version\na,1,{'v' * 300}\n", "line 2: a version is"),
    "too large": (f"key,label\na,{2**63}\n", "line 2: .* does not fit into 64 bits"),
    "infinite": ("key,label\na,1e999\n", "line 2: the label inf is not finite"),
    "NUL": ("key,label\na\0b,1\n", "line 2: "),
    "leaves upwards": ("key,label\n../a.jpg,1\n", "line 2: .*'../a.jpg' is not a path below"),
    "absolute": ("key,label\n/etc/a.jpg,1\n", "line 2: .*is not a path below"),
    "double slash": ("key,label\na//b.jpg,1\n", "line 2: .*is not a path below"),
    "line too long": (f"key,label\na,{'x' * 270_000}\n", "line 2: longer than 262144 bytes"),
    "key too long": (f"key,label\n{'x' * 5000},1\n", "line 2: .*has 5000 bytes; at most 4096"),
    "key twice": ("key,label\na,1\nb,1\na,1\nb,2\nc,1\n", "a key is listed once.*'a', 'b'$"),
}


@pytest.mark.parametrize(("text", "reason"), BAD_CSV.values(), ids=BAD_CSV)
def test_bad_csv(tmp_path, text, reason):
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(SourceError, match=f"(?s)^key_list {path}(, |: ){reason}"):
        read(path)


BAD_JSONL = {
    "label twice": ('{"key": "a", "label": 1, "label": 2}\n', "line 1: .*'label' is given twice"),
    "two labels": ('{"key": "a", "label": 1, "label[]": [2]}\n', "line 1: there are label and label"),
    "texts": ('{"key": "a", "label": ["cat", "dog"]}\n', r"line 1: .* is a list of texts.*label\[\]"),
    "no JSON": ('{"key": "a", "label": 1}\n{"key"\n', "line 2: no JSON"),
    "deep": ("[" * 60_000 + "\n", "line 1: no JSON"),
    "no mapping": ("[1]\n", 'line 1: a row is {"key"'),
    "no label": ('{"key": "a"}\n', 'line 1: a row is {"key"'),
    "key is a number": ('{"key": 1, "label": 1}\n', "line 1: a key is a text"),
    "key is half a character": ('{"key": "\\ud800", "label": 1}\n', "line 1: .*surrogates"),
    "class is half a character": ('{"key": "a", "label": "\\ud800"}\n', "line 1: .*surrogates"),
    "label is true": ('{"key": "a", "label": true}\n', "line 1: a label is a number, .*; not 'True'"),
    "label is null": ('{"key": "a", "label": null}\n', "line 1: a label is a number, a text, a list of"),
    "label is NaN": ('{"key": "a", "label": NaN}\n', "line 1: the label nan is not finite"),
    "huge": ('{"key": "a", "label": 1' + "0" * 5000 + "}\n", "line 1: "),
    "version is null": ('{"key": "a", "label": 1, "version": null}\n', "line 1: a version is"),
    "version is a number": ('{"key": "a", "label": 1, "version": 5}\n', "line 1: a version is"),
    "version now and then": (
        '{"key": "a", "label": 1}\n{"key": "b", "label": 1, "version": "v"}\n',
        "line 2: either all rows have a version or none",
    ),
}


@pytest.mark.parametrize(("text", "reason"), BAD_JSONL.values(), ids=BAD_JSONL)
def test_bad_jsonl(tmp_path, text, reason):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(SourceError, match=f"^key_list {path}, {reason}"):
        read(path)


@pytest.mark.parametrize("extension", ["csv", "jsonl"])
def test_bytes_that_are_not_utf8(tmp_path, extension):
    path = tmp_path / f"x.{extension}"
    path.write_bytes(b"key,label\ncaf\xe9,1\n")
    with pytest.raises(SourceError, match=r"line [12]: no"):
        read(path)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"name": ["a"], "label": [1]}, "the columns are key, label"),
        ({"key": ["a", None], "label": [1, 2]}, "line 2: a key is a text"),
        ({"key": [b"a"], "label": [1]}, "line 1: a key is a text"),
        ({"key": pa.array([1, 2], pa.duration("us")), "label": [1, 2]}, "line 1: a key is a text"),
        ({"key": pa.array([2**62], pa.timestamp("us")), "label": [1]}, "no Parquet that can be read"),
        (
            {"key": ["a"], "label": [1], "member": ["m"], "length": [1]}
            | {"offset": pa.array([1], pa.timestamp("ns"))},
            "no Parquet that can be read",
        ),
        ({"key": ["a", "b"], "label": [1, None]}, "line 2: a label is a number"),
        ({"key": ["a"], "label": [True]}, "line 1: a label is a number"),
        ({"key": ["a"], "label": [float("nan")]}, "line 1: the label nan is not finite"),
        ({"key": ["a", "b"], "label": [1, 2], "version": ["v", None]}, "line 2: a version is"),
    ],
)
def test_bad_parquet(tmp_path, columns, reason):
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table(columns), path)
    with pytest.raises(SourceError, match=f"^key_list {path}(, |: ){reason}"):
        read(path)


@pytest.mark.parametrize("extension", WRITERS)
def test_a_key_of_a_list_with_versions_comes_once_too(tmp_path, extension):
    rows = [{"key": key, "label": 1, "version": "v"} for key in ("b", "a", "b")]
    path = written(tmp_path, extension, rows)
    with pytest.raises(SourceError, match=f"^key_list {path}: a key is listed once.*'b'$"):
        list_source(str(tmp_path), str(path))


def test_long_lines_are_read_few_at_a_time(tmp_path):
    path = tmp_path / "x.jsonl"
    rows = [{"key": f"{n}", "label": [n] * 8000} for n in range(300)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with path.open("rb") as stream:
        sizes = [len(some.numbers) for some in rows_module.FORMATS[".jsonl"](stream)]
    assert sum(sizes) == 300
    assert 1 < max(sizes) < 60


def test_keys_of_object_stores_may_hold_anything(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("key,label\n../a//b/./c,1\n/d,2\n")
    assert list(read(path, of_files=False).keys) == [b"../a//b/./c", b"/d"]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"key,label\n"])
def test_no_rows(tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(SourceEmptyError, match=f"key_list {path} names no sample"):
        read(path)


def test_no_such_file_and_no_file(tmp_path):
    with pytest.raises(SourceNotFoundError, match=f"key_list {tmp_path}/gone.csv does not exist"):
        read(tmp_path / "gone.csv")
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    for name in ("folder.csv", "pipe.csv"):
        with pytest.raises(SourceError, match=f"key_list {tmp_path}/{name} is no file"):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("labels", r"no known format.*\.csv, \.jsonl, \.parquet"),
        ("labels.csv.gz", "no known format"),
        ("", "no known format"),
    ],
)
def test_unknown_formats(url, reason):
    with pytest.raises(SourceError, match=reason):
        read(url)


def test_classes_of_digits_in_csv_are_refused_with_the_way_to_write_them(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("key,label\na,0\nb,1\n")
    with pytest.raises(SourceError, match="none of its labels is a name.*JSONL or Parquet"):
        read_key_list(str(path), Tally(lambda _: None, threading.Event()), of_files=True, classes=("0", "1"))


def test_few_bytes_of_parquet_that_stand_for_many_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"key": [str(n) for n in range(1000)], "label": ["x" * 1000] * 1000}), path)
    assert path.stat().st_size < 50_000
    monkeypatch.setattr(rows_module, "_MAX_BATCH_BYTES", 100_000)
    with pytest.raises(SourceError, match="line 1: 1000 rows from here have .* bytes, more than 100000"):
        read(path)


@pytest.mark.parametrize(
    "url",
    [
        "https://b.s3.amazonaws.com/l.csv?X-Amz-Signature=SECRET",
        "https://b.s3.amazonaws.com/l.parquet?X-Amz-Security-Token=SECRET&x=/a.csv",
        "https://name:SECRET@example.org/l.csv",
        "https://name:SEC/SECRET@example.org/l.txt",
    ],
)
def test_credentials_in_a_url_are_not_repeated(url):
    with pytest.raises(SuperError, match=r"\*\*\*") as caught:
        read_key_list(url, Tally(lambda _: None, threading.Event()), of_files=False)
    assert "SEC" not in str(caught.value)
