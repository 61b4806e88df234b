"""Key lists of members in every format, joined with their objects. Errors name the line."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from superdl.coordinator.catalog.lister import list_source
from superdl.super_wire.errors import SourceError
from superdl.super_wire.ids import split_ids
from superdl.super_wire.recipe import Recipe
from tests.coordinator.catalog.key_lists import WRITERS, written
from tests.fixtures.ids import sample_id

DIGEST = Recipe.image(resize=8, crop=8).digest
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=6)


COLUMNS = ("key", "member", "offset", "length", "encoding", "version", "label")


@st.composite
def rows_of(draw):
    """Draw a key list of members of a few objects, in any order and without overlaps."""
    rows = []
    for key in ("b.tar", "a/b.tar", "a.tar"):
        at = 0
        for name in draw(st.lists(NAMES, unique=True, max_size=5)):
            at += draw(st.integers(0, 2**33))
            length, encoding = draw(st.integers(1, 2**20)), draw(st.sampled_from(["", "", "deflate"]))
            rows.append((key, name, at, length, encoding, f"v-{key}"))
            at += length
    groups = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300)), unique=True, max_size=6)
    for number, (group, row) in enumerate(draw(groups)):
        encoding = f"parquet:{draw(st.sampled_from(['image.bytes', 'depth']))}"
        rows.append(("c.parquet", str(number), group, row, encoding, "v-c"))
    assume(rows)
    labelled = [dict(zip(COLUMNS, (*row, label), strict=True)) for label, row in enumerate(rows)]
    return draw(st.permutations(labelled))


@pytest.mark.parametrize("extension", WRITERS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=rows_of())
def test_every_format_yields_the_same_catalog_sorted_by_object_and_offset(tmp_path, extension, rows):
    catalog = list_source(tmp_path.as_uri(), str(written(tmp_path, extension, rows)))
    ordered = sorted(rows, key=lambda row: (row["key"].encode(), row["offset"], row["length"]))
    places, members = np.arange(len(rows)), catalog.members
    assert [key.decode() for key in catalog.keys] == [row["key"] for row in ordered]
    assert [name.decode() for name in members.names] == [row["member"] for row in ordered]
    assert members.offsets.tolist() == [row["offset"] for row in ordered]
    assert members.lengths.tolist() == [row["length"] for row in ordered]
    assert members.at(places)[3] == [row["encoding"] for row in ordered]
    assert members.are_rows.tolist() == [row["key"] == "c.parquet" for row in ordered]
    assert (not members.encodings.size) == (not any(row["encoding"] for row in rows))
    assert np.frombuffer(catalog.labels_at(places), "i8").tolist() == [row["label"] for row in ordered]
    objects = sorted({row["key"].encode() for row in rows})
    assert members.objects.tolist() == [objects.index(row["key"].encode()) for row in ordered]
    ids = [
        sample_id(catalog.bucket, row["key"], row["version"], DIGEST, member=row["member"]) for row in ordered
    ]
    assert split_ids(catalog.sample_ids(DIGEST)) == ids
    names = [name.decode() for name in catalog.names_at(places)]
    assert names == [f"{row['key']}::{row['member']}" for row in ordered]
    again = list_source(tmp_path.as_uri(), str(written(tmp_path, "jsonl", ordered)))
    assert again.fingerprint == catalog.fingerprint


def lists(tmp_path, text, extension="csv"):
    path = tmp_path / f"list.{extension}"
    path.write_text(text)
    return list_source(tmp_path.as_uri(), str(path))


def test_members_have_their_files_versions_and_any_change_changes_the_fingerprint(tmp_path):
    for name, size in (("x.tar", 300), ("y.tar", 20)):
        (tmp_path / name).write_bytes(bytes(size))
    head = "key,member,offset,length,encoding,label\n"
    rows = ["x.tar,a,0,100,,1", "y.tar,a,0,20,,2", "x.tar,b,100,200,deflate,3"]
    catalog = lists(tmp_path, head + "\n".join(rows))
    status = {name: (tmp_path / name).stat() for name in ("x.tar", "y.tar")}
    listed = [f"{status[name].st_size}-{status[name].st_mtime_ns}" for name in ("x.tar", "x.tar", "y.tar")]
    assert [version.decode() for version in catalog.versions] == listed
    fingerprints = {catalog.fingerprint}
    for changed in ("x.tar,c,0,100,,1", "x.tar,a,1,99,,1", "x.tar,a,0,99,,1", "x.tar,a,0,100,deflate,1"):
        fingerprints.add(lists(tmp_path, "\n".join([head.strip(), changed, *rows[1:]])).fingerprint)
    assert len(fingerprints) == 5


HEAD = "key,member,offset,length,label\n"
ENCODED = "key,member,offset,length,encoding,label\n"
VERSIONED = "key,version,member,offset,length,label\n"
BAD = {
    "no length": ("key,member,offset,label\n", "line 1: "),
    "no member": ("key,offset,length,label\n", "line 1: "),
    "only members": ("key,member,label\n", "line 1: "),
    "negative": (HEAD + "x.tar,a,-1,5,0\n", "line 2: .*offset of the member 'a' of 'x.tar'.* -1"),
    "no number": (HEAD + "y.tar,a,0,5,0\nx.tar,a,0x5,5,0\n", "line 3: the offset '0x5'"),
    "empty": (HEAD + "x.tar,a,0,0,0\n", "line 2: .*length of the member 'a' of 'x.tar'.* not 0"),
    "huge": (HEAD + "x.tar,a,0,268435457,0\n", "line 2: the length of the member 'a'"),
    "no name": (HEAD + "x.tar,,0,5,0\n", "line 2: the name of a member of 'x.tar'"),
    "a strange encoding": (ENCODED + "x.tar,a,0,5,parquet:,0\n", "line 2: .*'parquet:'"),
    "no row": (ENCODED + "x.tar,a,0,-1,parquet:image,0\n", "line 2: .*'a' of 'x.tar'.* -1"),
    "overlap": (
        HEAD + "x.tar,c,20,5,0\ny.tar,a,0,9,0\nx.tar,a,10,11,0\n",
        r"'c' \(line 2\) and 'a' \(line 4\) of 'x.tar' \(bytes 20 to 25 and 10 to 21\)",
    ),
    "name twice": (
        HEAD + "x.tar,a,0,5,0\nx.tar,b,5,5,0\nx.tar,a,10,5,0\n",
        r"'a' \(line 2\) and 'a' \(line 4\) of 'x.tar'",
    ),
    "beyond its end": (HEAD + "y.tar,a,0,9,0\nx.tar,b,95,6,0\n", "line 3: .*'b' of 'x.tar' ends at 101"),
    "two versions": (VERSIONED + "x.tar,v,a,0,5,0\nx.tar,w,b,5,5,0\n", "'x.tar' .* 'v' and 'w'"),
    "not there": (HEAD + "z.tar,a,0,5,0\n", "'z.tar'"),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD)
def test_invalid_members_are_named(tmp_path, text, reason):
    for name in ("x.tar", "y.tar"):
        (tmp_path / name).write_bytes(bytes(100))
    with pytest.raises(SourceError, match=reason):
        lists(tmp_path, text)


def test_all_jsonl_rows_must_have_the_same_columns(tmp_path):
    (tmp_path / "x.tar").write_bytes(bytes(100))
    row = '{"key": "x.tar", "member": "a", "offset": 0, "length": 5, "label": 1, "encoding": null}\n'
    assert len(lists(tmp_path, row, "jsonl")) == 1
    for bad in ('{"key": "x.tar", "label": 1}\n', '{"key": "x.tar", "member": "b", "label": 1}\n'):
        with pytest.raises(SourceError, match="line 2: .*member"):
            lists(tmp_path, row + bad, "jsonl")
    for offset in ("true", "0.5"):
        with pytest.raises(SourceError, match="line 1: the offset "):
            lists(tmp_path, row.replace("0,", f"{offset},"), "jsonl")
