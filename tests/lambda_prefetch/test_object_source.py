"""Objects are read over real HTTP in exactly the listed version; refusals become the right outcome."""

from __future__ import annotations

import hashlib

import pytest

from superdl.lambda_prefetch.sources import SampleFailedError, read_object
from superdl.super_wire.objects import open_bucket
from superdl.super_wire.request import Outcome
from tests.fixtures.object_store import ObjectStore, object_store
from tests.fixtures.ports import free_port

__all__ = ["object_store"]

LIMIT = 1000


@pytest.fixture
def read():
    """Reads one object."""

    def one(key, version, bucket="data", reserve=lambda _: None):
        return read_object(open_bucket(f"s3://{bucket}"), key, version, limit_bytes=LIMIT, reserve=reserve)

    return one


@pytest.fixture
def failure(read):
    """How reading one object fails."""

    def one(*arguments, **options):
        with pytest.raises(SampleFailedError) as caught:
            read(*arguments, **options)
        return caught.value

    return one


def put(s3, key, body):
    etag: str = s3.put_object(Bucket="data", Key=key, Body=body)["ETag"]
    return etag.strip('"')


def test_an_object_is_read_in_its_version_and_its_absence_is_an_outcome(read, failure, s3):
    asked, key = [], "cats/ö ne.jpg"
    version, large = put(s3, key, b"one"), put(s3, "big.jpg", b"x" * (LIMIT + 1))
    assert read(key, version, reserve=asked.append) == b"one"
    found = failure("big.jpg", large, reserve=asked.append)
    assert (found.outcome, found.reason) == (Outcome.TOMBSTONE, "too_large")
    assert asked == [3]  # for room, before its bytes; for none where it is too large
    put(s3, key, b"two")
    assert failure(key, version).outcome is Outcome.CHANGED
    found = failure("none.jpg", "0" * 32)
    assert found.outcome is Outcome.MISSING
    assert "NoSuchKey" in found.why
    assert failure("none.jpg", "0" * 32, bucket="no-such-bucket").outcome is Outcome.MISSING


def test_no_credentials(failure, s3, monkeypatch, tmp_path):
    version = put(s3, "one.jpg", b"one")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    found = failure("one.jpg", version)
    assert found.outcome is Outcome.REFUSED
    assert "no usable AWS credentials" in found.why


def test_a_server_that_is_not_there_fails_within_bounds(failure, s3, monkeypatch):
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    found = failure("one.jpg", "0" * 32)
    assert found.outcome is Outcome.UNAVAILABLE
    assert "gateway endpoint" in found.why


@pytest.fixture
def rclone(object_store: ObjectStore):
    """rclone's S3 server: it checks signatures and ignores If-Match."""
    (object_store.directory / "data").mkdir()
    (object_store.directory / "data" / "one.jpg").write_bytes(b"one")
    return hashlib.md5(b"one", usedforsecurity=False).hexdigest()


def test_a_server_cannot_pass_another_version_and_its_refusal_is_told(read, failure, rclone, monkeypatch):
    assert read("one.jpg", rclone) == b"one"
    found = failure("one.jpg", "0" * 32)
    assert found.outcome is Outcome.CHANGED
    assert rclone in found.why
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    found = failure("one.jpg", rclone)
    assert found.outcome is Outcome.REFUSED
    assert "403" in found.why
