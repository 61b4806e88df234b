"""Objects are read over real HTTP in exactly the listed version; refusals become the right outcome.

All of it holds for the lean client (with boto3 behind it) and for boto3 alone.
"""

from __future__ import annotations

import hashlib
import re

import pytest

from superdl.lambda_prefetch.s3_source import S3Source, refused_by_s3
from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.super_wire.request import Outcome
from tests.fixtures.object_store import ObjectStore, object_store
from tests.fixtures.valkey import free_port

__all__ = ["object_store"]

LIMIT = 1000


@pytest.fixture(params=["lean", "boto3"])
def read(request):
    """Reads one object with one of the clients."""

    def one(url, key, version, bucket="data", reserve=lambda _: None):
        source = S3Source(bucket, endpoint_url=url, lean=request.param == "lean")
        return source.read(key, version, limit_bytes=LIMIT, reserve=reserve)

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


def test_an_object_is_read_in_its_version_and_its_absence_is_an_outcome(read, failure, s3, moto_url):
    asked, key = [], "cats/ö ne.jpg"
    version, large = put(s3, key, b"one"), put(s3, "big.jpg", b"x" * (LIMIT + 1))
    assert read(moto_url, key, version, reserve=asked.append) == b"one"
    found = failure(moto_url, "big.jpg", large, reserve=asked.append)
    assert (found.outcome, found.reason) == (Outcome.TOMBSTONE, "too_large")
    assert asked == [3]  # for room, before its bytes; for none where it is too large
    put(s3, key, b"two")
    assert failure(moto_url, key, version).outcome is Outcome.CHANGED
    found = failure(moto_url, "none.jpg", "0" * 32)
    assert found.outcome is Outcome.MISSING
    assert "NoSuchKey" in found.why
    assert failure(moto_url, "none.jpg", "0" * 32, bucket="no-such-bucket").outcome is Outcome.MISSING


def test_no_credentials(failure, s3, moto_url, monkeypatch, tmp_path):
    version = put(s3, "one.jpg", b"one")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    # Another spelling of the address, so that this process's client for the first one is not reused.
    found = failure(moto_url + "/", "one.jpg", version)
    assert found.outcome is Outcome.REFUSED
    assert "no credentials" in found.why


def test_a_server_that_is_not_there_fails_within_bounds(failure, s3):
    found = failure(f"http://127.0.0.1:{free_port()}", "one.jpg", "0" * 32)
    assert found.outcome is Outcome.UNAVAILABLE
    assert "Could not connect" in found.why
    assert "gateway endpoint" in found.why


@pytest.fixture
def rclone(object_store: ObjectStore):
    """rclone's S3 server: it checks signatures and ignores If-Match."""
    (object_store.directory / "data").mkdir()
    (object_store.directory / "data" / "one.jpg").write_bytes(b"one")
    return object_store.url, hashlib.md5(b"one", usedforsecurity=False).hexdigest()


def test_a_server_cannot_pass_another_version_and_its_refusal_is_told(read, failure, rclone, monkeypatch):
    url, version = rclone
    assert read(url, "one.jpg", version) == b"one"
    found = failure(url, "one.jpg", "0" * 32)
    assert found.outcome is Outcome.CHANGED
    assert version in found.why
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    found = failure(url + "/", "one.jpg", version)
    assert found.outcome is Outcome.REFUSED
    assert "403" in found.why


def answer(status, code):
    return {"Error": {"Code": code, "Message": "words"}, "ResponseMetadata": {"HTTPStatusCode": status}}


@pytest.mark.parametrize(
    ("status", "code", "outcome", "remedy"),
    [
        (400, "ExpiredToken", Outcome.REFUSED, "renew the function's credentials"),
        (400, "InvalidToken", Outcome.REFUSED, "renew the function's credentials"),
        (403, "RequestTimeTooSkewed", Outcome.REFUSED, "renew the function's credentials"),
        (403, "InvalidObjectState", Outcome.REFUSED, "lies in an archive .*: restore it"),
        (403, "AccessDenied", Outcome.REFUSED, r"role do s3:GetObject on arn:aws:s3:::photos/\*"),
        (403, "", Outcome.REFUSED, "role do s3:GetObject"),
        (400, "AuthorizationHeaderMalformed", Outcome.REFUSED, "in another region"),
        (400, "InvalidRequest", Outcome.SOURCE_ERROR, "S3 answered 400 InvalidRequest: words$"),
        (404, "NoSuchKey", Outcome.MISSING, "S3 answered 404 NoSuchKey: words$"),
        (503, "SlowDown", Outcome.UNAVAILABLE, "S3 answered 503 SlowDown: words$"),
    ],
)
def test_the_remedy_is_that_of_the_code(status, code, outcome, remedy):
    failure = refused_by_s3(answer(status, code), "photos", "us-east-1")
    assert failure.outcome == outcome
    assert re.search(remedy, failure.why)


def test_another_version_is_told_in_words_of_our_own():
    failure = refused_by_s3(answer(412, "PreconditionFailed"), "photos", "us-east-1")
    assert failure.outcome is Outcome.CHANGED
    assert "PreconditionFailed" not in failure.why
