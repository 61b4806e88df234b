"""Key lists of all formats are equivalent, and errors name the file and the line."""

import json
import os
import threading

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from superdl.coordinator.catalog import key_list_formats
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
def test_every_format_has_keys_labels_and_versions(tmp_path, extension, labels, dtype, values, classes):
    rows = [{"key": f'größe "猫", {i}', "label": label, "other": "-"} for i, label in enumerate(labels)]
    listed = read(written(tmp_path, extension, rows))
    assert list(listed.own.keys) == [row["key"].encode() for row in rows]
    assert listed.own.versions is None
    assert (listed.labels.dtype.name, listed.labels.tolist(), listed.classes) == (dtype, values, classes)
    progress = []
    rows = [row | {"version": f'"v{i}"' if i % 2 else f"v{i}"} for i, row in enumerate(rows)]
    listed = read(written(tmp_path, extension, rows), progress=progress.append)
    assert list(listed.own.versions) == [b"v%d" % i for i in range(len(rows))]
    assert progress == [len(rows), None]


def test_csv_cells_that_spell_numbers_are_numbers_and_strings_of_digits_elsewhere_are_not(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("key,label\na, 7\nb,+3.\nc,.5e1\nd,007\n")
    listed = read(path).labels
    assert (listed.dtype, listed.tolist()) == (np.float64, [7, 3, 5, 7])
    for extension in ("jsonl", "parquet"):
        rows = [{"key": "a", "label": "7"}, {"key": "b", "label": "x"}]
        assert read(written(tmp_path, extension, rows)).classes == ("7", "x")


@pytest.mark.parametrize("extension", WRITERS)
def test_many_rows_are_read_in_batches_and_can_be_cancelled(tmp_path, extension):
    path = written(tmp_path, extension, [{"key": f"{i:05d}", "label": i} for i in range(20_001)])
    assert np.array_equal(read(path).labels, np.arange(20_001))
    cancelled = threading.Event()
    cancelled.set()
    with pytest.raises(ListingCancelledError):
        read_key_list(str(path), Tally(lambda _: None, cancelled), of_files=True)


def test_parquet_labels_may_have_any_numeric_or_dictionary_type(tmp_path):
    for kind in (pa.int8(), pa.uint32(), pa.uint64(), pa.float32()):
        table = pa.table({"key": ["a", "b"], "label": pa.array([1, 2], pa.int8()).cast(kind)})
        parquet.write_table(table, tmp_path / "x.parquet")
        assert read(tmp_path / "x.parquet").labels.tolist() == [1, 2]
    table = pa.table({"key": ["a", "b"], "label": pa.array(["u", "t"]).dictionary_encode()})
    parquet.write_table(table, tmp_path / "x.parquet")
    listed = read(tmp_path / "x.parquet")
    assert (listed.labels.tolist(), listed.classes) == ([1, 0], ("t", "u"))


@pytest.mark.parametrize("scheme", ["{}", "file://{}"])
def test_byte_order_marks_blank_lines_crlf_and_quoted_newlines_are_accepted(tmp_path, scheme):
    path = tmp_path / "x.CSV"
    path.write_bytes(b'\xef\xbb\xbf\r\n label ,key\r\n\r\n1,"a\nb"\r\n\r\n2,c')
    assert list(read(scheme.format(path)).own.keys) == [b"a\nb", b"c"]
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"key": "a", "label": 1}\r\n\n  \n{"key": "b", "label": 2}')
    assert list(read(scheme.format(path)).own.keys) == [b"a", b"b"]


A = '{"key": "a", "label": 1}\n'
BAD = {  # extension, content, and the line that the error names, or 0 for none
    "no header": ("csv", "a/1.jpg,0\n", 1),
    "column twice": ("csv", "key,label,key\na,1,b\n", 1),
    "fields missing": ("csv", "key,label\na,1\nb\n", 3),
    "fields too many": ("csv", "key,label\n\na,1,2\n", 3),
    "quote not closed": ("csv", 'key,label\n"a,1\n', 2),
    "empty key": ("csv", "key,label\na,1\n,1\n", 3),
    "empty label": ("csv", "key,label\na,\n", 2),
    "text among numbers": ("csv", "key,label\na,1\nb,7x\n", 3),
    "number among texts": ("csv", "key,label\na,cat\nb,7\n", 3),
    "text far behind numbers": (
        "csv",
        "key,label\n" + "".join(f"{n},1\n" for n in range(9000)) + "a,x\n",
        9002,
    ),
    "empty version": ("csv", "key,label,version\na,1,v\nb,1,\n", 3),
    "long version": ("csv", f"key,label,version\na,1,{'v' * 300}\n", 2),
    "too large": ("csv", f"key,label\na,1\nb,{2**63}\n", 3),
    "infinite": ("csv", "key,label\na,1e999\n", 2),
    "NUL": ("csv", "key,label\na\0b,1\n", 2),
    "leaves upwards": ("csv", "key,label\n../a.jpg,1\n", 2),
    "absolute": ("csv", "key,label\n/etc/a.jpg,1\n", 2),
    "double slash": ("csv", "key,label\na//b.jpg,1\n", 2),
    "line too long": ("csv", f"key,label\na,{'x' * 270_000}\n", 2),
    "key too long": ("csv", f"key,label\n{'x' * 5000},1\n", 2),
    "key twice": ("csv", "key,label\na,1\nb,1\na,1\nb,2\nc,1\n", 0),
    "no UTF-8 in CSV": ("csv", b"key,label\ncaf\xe9,1\n", 2),
    "no UTF-8 in JSONL": ("jsonl", b"key,label\ncaf\xe9,1\n", 1),
    "label twice": ("jsonl", '{"key": "a", "label": 1, "label": 2}\n', 1),
    "two labels": ("jsonl", '{"key": "a", "label": 1, "label[]": [2]}\n', 1),
    "no JSON": ("jsonl", A + '{"key"\n', 2),
    "deep": ("jsonl", "[" * 60_000 + "\n", 1),
    "no mapping": ("jsonl", "[1]\n", 1),
    "no label": ("jsonl", '{"key": "a"}\n', 1),
    "key is a number": ("jsonl", A + '{"key": 1, "label": 1}\n', 2),
    "key is half a character": ("jsonl", '{"key": "\\ud800", "label": 1}\n', 1),
    "class is half a character": ("jsonl", '{"key": "a", "label": "\\ud800"}\n', 1),
    "label is true": ("jsonl", '{"key": "a", "label": true}\n', 1),
    "label is true among floats": ("jsonl", '{"key": "a", "label": 0.5}\n{"key": "b", "label": true}\n', 2),
    "label is null": ("jsonl", A + '{"key": "b", "label": null}\n', 2),
    "label is NaN": ("jsonl", '{"key": "a", "label": NaN}\n', 1),
    "huge": ("jsonl", A + '{"key": "a", "label": 1' + "0" * 5000 + "}\n", 2),
    "beyond 64 bits": ("jsonl", A + '{"key": "a", "label": 1' + "0" * 50 + "}\n", 2),
    "version is null": ("jsonl", '{"key": "a", "label": 1, "version": null}\n', 1),
    "version is a number": ("jsonl", '{"key": "a", "label": 1, "version": 5}\n', 1),
    "version now and then": ("jsonl", A + '{"key": "b", "label": 1, "version": "v"}\n', 2),
}


@pytest.mark.parametrize(("extension", "content", "line"), BAD.values(), ids=BAD)
def test_the_line_of_a_bad_row_is_named(tmp_path, extension, content, line):
    path = tmp_path / f"x.{extension}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    where = f"^key_list {path}{f', line {line}' * bool(line)}: "
    with pytest.raises(SourceError, match=where) as caught:
        read(path)
    assert len(str(caught.value)) < 1000


ROW = {"key": ["a"], "label": [1]}
ROWS = {"key": ["a", "b"], "label": [1, 2]}


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        ({"name": ["a"], "label": [1]}, 0),
        (ROWS | {"key": ["a", None]}, 2),
        (ROW | {"key": [b"a"]}, 1),
        (ROWS | {"key": pa.array([1, 2], pa.duration("us"))}, 1),
        (ROW | {"member": ["m"], "length": [1], "offset": pa.array([1], "time32[s]")}, 1),
        (ROWS | {"label": [1, None]}, 2),
        (ROW | {"label": [True]}, 1),
        (ROW | {"label": pa.array([2**62], pa.timestamp("us"))}, 1),
        (ROW | {"label": pa.array([2**63], pa.uint64())}, 1),
        (ROWS | {"version": ["v", None]}, 2),
    ],
)
def test_the_row_of_a_bad_parquet_value_is_named(tmp_path, columns, line):
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table(columns), path)
    with pytest.raises(SourceError, match=f"^key_list {path}{f', line {line}' * bool(line)}: "):
        read(path)


@pytest.mark.parametrize("extension", WRITERS)
def test_a_repeated_key_is_refused_in_a_list_with_versions_too(tmp_path, extension):
    rows = [{"key": key, "label": 1, "version": "v"} for key in ("b", "a", "b")]
    path = written(tmp_path, extension, rows)
    with pytest.raises(SourceError, match=f"^key_list {path}: .*'b'$"):
        list_source(str(tmp_path), str(path))


def test_batches_of_long_lines_are_small(tmp_path):
    path = tmp_path / "x.jsonl"
    rows = [{"key": f"{n}", "label": [n] * 8000} for n in range(300)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with path.open("rb") as stream:
        sizes = [len(rows.numbers) for rows in key_list_formats.FORMATS[".jsonl"](stream)]
    assert sum(sizes) == 300
    assert 1 < max(sizes) < 60


def test_keys_of_object_stores_are_opaque(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("key,label\n../a//b/./c,1\n/d,2\n")
    assert list(read(path, of_files=False).own.keys) == [b"../a//b/./c", b"/d"]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"key,label\n"])
def test_a_list_without_rows_is_refused(tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(SourceEmptyError, match=f"key_list {path} "):
        read(path)


def test_missing_files_other_kinds_of_files_and_unknown_formats_are_refused(tmp_path):
    with pytest.raises(SourceNotFoundError, match=f"key_list {tmp_path}/gone.csv "):
        read(tmp_path / "gone.csv")
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    for name in ("folder.csv", "pipe.csv"):
        with pytest.raises(SourceError, match=f"key_list {tmp_path}/{name} "):
            read(tmp_path / name)
    for url in ("labels", "labels.csv.gz", ""):
        with pytest.raises(SourceError, match=r"\.csv, \.jsonl, \.parquet"):
            read(url)


def test_given_classes_of_digits_do_not_match_the_numbers_of_csv(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("key,label\na,0\nb,1\n")
    with pytest.raises(SourceError, match="classes="):
        read_key_list(str(path), Tally(lambda _: None, threading.Event()), of_files=True, classes=("0", "1"))


def test_parquet_that_expands_too_much_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"key": [str(n) for n in range(1000)], "label": ["x" * 1000] * 1000}), path)
    assert path.stat().st_size < 50_000
    monkeypatch.setattr(key_list_formats, "_MAX_BATCH_BYTES", 100_000)
    with pytest.raises(SourceError, match="line 1: 1000 rows .* bytes, more than 100000"):
        read(path)


@pytest.mark.parametrize(
    "url",
    [
        "https://b.s3.amazonaws.com/l.csv?X-Amz-Signature=SECRET",
        "https://b.s3.amazonaws.com/l.parquet?X-Amz-Security-Token=SECRET&x=/a.csv",
        "https://name:SEC/SECRET@example.org/l.txt",
    ],
)
def test_errors_do_not_repeat_credentials_in_a_url(url):
    with pytest.raises(SuperError, match=r"\*\*\*") as caught:
        read_key_list(url, Tally(lambda _: None, threading.Event()), of_files=False)
    assert "SEC" not in str(caught.value)
