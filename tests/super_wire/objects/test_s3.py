"""The S3 client against a scripted server: requests, unusual responses, retries and forks."""

import hashlib
import os
import socket

import pytest

from superdl.super_wire.objects import Fault, ObjectError, open_bucket
from tests.fixtures.scripted_s3 import CLOSE, ETAG, Scripted, bucket, ok, read, refusal, server

__all__ = ["bucket", "server"]


def test_a_connection_is_reused(server, bucket):
    server.script = [ok(b"one"), ok(b"x" * 300_000), ok(b""), ok(b"four")]
    assert [len(read(bucket)) for _ in range(4)] == [3, 300_000, 0, 4]
    assert (len(server.ports), server.lean_requests()) == (1, 4)


def test_a_connection_closed_by_the_server_is_replaced(server, bucket):
    server.script = [ok(b"one"), CLOSE, ok(b"two")]
    assert [read(bucket), read(bucket)] == [b"one", b"two"]
    assert (len(server.ports), server.lean_requests()) == (2, 3)


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
def test_temporary_failures_are_retried_and_the_next_read_is_lean_again(server, bucket, first):
    server.script = [first, ok(b"one"), ok(b"two")]
    asked = []
    assert read(bucket, before=asked.append) == b"one"
    assert len(asked) == 1
    assert read(bucket) == b"two"
    assert server.lean_requests() == 2
    assert bucket.in_flight > 1


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none",
        ok(b"one", more="Content-Encoding: gzip\r\n"),
    ],
    ids=["no ETag", "encoded"],
)
def test_an_object_is_read_as_stored_even_if_encoded_or_without_an_etag(server, bucket, response):
    server.script = [response]
    assert bucket.read("one.jpg") == b"one"


REFUSALS = [
    ("404 Not Found", "NoSuchKey", Fault.MISSING, "check the name"),
    ("404 Not Found", "NoSuchBucket", Fault.MISSING, "check the name"),
    ("412 Precondition Failed", "PreconditionFailed", Fault.CHANGED, "S3 has a different version"),
    ("416 Range", "InvalidRange", Fault.CHANGED, "416 InvalidRange"),
    ("400 Bad Request", "ExpiredToken", Fault.REFUSED, "renew the AWS credentials"),
    ("403 Forbidden", "RequestTimeTooSkewed", Fault.REFUSED, "renew the AWS credentials"),
    ("403 Forbidden", "InvalidObjectState", Fault.REFUSED, "the object is archived .*: restore it"),
    ("403 Forbidden", "AccessDenied", Fault.REFUSED, r"s3:GetObject on arn:aws:s3:::data/\*"),
    ("403 Forbidden", "", Fault.REFUSED, "S3 answered 403: said the server; allow s3:ListBucket"),
    ("400 Bad Request", "InvalidRequest", Fault.FAILED, "S3 answered 400 InvalidRequest"),
    ("307 Temporary Redirect", "x", Fault.FAILED, "in another region: set AWS_REGION"),
]


@pytest.mark.parametrize(
    ("answer", "fault", "words"),
    [
        *((refusal(status, code), fault, words) for status, code, fault, words in REFUSALS),
        (b"HTTP/1.1 403 No\r\nContent-Length: 9\r\n\r\n<no>such<", Fault.REFUSED, "S3 answered 403; allow"),
        (ok(b"one", etag="1" * 32), Fault.CHANGED, f"the version is {'1' * 32}"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", Fault.CHANGED, "the version"),
    ],
)
def test_a_refusal_has_a_fault_and_the_servers_message(server, bucket, answer, fault, words):
    server.script = [answer, answer, ok(b"two")]
    with pytest.raises(ObjectError, match=words) as caught:
        read(bucket)
    assert caught.value.fault is fault
    server.script = [ok(b"two")]
    assert read(bucket) == b"two"
    assert server.lean_requests() == 2


PART = ok(b"one", more="Content-Range: bytes 0-2/9\r\n").replace(b"200 OK", b"206 Partial Content")
CHUNKED = b'HTTP/1.1 200 OK\r\nETag: "%s"\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n'


@pytest.mark.parametrize("answer", [PART, CHUNKED % ETAG.encode() + b"5\r\nhello\r\n0\r\n\r\n"])
def test_a_response_with_other_bytes_than_the_object_is_refused(server, bucket, answer):
    server.script = [answer, answer]
    with pytest.raises(ObjectError) as caught:
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


def test_a_put_is_repeated_as_a_whole(server, bucket):
    """A PUT without a response, or with a RequestTimeout, is sent again."""
    server.script = [CLOSE, refusal("400 Bad Request", "RequestTimeout"), ok(b"")]
    bucket.put("a b.bin", b"x" * 10**6, content_type="image/png", md5="bWQ1")
    assert server.asked == ["PUT /data/a%20b.bin"] * 3
    assert set(server.bodies) == {b"x" * 10**6}
    sent = server.headers[-1]
    assert (sent["content-type"], sent["content-md5"]) == ("image/png", "bWQ1")
    assert sent["x-amz-content-sha256"] == hashlib.sha256(b"x" * 10**6).hexdigest()


def test_a_forked_process_opens_its_own_connections(server, bucket):
    server.script = [ok(b"one"), ok(b"two"), ok(b"three")]
    assert read(bucket) == b"one"
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.write(writing, bytes(read(bucket)))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 9) == b"two"
    assert read(bucket) == b"three"
    assert len(server.ports) == 2  # the child has its own
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("version", ["a\nhost:other", "\u732b"])
def test_a_version_that_is_not_an_etag_is_never_sent(server, bucket, version):
    server.script = [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"] * 3
    for _ in range(2):
        with pytest.raises(ObjectError, match="the version is not an ETag"):
            bucket.read("one.jpg", version=version)
        bucket.read("one.jpg")


def test_keys_need_not_be_utf8(server, bucket):
    content = b"<Contents><Key>a%FF/1</Key><ETag>e</ETag><Size>3</Size></Contents></ListBucketResult>"
    server.script = [ok(b"<ListBucketResult><EncodingType>url</EncodingType>" + content), ok(b"one"), ok(b"")]
    (item,) = next(bucket.pages("a\udcff/")).objects
    assert bucket.read(item.key) == b"one"
    bucket.put(item.key, b"one")
    assert "prefix=a%FF%2F" in server.asked[0]
    assert server.asked[1:] == ["GET /data/a%FF/1", "PUT /data/a%FF/1"]


@pytest.mark.parametrize(
    "elsewhere",
    [
        refusal("301 Moved Permanently", "PermanentRedirect", "x-amz-bucket-region: eu-west-1\r\n"),
        refusal("307 Temporary Redirect", "TemporaryRedirect", "x-amz-bucket-region: eu-west-1\r\n"),
        refusal("400 Bad Request", "AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region><Code>x"),
    ],
    ids=["moved", "moving", "signed for another"],
)
def test_a_redirect_to_another_region_is_followed_once(server, bucket, elsewhere):
    server.script = [elsewhere, elsewhere, ok(b"one"), ok(b"two")]
    assert [read(bucket), read(bucket)] == [b"one", b"two"]
    scopes = [headers["authorization"].split("/")[2] for headers in server.headers]
    assert scopes == ["us-east-1", "us-east-1", "eu-west-1", "eu-west-1"]
    assert server.lean_requests() == 2
    server.script = [
        refusal("301 Moved Permanently", "PermanentRedirect", "x-amz-bucket-region: x-1\r\n")
    ] * 9
    with pytest.raises(ObjectError, match="x-1"):
        read(bucket)


@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "307 Temporary Redirect"])
def test_no_redirect_leads_to_another_server(server, bucket, status):
    other = Scripted()
    server.script = [refusal(status, "Moved", f"Location: {other.url}/data/one.jpg\r\n")] * 5
    for ask in (
        lambda: read(bucket),
        lambda: bucket.head("one.jpg"),
        lambda: next(bucket.pages("")),
        lambda: bucket.put("one.jpg", b"one"),
    ):
        with pytest.raises(ObjectError, match=status[:3]):
            ask()
    other.close()
    assert not other.ports


def test_a_refusal_that_names_a_region_is_not_a_redirect(server, bucket):
    """Servers other than AWS report regions that their signatures do not use."""
    server.script = [refusal("403 Forbidden", "AccessDenied", "x-amz-bucket-region: default\r\n")] * 2
    with pytest.raises(ObjectError, match="AccessDenied"):
        read(bucket)
    server.script = [ok(b"one")]
    assert read(bucket) == b"one"
    assert {headers["authorization"].split("/")[2] for headers in server.headers} == {"us-east-1"}


def test_a_proxy_receives_keys_unchanged(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", "http://minio:9000")
    bucket, hosts, resolve = open_bucket("s3://data"), [], socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **how: hosts.append(host) or resolve(host, *more, **how)
    )
    for key, path in {
        "a/../b": "a/%2E%2E/b",
        "./a//b": "%2E/a//b",
        "/..": "/%2E%2E",
        "a../.b/...": "a../.b/...",
        "a b?c%2F": "a%20b%3Fc%252F",
    }.items():
        server.script = [ok(b"one")]
        assert bucket.read(key) == b"one"
        assert server.asked[-1] == f"GET http://minio:9000/data/{path}"
    assert bucket.begin("one.jpg", ETAG) is None
    assert set(hosts) == {"127.0.0.1"}


def test_the_region_is_reported_even_if_access_is_denied(server, bucket):
    server.script = [b"HTTP/1.1 403 No\r\nContent-Length: 0\r\nx-amz-bucket-region: eu-west-1\r\n\r\n"] * 2
    assert bucket.region() == "eu-west-1"
    server.script = [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]
    assert bucket.region() == ""


def test_anonymous_requests_have_no_signature_and_need_no_credentials(server, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("SUPER_S3_ANONYMOUS", "1")
    bucket = open_bucket("s3://data")
    server.script = [ok(b"one"), ok(b""), ok(LISTING)]
    assert read(bucket) == b"one"
    bucket.head("one.jpg")
    assert [item.key for page in bucket.pages("") for item in page.objects] == ["a+b.jpg"]
    assert not any("authorization" in headers for headers in server.headers)


def test_requester_pays_is_part_of_the_signature(server, monkeypatch):
    monkeypatch.setenv("SUPER_S3_REQUESTER_PAYS", "true")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    bucket = open_bucket("s3://data")
    server.script = [ok(b"one"), ok(b""), ok(LISTING)]
    read(bucket)
    bucket.head("one.jpg")
    next(bucket.pages(""))
    for headers in server.headers:
        assert headers["x-amz-request-payer"] == "requester"
        assert "x-amz-date;x-amz-request-payer;x-amz-security-token," in headers["authorization"]


def test_the_repr_of_a_request_contains_no_secret(server, monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a-token")
    server.script = [ok(b"one")]
    begun = open_bucket("s3://data").begin("one.jpg", ETAG)
    assert "a-token" not in repr(begun)
    begun.close()


LISTING = b"""<?xml version="1.0"?><ListBucketResult><EncodingType>url</EncodingType><Contents>
<Key>a%2Bb.jpg</Key><ETag>&quot;e&quot;</ETag><Size>3</Size></Contents></ListBucketResult>"""


def page_before(token):
    body = (
        b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>%s</NextContinuationToken>"
    )
    return ok(body % token + b"</ListBucketResult>")


@pytest.mark.parametrize("circle", [[b"a"], [b"a", b"b"], [b"a", b"b", b"c"]])
def test_a_cyclic_listing_is_refused(server, bucket, circle):
    server.script = [page_before(token) for token in [b"x", b"y", *circle * 9]]
    with pytest.raises(ObjectError, match="repeats pages"):
        list(bucket.pages(""))
