"""Rows of Parquet files equal those that pyarrow reads, with one GET for a column of a row group."""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.objects.directory import Directory
from superdl.super_wire.request import Limits, Outcome
from tests.lambda_prefetch.prefetching import (
    array_of,
    encode,
    fetched,
    file_version,
    member,
    member_request,
    outcomes_of,
    pixels,
    run,
    tombstone_of,
)

BINARY = {"plain": pa.binary(), "large": pa.large_binary(), "text": pa.string()}
CONTENTS = st.none() | st.sampled_from([b"", b"a", b"same" * 300]) | st.binary(max_size=3000)


@st.composite
def tables(draw):
    """Draw a table with a column of images, its contents, the column's path and options for writing."""
    contents = draw(st.lists(CONTENTS, min_size=1, max_size=120))
    kind = draw(st.sampled_from([*BINARY, "dictionary", "struct", "nested"]))
    if kind == "text":
        contents = [None if one is None else one.hex().encode() for one in contents]
        values = pa.array([None if one is None else one.decode() for one in contents], pa.string())
    elif kind in BINARY:
        values = pa.array(contents, BINARY[kind])
    elif kind == "dictionary":
        values = pa.array(contents, pa.binary()).dictionary_encode()
    else:
        rows = [None if one is None else {"bytes": one, "path": "x.jpg"} for one in contents]
        if kind == "nested":
            rows = [{"inner": row, "side": 1} for row in rows]
        values = pa.array(rows)
        if pa.types.is_null(values.type) or (None in contents and not any(contents)):
            values, kind = pa.array(contents, pa.binary()), "plain"
    columns = {"label": list(range(len(contents))), "image": values, "other": [b"beside"] * len(contents)}
    path = {"struct": "image.bytes", "nested": "image.inner.bytes"}.get(kind, "image")
    codecs = ("none", "snappy", "gzip", "zstd", "lz4", "brotli")
    codecs = [codec for codec in codecs if codec == "none" or pa.Codec.is_available(codec)]
    options = {
        "row_group_size": draw(st.integers(1, 130)),
        "compression": draw(st.sampled_from(codecs)),
        "use_dictionary": draw(st.booleans()),
        "data_page_size": draw(st.sampled_from([1, 1000, 2**20])),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "write_page_checksum": draw(st.booleans()),
        "write_page_index": draw(st.booleans()),
        "store_schema": draw(st.booleans()),
    }
    return pa.table(columns), contents, path, options


def rows_of(path, column, version=None):
    """Return key list rows for all rows of a file, as ``superdl index`` writes them."""
    footer, rows = parquet.read_metadata(path), []
    for group in range(footer.num_row_groups):
        rows += [
            member(path.name, version or file_version(path), len(rows) + row, group, row, f"parquet:{column}")
            for row in range(footer.row_group(group).num_rows)
        ]
    return rows


@given(tables(), st.data())
def test_rows_equal_those_that_pyarrow_reads(drawn, data):
    table, contents, column, options = drawn
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.parquet"
        parquet.write_table(table, path, **options)
        rows = rows_of(path, column)
        places = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, unique=True))
        wanted = [rows[place] for place in places]
        found, requests = fetched(
            member_request("file:///x", wanted, "redis://h:1"), Directory(str(path.parent))
        )
    whole = [found[n] if isinstance(found[n], bytes) else None for n in range(len(wanted))]
    assert whole == [contents[place] for place in places]
    assert {found[n].reason for n, one in enumerate(whole) if one is None} <= {"empty"}
    groups = len({row["offset"] for row in wanted})
    assert requests == 1 + groups  # the footer is read once, however many threads look for it


def images_in(path, count=6, row_group_size=2):
    """Write images in Hugging Face's layout. Return their key list rows."""
    rows = [{"bytes": encode(pixels(seed=n)), "path": f"{n}.png"} for n in range(count)]
    table = pa.table({"image": rows, "label": list(range(count))})
    parquet.write_table(table, path, row_group_size=row_group_size, write_page_checksum=True)
    return rows_of(path, "image.bytes")


def test_rows_are_decoded_and_requests_counted(tmp_path, valkey, monkeypatch):
    path = tmp_path / "x.parquet"
    request = member_request(f"file://{tmp_path.resolve()}", images_in(path), valkey.unix_url)
    for footers in (1, 0):  # it is kept
        monkeypatch.setenv("SUPER_FETCH_THREADS", "1")
        result = run(request)
        assert result.outcomes == ("cached",) * 6
        assert result.source_requests == 3 + footers
        chunks = [parquet.read_metadata(path).row_group(n).column(0).total_compressed_size for n in range(3)]
        assert result.source_bytes == sum(chunks) + footers * min(path.stat().st_size, 2**16)
    for n in range(6):
        assert np.array_equal(array_of(valkey, request, n), pixels(seed=n))


def test_missing_pyarrow_is_reported_with_its_requirements(tmp_path, monkeypatch):
    request = member_request(f"file://{tmp_path}", images_in(tmp_path / "x.parquet"), "redis://h:1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match="infra/function/parquet-requirements"):
        run(request)


def test_a_fault_names_object_and_row(tmp_path, valkey):
    rows = images_in(tmp_path / "good.parquet")
    body = (tmp_path / "good.parquet").read_bytes()
    chunk = parquet.read_metadata(tmp_path / "good.parquet").row_group(1).column(0)
    middle = chunk.data_page_offset + chunk.total_compressed_size // 2
    texts = pa.table({"image": [{"bytes": None, "path": "x.jpg"}] * 2, "label": [1, 2]})
    files = {
        "cut": body[:-1],
        "headless": body[-40:],  # a footer of which the row groups are gone
        "spoilt": body[:middle] + bytes([body[middle] ^ 255]) + body[middle + 1 :],
        "tiny": b"PAR1",
        "none": b"",
    }
    for name, content in files.items():
        (tmp_path / f"{name}.parquet").write_bytes(content)
    schema = pa.schema(
        [("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())]
    )
    parquet.write_table(texts.cast(schema), tmp_path / "paths.parquet")
    row, cases = rows[2], []
    for name in (*files, "paths"):
        path = tmp_path / f"{name}.parquet"
        cases.append(row | {"key": path.name, "version": file_version(path), "offset": int(name == "spoilt")})
    changes = [{"version": "5-1"}, {"key": "gone.parquet"}, {"offset": 3}, {"length": 2}]
    cases += [row | change for change in [*changes, {"encoding": "parquet:picture"}, {}]]
    cases = [case | {"member": f"m{n}"} for n, case in enumerate(cases)]
    request = member_request(f"file://{tmp_path.resolve()}", cases, valkey.unix_url)
    result = run(request)
    ends = ["tombstone"] * 6 + ["changed", "missing", "changed", "changed", "changed", "cached"]
    assert list(result.outcomes) == ends
    reasons = [tombstone_of(valkey, request, n).reason for n in range(6)]
    assert reasons == [*["undecodable"] * 5, "empty"]
    said = {0: "not a Parquet file", 5: "refer to a file", 8: "row group 3", 9: "no row 2", 10: "'picture'"}
    for n, words in said.items():
        assert f"{cases[n]['key']}::m{n}" in result.messages[str(n)]
        assert words in result.messages[str(n)]


def test_row_groups_are_read_by_range_within_the_limit(kept, tmp_path):
    source, put = kept
    path = tmp_path / "made.parquet"
    # More columns than the first read of a footer holds.
    wide = {f"column-{n:05d}": [n] * 4 for n in range(900)}
    table = pa.table(wide | {"image": [bytes([n]) * 5000 for n in range(4)]})
    parquet.write_table(table, path, row_group_size=2, compression="none", use_dictionary=False)
    version = put("x.parquet", path.read_bytes())
    rows = [row | {"key": "x.parquet"} for row in rows_of(path, "image", version)]
    request = member_request("file:///x", rows, "redis://h:1")
    found, _ = fetched(request, source)
    assert [found[n] for n in range(4)] == [bytes([n]) * 5000 for n in range(4)]
    found, _ = fetched(replace(request, limits=Limits(object_bytes=9000)), source)
    assert [found[n].reason for n in range(4)] == ["too_large"] * 4
    assert "write smaller row groups" in found[0].message
    changed = member_request("file:///x", [row | {"version": "0" * 32} for row in rows], "redis://h:1")
    assert outcomes_of(fetched(changed, source)[0]) == ["changed"] * 4


def test_a_value_shared_by_many_rows_fails_none_permanently(kept, tmp_path):
    source, put = kept
    path = tmp_path / "made.parquet"
    parquet.write_table(pa.table({"image": [b"x" * 5000] * 100}), path)
    rows = [row | {"key": "x.parquet"} for row in rows_of(path, "image", put("x.parquet", path.read_bytes()))]
    request = replace(member_request("file:///x", rows, "redis://h:1"), limits=Limits(object_bytes=20_000))
    found, _ = fetched(request, source)
    assert [found[n] for n in range(4)] == [b"x" * 5000] * 4
    assert {found[n].outcome for n in range(4, 100)} == {Outcome.SOURCE_ERROR}
    assert {found[n].reason for n in range(4, 100)} == {""}
