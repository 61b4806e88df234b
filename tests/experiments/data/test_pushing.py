"""Pushing a directory to a real S3 server: whole, resumed, with failures named."""

from __future__ import annotations

import os

import boto3
import pytest

from superdl.coordinator.catalog import list_source
from superdl.experiments.data import push, pushing
from superdl.main import main
from superdl.super_wire.errors import ConfigError, SourceError, SourceNotFoundError
from tests.experiments.data.small_sets import write_images

NAMES = [f"train/{one}/{i}.JPEG" for one in ("ants", "bees") for i in range(20)] + [
    "val/ants/0.png",
    "readme",
]


@pytest.fixture
def directory(tmp_path):
    write_images(tmp_path / "set", NAMES[:-1])
    (tmp_path / "set" / "readme").write_text("hello")
    (tmp_path / "set" / "empty").mkdir()
    return tmp_path / "set"


@pytest.fixture
def bucket(object_store):
    (object_store.directory / "images").mkdir()
    return object_store.directory / "images"


def files_below(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_all_files_arrive_with_their_types_and_are_a_source(directory, bucket, object_store):
    told = []
    counts = push(directory, "s3://images/mine/", done=lambda *sizes: told.append(sizes))
    total = sum(map(len, files_below(directory).values()))
    assert counts == {"files": len(NAMES), "sent": len(NAMES), "there": 0, "bytes": total}
    assert (len(told), sum(size for size, _ in told)) == (len(NAMES), total)
    assert {every for _, every in told} == {total}
    assert files_below(bucket / "mine") == files_below(directory)
    assert list_source("s3://images/mine/train").labels.tolist() == [0] * 20 + [1] * 20
    # In a session of its own: the default one keeps the credentials that another test's environment had.
    client = boto3.Session().client("s3", endpoint_url=object_store.url)
    types = [client.head_object(Bucket="images", Key=f"mine/{name}")["ContentType"] for name in NAMES]
    assert set(types) == {"image/jpeg", "image/png", "application/octet-stream"}
    client.close()


def test_again_it_sends_only_what_is_not_there_or_differs(directory, bucket):
    push(directory, "s3://images/mine")
    (bucket / "mine" / NAMES[0]).unlink()
    other = bucket / "mine" / NAMES[1]
    other.write_bytes(bytes(len(other.read_bytes())))  # of the same size
    (bucket / "mine" / "readme").write_text("hell")
    before = {name: (bucket / "mine" / name).stat().st_mtime_ns for name in NAMES[2:-1]}
    counts = push(directory, "s3://images/mine", workers=2)
    assert (counts["sent"], counts["there"]) == (3, len(NAMES) - 3)
    assert files_below(bucket / "mine") == files_below(directory)
    assert {name: (bucket / "mine" / name).stat().st_mtime_ns for name in NAMES[2:-1]} == before


def test_what_cannot_be_sent_is_named_and_the_rest_is_sent(directory, bucket, capsys, monkeypatch):
    monkeypatch.setattr(pushing, "_MOST_BYTES", 10_000)
    (directory / "train" / "ants" / "large.JPEG").write_bytes(bytes(10_001))
    (directory / os.fsdecode(b"caf\xe9.JPEG")).write_bytes(b"x")  # no UTF-8
    (directory / "gone").symlink_to("nowhere")
    with pytest.raises(SourceError, match="gone cannot be read: No such file"):
        push(directory, "s3://images")
    (directory / "gone").unlink()
    assert main(["data", "push", str(directory), "s3://images"]) == 1
    told = capsys.readouterr()
    assert f"2 of {len(NAMES) + 2} files are not in s3://images" in told.err
    assert "large.JPEG: it has over 10,000 bytes" in told.err
    assert files_below(bucket).keys() == set(NAMES)


@pytest.mark.usefixtures("bucket")
def test_it_gives_up_where_everything_fails(directory, monkeypatch):
    with pytest.raises(SourceError, match="s3://absent/x/ cannot be listed: .*NoSuchBucket.*; pushing takes"):
        push(directory, "s3://absent/x")
    monkeypatch.setattr(pushing, "_MOST_BYTES", 1)
    with pytest.raises(SourceError, match=f"{len(NAMES)} of {len(NAMES)} files are not in") as refused:
        push(directory, "s3://images/x", workers=1)
    assert str(refused.value).count("it has over 1 bytes") == 20


def test_what_would_be_left_out_is_refused(directory, tmp_path):
    with pytest.raises(ConfigError, match=r"pushed to s3://bucket/prefix, not '/tmp/x'"):
        push(directory, "/tmp/x")
    with pytest.raises(SourceNotFoundError, match="there is no directory"):
        push(tmp_path / "absent", "s3://images")
    os.mkfifo(directory / "pipe")
    with pytest.raises(SourceError, match="pipe is no file"):
        push(directory, "s3://images")
    (directory / "pipe").unlink()
    (directory / "more").symlink_to(tmp_path)
    with pytest.raises(SourceError, match="more is a link to a directory"):
        push(directory, "s3://images")


def test_the_command_tells_as_json(directory, bucket, capsys):
    for sent in (len(NAMES), 0):
        assert main(["data", "push", str(directory), "s3://images/a", "--json", "--workers", "4"]) == 0
        told = capsys.readouterr()
        assert f'"sent": {sent}, ' in told.out
        assert told.err == "", "a bar is for terminals"
    assert main(["data", "push", str(directory), "s3://images/a", "--workers", "0"]) == 2
