"""The best checkpoint in a bucket, on a real S3 server, and what stays where it cannot be brought there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from superdl.experiments.training.checkpoints import bring_best
from superdl.super_wire.errors import SourceError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def best(tmp_path: Path) -> Path:
    path = tmp_path / "best.pt"
    path.write_bytes(b"weights" * 9999)
    return path


@pytest.mark.parametrize(("prefix", "key"), [("", "run-1/best.pt"), ("/a/b/", "a/b/run-1/best.pt")])
def test_it_comes_into_a_bucket_whole(object_store, best, prefix, key):
    (object_store.directory / "models").mkdir()
    assert bring_best(best, f"s3://models{prefix}", "run-1") == f"s3://models/{key}"
    assert (object_store.directory / "models" / key).read_bytes() == best.read_bytes()


def test_an_upload_that_fails_names_the_file_that_stays(object_store, best, monkeypatch):
    with pytest.raises(SourceError, match=r"could not be brought to s3://absent/run-1/best\.pt: "):
        bring_best(best, "s3://absent", "run-1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    (object_store.directory / "models").mkdir()
    with pytest.raises(SourceError, match=f"It is in {best}"):
        bring_best(best, "s3://models", "run-1")
    (best.parent / "file").write_text("x")
    with pytest.raises(SourceError, match=f"It is in {best}"):
        bring_best(best, str(best.parent / "file"), "run-1")
    assert best.is_file()
