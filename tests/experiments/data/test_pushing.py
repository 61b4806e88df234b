"""Pushing a directory to a real S3 server: all of it, and what changed."""

import boto3
import pytest

from superdl.coordinator.catalog import list_source
from superdl.experiments.data import push
from superdl.main import main
from superdl.super_wire.errors import SourceError
from superdl.super_wire.objects import Fault, ObjectError
from superdl.super_wire.objects.s3 import S3Bucket
from tests.experiments.data.small_sets import write_images

NAMES = [f"train/{name}/{i}.JPEG" for name in ("ants", "bees") for i in range(20)] + [
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


def test_all_files_are_uploaded_with_their_types(directory, bucket, object_store):
    calls = []
    counts = push(directory, "s3://images/mine/", done=lambda *sizes: calls.append(sizes))
    total = sum(map(len, files_below(directory).values()))
    assert counts == {"files": len(NAMES), "sent": len(NAMES), "there": 0, "bytes": total}
    assert (len(calls), sum(size for size, _ in calls)) == (len(NAMES), total)
    assert {all_bytes for _, all_bytes in calls} == {total}
    assert files_below(bucket / "mine") == files_below(directory)
    assert list_source("s3://images/mine/train").labels.tolist() == [0] * 20 + [1] * 20
    # The default session keeps the credentials of an earlier test's environment.
    client = boto3.Session().client("s3", endpoint_url=object_store.url)
    types = [client.head_object(Bucket="images", Key=f"mine/{name}")["ContentType"] for name in NAMES]
    assert set(types) == {"image/jpeg", "image/png", "application/octet-stream"}
    client.close()


def test_only_missing_and_changed_files_are_sent_again(directory, bucket):
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


def test_the_command_prints_counts_as_json(directory, bucket, capsys):
    for sent in (len(NAMES), 0):
        assert main(["data", "push", str(directory), "s3://images/a", "--json", "--workers", "4"]) == 0
        printed = capsys.readouterr()
        assert f'"sent": {sent}, ' in printed.out
        assert printed.err == "", "a progress bar needs a terminal"
    assert main(["data", "push", str(directory), "s3://images/a", "--workers", "0"]) == 2


def test_after_20_failures_no_more_files_are_sent(directory, bucket, monkeypatch):
    tried = []

    def put(_, key, *__, **___):
        tried.append(key)
        raise ObjectError(Fault.REFUSED, "not allowed")

    for number in range(50):
        (directory / "train" / "ants" / f"{number}.txt").write_text("x")
    monkeypatch.setattr(S3Bucket, "put", put)
    with pytest.raises(SourceError, match="92 of 92 files are not in"):
        push(directory, "s3://images/mine", workers=1)
    assert len(tried) == 20
