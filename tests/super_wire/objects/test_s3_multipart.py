"""Objects that go to S3 in parts are whole there, or not there at all."""

from __future__ import annotations

import os

import pytest

from superdl.super_wire.objects import Fault, ObjectError
from superdl.super_wire.objects.s3 import open_s3
from superdl.super_wire.objects.s3_multipart import put_in_parts
from tests.fixtures.object_store import object_store
from tests.fixtures.scripted_s3 import bucket, ok, refusal, server

__all__ = ["bucket", "object_store", "server"]


def test_an_object_in_parts_is_whole_or_not_there(object_store, tmp_path):
    (object_store.directory / "data").mkdir()
    bucket = open_s3("data")
    (tmp_path / "large").write_bytes(os.urandom(11 * 2**20))
    with (tmp_path / "large").open("rb") as file:
        put_in_parts(bucket.send, "a/large ü", file, "image/png", part_bytes=5 * 2**20)
        assert bucket.read("a/large ü") == (tmp_path / "large").read_bytes()
        with pytest.raises(ObjectError) as caught:
            put_in_parts(open_s3("none").send, "x", file, "image/png", part_bytes=5 * 2**20)
    assert caught.value.fault is Fault.MISSING


def test_parts_that_cannot_be_sent_are_given_up(server, bucket, tmp_path):
    started = ok(b"<R><UploadId>u+1</UploadId></R>")
    (tmp_path / "large").write_bytes(b"x" * 9)
    for script in (
        [started, ok(b""), refusal("403 Forbidden", "AccessDenied"), ok(b"")],
        [started, ok(b""), ok(b""), ok(b"<Error><Code>InternalError</Code></Error>"), ok(b"")],
    ):
        server.script, server.asked[:] = script, []
        with (
            (tmp_path / "large").open("rb") as file,
            pytest.raises(ObjectError, match="AccessDenied|Internal"),
        ):
            put_in_parts(bucket.send, "large", file, "image/png", part_bytes=5)
        assert server.asked[0] == "POST /data/large?uploads="
        assert server.asked[1] == "PUT /data/large?partNumber=1&uploadId=u%2B1"
        assert server.asked[-1] == "DELETE /data/large?uploadId=u%2B1"


def test_a_server_that_takes_no_parts_is_asked_for_nothing_more(server, bucket, tmp_path):
    """Without an UploadId it could take a part for the object, and the end of the upload for its removal."""
    (tmp_path / "large").write_bytes(b"x" * 9)
    server.script = [ok(b"")]
    with (tmp_path / "large").open("rb") as file, pytest.raises(ObjectError, match="names no UploadId"):
        put_in_parts(bucket.send, "large", file, "image/png", part_bytes=5)
    assert server.asked == ["POST /data/large?uploads="]


def test_white_space_comes_while_parts_are_joined(server, bucket, tmp_path):
    (tmp_path / "large").write_bytes(b"x" * 4)
    joined = ok(b' \n <?xml version="1.0"?><R><ETag>e</ETag></R>')
    server.script = [ok(b"<R><UploadId>u</UploadId></R>"), ok(b""), joined]
    with (tmp_path / "large").open("rb") as file:
        put_in_parts(bucket.send, "large", file, "image/png", part_bytes=5)
    assert len(server.asked) == 3
