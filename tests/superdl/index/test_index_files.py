"""Index files beside shards: DALI's gives what the tar itself does, or is not used; others pass."""

from __future__ import annotations

import json
import random
import re
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.index.archives import indexed_members, tar_members
from superdl.index.building import index_of_tar
from superdl.index.choices import Choices
from superdl.index.shard import ShardError
from superdl.main import main
from superdl.super_wire.objects.s3 import S3Bucket
from tests.hostile.fuzz_wire import mutate
from tests.superdl.index.shards import HeldShard, dali_index_of, index, tar_of, tfrecord_of

SIZES = st.lists(st.sampled_from([0, 1, 511, 512, 513, 70_000]), min_size=1, max_size=9)


def files_of(sizes, *, labelled=True, long=False):
    files = {}
    for place, size in enumerate(sizes):
        name = f"{'cat' if place % 2 else 'dog'}/{'long/' * 30 * long}{place:03d}"
        files[f"{name}.jpg"] = random.Random(place).randbytes(size)
        if labelled:
            files[f"{name}.cls"] = str(place).encode()
    return files


@given(
    sizes=SIZES,
    labelled=st.booleans(),
    long=st.booleans(),
    form=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    words=st.sampled_from([(), ("--labels", "folder"), ("--labels", "none")]),
)
def test_a_tar_is_read_by_its_index_as_without(sizes, labelled, long, form, words, tmp_path_factory):
    source, out = tmp_path_factory.mktemp("shards"), tmp_path_factory.mktemp("out") / "list.jsonl"
    tar = tar_of(source / "train-0.b.tar", files_of([*sizes, 1], labelled=labelled, long=long), form)
    rows = index(source, out, *words)
    (source / "train-0.idx").write_bytes(dali_index_of(tar))
    assert index(source, out, *words) == rows


def test_hidden_files_and_links_that_the_index_leaves_out_may_follow(tmp_path):
    tar = tar_of(tmp_path / "a.tar", {"x/1.jpg": b"1", "x/.hidden": b"2"})
    (tmp_path / "a.idx").write_bytes(dali_index_of(tar))
    assert [row["member"] for row in index(tmp_path, tmp_path / "list.jsonl")] == ["x/1.jpg"]


def test_of_a_large_tar_in_a_bucket_little_is_fetched(object_store, tmp_path, monkeypatch):
    bucket = object_store.directory / "data"
    for folder in ("plain", "indexed"):
        (bucket / folder).mkdir(parents=True)
        tar = tar_of(bucket / folder / "a.tar", {f"x/{place:04d}.jpg": bytes(60_000) for place in range(500)})
    (bucket / "indexed" / "a.idx").write_bytes(dali_index_of(tar))
    fetched = []
    read = S3Bucket.read

    def counted(self, key, *, span, **how):
        fetched.append(span.size_bytes)
        return read(self, key, span=span, **how)

    monkeypatch.setattr(S3Bucket, "read", counted)
    rows = index("s3://data/plain", tmp_path / "list.jsonl")
    assert sum(fetched) > 30_000_000
    fetched.clear()
    assert index("s3://data/indexed", tmp_path / "list.jsonl") == rows
    assert len(fetched) <= 6
    assert sum(fetched) < 400_000


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("a/b.c.tar", "a/b.idx"),
        ("a/b.c.tar", "a/b.c.idx"),
        ("a/b.c.tar", "a/b.c.tar.idx"),
        (".b.tar", ".b.idx"),
        ("a/b.c.tar", None),
    ],
)
def test_an_index_has_the_name_of_its_tar(key, found):
    assert index_of_tar(key, {found, "b.idx", "a/c.idx"}) == found


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(lambda text: text.replace("v1.2", "v1.1"), id="without names"),
        pytest.param(
            lambda text: text.replace("x/2.jpg", "x/\\303\\244.jpg"), id="names as GNU tar tells them"
        ),
    ],
)
def test_where_the_index_has_no_names_the_tar_is_read(content, tmp_path):
    tar = tar_of(tmp_path / "a.tar", {"x/1.jpg": b"1", "x/2.jpg": b"2"})
    rows = index(tmp_path, tmp_path / "list.jsonl")
    (tmp_path / "a.idx").write_text(content(dali_index_of(tar).decode()))
    assert index(tmp_path, tmp_path / "list.jsonl") == rows


FILES = files_of([600, 70_000, 3, 600, 600], labelled=False)


def _appended(source):
    tar_of(source / "a.tar", FILES | {"dog/9.jpg": b"more"})


def _shorter(source):
    tar_of(source / "a.tar", dict(list(FILES.items())[:3]))


def _other_names(source):
    tar_of(source / "a.tar", {name.replace("0", "1"): content for name, content in FILES.items()})


def _other_order(source):
    tar_of(source / "a.tar", dict(reversed(FILES.items())))


def _cut_off(source):
    (source / "a.tar").write_bytes((source / "a.tar").read_bytes()[:72_000])


def _without_end_mark(source):
    with tarfile.open(source / "a.tar") as archive:
        end = archive.getmembers()[-1].offset_data + 600
    (source / "a.tar").write_bytes((source / "a.tar").read_bytes()[:end])


def _misread(source):
    """Of a long name ``wds2idx`` tells where its own header lies."""
    tar = tar_of(source / "a.tar", files_of([600, 600], labelled=False, long=True) | FILES)
    lines = dali_index_of(tar).decode()
    for offset in re.findall(r"jpg ([0-9]+) 600 .*long", lines):
        lines = lines.replace(f"jpg {offset} ", f"jpg {int(offset) - 1024} ")
    (source / "a.idx").write_text(lines)


@pytest.mark.parametrize(
    "spoil", [_appended, _shorter, _other_names, _other_order, _cut_off, _without_end_mark, _misread]
)
def test_an_index_of_another_tar_is_not_used(spoil, tmp_path):
    source, words = tmp_path / "source", ["-o", str(tmp_path / "list.jsonl"), "--force"]
    source.mkdir()
    (source / "a.idx").write_bytes(dali_index_of(tar_of(source / "a.tar", FILES)))
    spoil(source)
    code = main(["index", str(source), *words])
    rows = code or (tmp_path / "list.jsonl").read_bytes()
    (source / "a.idx").unlink()
    assert main(["index", str(source), *words]) == code
    assert rows == (code or (tmp_path / "list.jsonl").read_bytes())
    assert (code != 0) is (spoil in {_cut_off, _without_end_mark})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"v1.2",
        b"v1.2 0\n",
        b"v2.0 1\njpg 512 1 x/1.jpg\n",
        b"v1.2 2\njpg 512 1 x/1.jpg\n",
        b"v1.2 1\njpg 512 1 x/1 2.jpg\n",
        b"v1.2 1\n\n",
        b"v1.2 1\njpg -512 1 x/1.jpg\n",
        b"v1.2 1\njpg 512 " + b"9" * 5000 + b" x/1.jpg\n",
        b"v1.2 1\npng 512 1 x/1.jpg\n",
        b"v1.2 1\njpg 0 1 x/1.jpg\n",
        b"v1.2 1\njpg 513 1 x/1.jpg\n",
        b"v1.2 1\njpg 512 999999999999999999 x/1.jpg\n",
        b"v1.2 1\njpg 999999999999999488 1 x/1.jpg\n",
        b"v1.2 1\njpg 512 1 x/1.jpg jpg 512 1 x/1.jpg\n",
        b"v1.2 1\njpg 512 2 x/1.jpg\n",
    ],
)
def test_what_is_no_index_is_not_used(content, tmp_path):
    tar = HeldShard(tar_of(tmp_path / "a.tar", {"x/1.jpg": b"1"}).read_bytes())
    assert indexed_members(tar, HeldShard(content, "a.idx")) == []


@given(st.integers(0, 2**32), st.booleans())
def test_spoilt_bytes_never_lead_out_of_the_tar(tmp_path_factory, seed, whole):
    chance = random.Random(seed)
    path = tar_of(tmp_path_factory.getbasetemp() / "spoilt.tar", files_of([3, 600, 31, 0, 5000]))
    good, content = dali_index_of(path), path.read_bytes()
    index_file = HeldShard(mutate(chance, good), "a.idx")
    shard = HeldShard(content if whole else mutate(chance, content))
    try:
        members = list(tar_members(shard, Choices(labels="none"), index_file))
    except ShardError:
        return
    assert all(0 < member.offset <= member.offset + member.length <= shard.size for member in members)
    assert all(end <= shard.size for _, end in shard.fetched)


def test_index_files_that_say_no_more_than_shards_are_passed_over_and_told(tmp_path, capsys):
    source = tmp_path / "source"
    (source / "idx_files").mkdir(parents=True)
    tar = tar_of(source / "b.tar", {"x/1.jpg": b"1"})
    tfrecord_of(source / "a.tfrecord", [{"image": b"image", "label": b"z"}])
    plain = index(source, tmp_path / "list.jsonl")
    (source / "a.idx").write_text("0 82\n")  # tfrecord2idx
    (source / "idx_files" / "train.idx").write_text("13\t0\n8\t171296\n")  # rec2idx
    (source / "b.tar.index").write_bytes(b"\x80\x04never unpickled")  # wids
    shards = [{"url": "b.tar", "md5sum": "0", "nsamples": 1, "filesize": 10240}]
    told = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}
    (source / "shardindex.json").write_text(json.dumps(told, indent=2))
    (source / "index.json").write_text(json.dumps(told))
    (source / "b.idx").write_bytes(dali_index_of(tar))
    (source / "notes.json").write_text('{"shards are": "few"}')
    (source / "README.md").write_text("no shard")
    capsys.readouterr()
    assert index(source, tmp_path / "list.jsonl", "--json") == plain
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert (summary["index_files"], summary["passed_over"]) == (4, 4)
    assert "4 other objects passed over; 4 index files beside shards" in captured.err
