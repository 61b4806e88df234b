"""S3's client on real sockets: kept connections, odd answers, retries, forks."""

from __future__ import annotations

import hashlib
import os
import weakref

import pytest

from superdl.super_wire.objects import Fault, ObjectError
from tests.fixtures.scripted_s3 import CLOSE, ETAG, bucket, ok, read, refusal, server

__all__ = ["bucket", "server"]


def test_a_connection_is_kept(server, bucket):
    server.script = [ok(b"one"), ok(b"x" * 300_000), ok(b""), ok(b"four")]
    assert [len(read(bucket)) for _ in range(4)] == [3, 300_000, 0, 4]
    assert (len(server.ports), server.lean_requests()) == (1, 4)


def test_a_kept_connection_that_was_closed_is_opened_anew(server, bucket):
    server.script = [ok(b"one"), CLOSE, ok(b"two")]
    assert [read(bucket), read(bucket)] == [b"one", b"two"]
    assert (len(server.ports), server.lean_requests()) == (2, 3)


def test_nothing_is_kept_of_connections_that_were_closed(server, bucket):
    server.script = [ok(b"one"), ok(b"two")]
    begun = bucket.begin("one.jpg", ETAG)
    route = weakref.ref(begun.route)
    assert bucket.read("one.jpg", version=ETAG, begun=begun, before=lambda _: bucket.close()) == b"one"
    assert begun.fileno() == -1
    del begun
    assert route() is None
    assert read(bucket) == b"two"


def test_a_server_that_says_close_is_heeded(server, bucket):
    server.script = [ok(b"one", more="Connection: close\r\n") + b"<cut>", ok(b"two")]
    assert [read(bucket), read(bucket)] == [b"one", b"two"]
    assert server.lean_requests() == 2


@pytest.mark.parametrize(
    "first",
    [
        refusal("503 Slow Down", "SlowDown"),
        refusal("408 Request Timeout", "RequestTimeout") + b"<cut>",
        refusal("500 Internal Server Error", "InternalError"),
        ok(b"x" * 50_000)[:30_000] + b"<cut>",
        b"HTTP/1.1 200 O<cut>",
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nPadding: " + b"x" * 100_000 + b"\r\n\r\n",
        CLOSE,
    ],
    ids=["slow down", "idled", "internal error", "cut body", "cut head", "no HTTP", "endless head", "closed"],
)
def test_what_may_pass_is_tried_again_and_the_next_one_is_read_the_lean_way(server, bucket, first):
    server.script = [first, ok(b"one"), ok(b"two")]
    asked = []
    assert read(bucket, before=asked.append) == b"one"
    assert len(asked) == 1  # also where the body was cut after there was room for it
    assert read(bucket) == b"two"
    assert server.lean_requests() == 2
    assert bucket.in_flight > 1


@pytest.mark.parametrize(
    "first",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none",
        ok(b"one", more="Content-Encoding: gzip\r\n"),
    ],
    ids=["no ETag", "encoded"],
)
def test_a_server_that_answers_in_its_own_way_is_read_in_the_general_way_from_then_on(server, bucket, first):
    server.script = [first, first, first]
    assert [bucket.read("one.jpg"), bucket.read("one.jpg")] == [b"one", b"one"]
    assert server.lean_requests() == 1
    assert (bucket.in_flight, bucket.begin("one.jpg", ETAG)) == (1, None)


@pytest.mark.parametrize(
    ("answer", "fault", "words"),
    [
        (
            refusal("404 Not Found", "NoSuchKey"),
            Fault.MISSING,
            "404 NoSuchKey: said the server; check",
        ),
        (refusal("404 Not Found", "NoSuchBucket"), Fault.MISSING, "404 NoSuchBucket"),
        (refusal("412 Precondition Failed", "PreconditionFailed"), Fault.CHANGED, "S3 has another version"),
        (refusal("416 Range", "InvalidRange"), Fault.CHANGED, "416 InvalidRange"),
        (refusal("400 Bad Request", "ExpiredToken"), Fault.REFUSED, "renew the AWS credentials"),
        (refusal("400 Bad Request", "InvalidToken"), Fault.REFUSED, "renew the AWS credentials"),
        (refusal("403 Forbidden", "RequestTimeTooSkewed"), Fault.REFUSED, "renew the AWS credentials"),
        (refusal("403 Forbidden", "InvalidObjectState"), Fault.REFUSED, "in an archive .*: restore it"),
        (refusal("403 Forbidden", "AccessDenied"), Fault.REFUSED, r"s3:GetObject on arn:aws:s3:::data/\*"),
        (
            refusal("403 Forbidden", ""),
            Fault.REFUSED,
            "S3 answered 403: said the server; allow s3:ListBucket",
        ),
        (
            refusal("400 Bad Request", "InvalidRequest"),
            Fault.FAILED,
            "S3 answered 400 InvalidRequest: said the",
        ),
        (
            refusal("307 Temporary Redirect", "x"),
            Fault.FAILED,
            "the bucket is in another region: set AWS_REGION",
        ),
        (b"HTTP/1.1 403 No\r\nContent-Length: 9\r\n\r\n<no>such<", Fault.REFUSED, "S3 answered 403; allow"),
        (ok(b"one", etag="1" * 32), Fault.CHANGED, f"its version is {'1' * 32}; the catalog lists {ETAG}"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Fault.CHANGED, "its version"),
    ],
)
def test_a_refusal_is_told_by_its_meaning_in_the_servers_words(server, bucket, answer, fault, words):
    server.script = [answer, answer, ok(b"two")]
    with pytest.raises(ObjectError, match=words) as caught:
        read(bucket)
    assert caught.value.fault is fault
    server.script = [ok(b"two")]
    assert read(bucket) == b"two"
    assert server.lean_requests() == 2  # a missing object says nothing about the next one


PART = ok(b"one", more="Content-Range: bytes 0-2/9\r\n").replace(b"200 OK", b"206 Partial Content")
CHUNKED = b'HTTP/1.1 200 OK\r\nETag: "%s"\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n'


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (PART, "answered 206, with a part of it"),
        (CHUNKED % ETAG.encode() + b"5\r\nhello\r\n0\r\n\r\n", "gives no size"),
    ],
    ids=["a part", "another length"],
)
def test_other_bytes_than_the_whole_object_are_refused(server, bucket, answer, words):
    server.script = [answer, answer]
    with pytest.raises(ObjectError, match=words) as caught:
        read(bucket)
    assert caught.value.fault is Fault.FAILED


@pytest.mark.parametrize("code", ["SlowDown", "InternalError"])
def test_attempts_are_bounded(server, bucket, code):
    for ask in (
        lambda: read(bucket),
        lambda: bucket.head("one.jpg"),
        lambda: next(bucket.pages("")),
        lambda: bucket.put("one.jpg", b"one"),
    ):
        server.script = [refusal("503 Slow Down", code)] * 10
        server.agents.clear()
        with pytest.raises(ObjectError) as caught:
            ask()
        assert caught.value.fault is Fault.UNAVAILABLE
        assert len(server.agents) == 3


def test_what_is_in_doubt_is_asked_again(server, bucket):
    """A PUT whose answer was lost is sent as a whole again; what S3 calls faulty, and is not, too."""
    server.script = [CLOSE, refusal("400 Bad Request", "RequestTimeout"), ok(b"")]
    bucket.put("a b.bin", b"x" * 10**6, content_type="image/png", md5="bWQ1")
    assert server.asked == ["PUT /data/a%20b.bin"] * 3
    assert set(server.bodies) == {b"x" * 10**6}
    sent = server.headers[-1]
    assert (sent["content-type"], sent["content-md5"]) == ("image/png", "bWQ1")
    assert sent["x-amz-content-sha256"] == hashlib.sha256(b"x" * 10**6).hexdigest()


def test_after_a_fork_connections_are_new(server, bucket):
    server.script = [ok(b"one"), ok(b"two"), ok(b"three")]
    assert read(bucket) == b"one"
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.write(writing, bytes(read(bucket)))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 9) == b"two"
    assert read(bucket) == b"three"
    assert len(server.ports) == 2  # the child's own, and that of before
    os.close(reading)
    os.close(writing)
