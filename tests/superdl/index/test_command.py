"""``superdl index``: the order and place of its output, its errors, and sources in S3."""

import json

import pytest
from pyarrow import parquet

from superdl.index import Choices, build_index
from superdl.main import main
from superdl.super_wire.errors import SourceError
from superdl.super_wire.objects.directory import Directory
from superdl.super_wire.objects.s3 import S3Bucket
from tests.superdl.index.shards import content_of, index, refused, tar_of, tfrecord_of, write_files


@pytest.fixture
def source(tmp_path):
    """Shards of two kinds; "b.tar" comes before "b/..." by its bytes."""
    directory = tmp_path / "source"
    (directory / "b").mkdir(parents=True)
    tar_of(directory / "b.tar", {"x/2.jpg": b"two", "x/10.jpg": b"ten"})
    for shard in range(20):
        tar_of(directory / "b" / f"{shard:02d}.tar", {f"y/{shard}.jpg": bytes(shard)})
    tfrecord_of(directory / "a.tfrecord", [{"image": b"image", "label": b"z"}])
    (directory / "README.md").write_text("no shard")
    return directory


def test_rows_come_in_order_of_keys_and_offsets_each_time(source, tmp_path, capsys):
    rows = index(source, tmp_path / "list.jsonl")
    keys = [row["key"] for row in rows]
    assert keys == ["a.tfrecord", "b.tar", "b.tar", *(f"b/{shard:02d}.tar" for shard in range(1, 20))]
    assert [row["member"] for row in rows[:4]] == ["0", "x/2.jpg", "x/10.jpg", "y/1.jpg"]
    one = (tmp_path / "list.jsonl").read_bytes()
    assert list(rows[0]) == ["key", "member", "offset", "length", "encoding", "label", "version"]
    capsys.readouterr()
    assert index(source, tmp_path / "list.jsonl", "--force", "--json") == rows
    assert (tmp_path / "list.jsonl").read_bytes() == one
    told = capsys.readouterr()
    summary = json.loads(told.out)
    assert summary.pop("seconds") >= 0
    assert summary == {
        "out": str(tmp_path / "list.jsonl"),
        "samples": 22,
        "shards": 22,
        "passed_over": 1,
        "empty": 1,
        "incomplete": 0,
        "unlabelled": 0,
        "formats": {"tfrecord": 1, "tar": 21},
        "classes": {"z": 1, "x": 2, "y": 19},
    }
    assert "22 samples in 22 shards (21 tar, 1 tfrecord)" in told.err
    some = index(source, tmp_path / "list.jsonl", "--only", "b/0[12]*")
    assert [row["key"] for row in some] == ["b/01.tar", "b/02.tar"]
    assert main(["index", str(source), "-o", str(tmp_path / "list.parquet")]) == 0
    assert parquet.read_table(tmp_path / "list.parquet").to_pylist() == rows


def test_labels_keep_their_kind(tmp_path, capsys):
    source = tmp_path / "source"
    source.mkdir()
    tar_of(source / "a.tar", {"7/1.jpg": b"1", "8/1.jpg": b"1"})
    assert [row["label"] for row in index(source, tmp_path / "list.jsonl")] == ["7", "8"]
    (source / "a.tar").unlink()
    tfrecord_of(source / "b.tfrecord", [{"image": b"1", "label": 7}])
    tfrecord_of(source / "c.tfrecord", [{"image": b"1", "label": 0.5}])
    assert [row["label"] for row in index(source, tmp_path / "list.jsonl")] == [7, 0.5]
    assert ".jsonl" in refused(capsys, source, tmp_path / "other.parquet")


def test_a_list_is_replaced_when_asked_and_whole_or_not_at_all(source, tmp_path, capsys):
    out = source / "list.jsonl"  # below the source itself
    words = ["index", str(source), "-o", str(out)]
    assert main(words) == 0
    before = out.read_bytes()
    assert main(words) == 2
    assert "--force" in capsys.readouterr().err
    with (source / "b" / "19.tar").open("r+b") as file:
        file.truncate(700)
    assert main([*words, "--force"]) == 1
    assert f"superdl index: ShardError: {source}/b/19.tar: " in capsys.readouterr().err
    assert out.read_bytes() == before
    (source / "b" / "19.tar").unlink()
    assert main([*words, "--force"]) == 0
    assert len(out.read_bytes().splitlines()) == len(before.splitlines()) - 1
    assert not list(source.glob(".list*"))
    # A list in Parquet, which looks like a shard, is passed over by the command that replaces it.
    for _ in range(2):
        assert main(["index", str(source), "-o", str(source / "list.parquet"), "--force"]) == 0


def test_a_file_that_changes_while_it_is_read_is_told(source, tmp_path, monkeypatch):
    read = Directory.read

    def change_and_read(self, key, **how):
        (source / key).write_bytes((source / key).read_bytes() + bytes(512))
        return read(self, key, **how)

    monkeypatch.setattr(Directory, "read", change_and_read)
    with pytest.raises(SourceError, match=r"\.tar changed while it was being read"):
        build_index([str(source)], str(tmp_path / "list.jsonl"), Choices(only="b.tar"))


def test_a_bucket_gives_what_a_directory_does_by_few_requests(object_store, source, tmp_path, monkeypatch):
    bucket = object_store.directory / "data"
    bucket.mkdir()
    source.rename(bucket / "train")
    tar_of(bucket / "train" / "large.tar", {f"x/{place}.jpg": bytes(3_000_000 + place) for place in range(4)})
    fetched = []
    read = S3Bucket.read

    def counted(self, key, *, span, **how):
        fetched.append((key.removeprefix("train/"), span.size_bytes))
        return read(self, key, span=span, **how)

    monkeypatch.setattr(S3Bucket, "read", counted)
    rows = index(bucket / "train", tmp_path / "local.jsonl")
    found = index("s3://data/train", tmp_path / "list.jsonl")
    versions = {row.pop("version") for row in found}
    assert len(versions) == 22
    assert not any('"' in version or "-" in version for version in versions)
    for row in rows:
        row.pop("version")
    assert found == rows
    assert [content_of(row, bucket / "train") for row in found[1:3]] == [b"two", b"ten"]
    # One request for a small shard; of a large one, a block and then headers alone.
    assert max(sum(key == one for one, _ in fetched) for key, _ in fetched if key != "large.tar") == 1
    assert sum(length for key, length in fetched if key == "large.tar") < 9_000_000

    assert main(["index", "s3://data/train", "-o", "s3://data/lists/list.jsonl"]) == 0
    assert len((bucket / "lists" / "list.jsonl").read_text().splitlines()) == len(rows)
    assert main(["index", "s3://data/train", "-o", "s3://data/lists/list.jsonl"]) == 2
    assert main(["index", "s3://nowhere/train", "-o", str(tmp_path / "other.jsonl")]) == 1


def test_indexes_of_others_beside_shards_are_passed_over_and_counted(tmp_path, capsys):
    source = tmp_path / "source"
    source.mkdir()
    tar_of(source / "b.tar", {"x/1.jpg": b"1"})
    tfrecord_of(source / "a.tfrecord", [{"image": b"image", "label": b"z"}])
    plain = index(source, tmp_path / "list.jsonl")
    shards = [{"url": "b.tar", "md5sum": "0", "nsamples": 1, "filesize": 10240}]
    told = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}
    others = {
        "a.idx": "0 82\n",  # tfrecord2idx
        "idx_files/train.idx": "13\t0\n8\t171296\n",  # rec2idx
        "b.tar.index": b"\x80\x04never unpickled",  # wids
        "shardindex.json": json.dumps(told, indent=2),
        "index.json": json.dumps(told),
        "b.idx": "v1.2 1\njpg 512 1 x/1.jpg\n",  # wds2idx of DALI
        "notes.json": '{"shards are": "few"}',
        "README.md": "no shard",
    }
    write_files(source, others)
    capsys.readouterr()
    assert index(source, tmp_path / "list.jsonl", "--json") == plain
    assert json.loads(capsys.readouterr().out)["passed_over"] == len(others)
