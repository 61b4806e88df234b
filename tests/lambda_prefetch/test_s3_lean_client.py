"""The lean client on real sockets: kept connections, odd answers, TLS."""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
import threading

import pytest

from superdl.lambda_prefetch import s3_connection
from superdl.lambda_prefetch.s3_lean_client import LeanFailedError, close_lean_clients, lean_client
from superdl.lambda_prefetch.s3_source import S3Source
from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.super_wire.request import Outcome
from tests.fixtures.loopback_http import LoopbackServer, Request
from tests.fixtures.object_store import object_store, serve_objects

__all__ = ["object_store"]

ETAG = "0" * 32
LIMIT = 10**6
CLOSE = b""
"""In a script: the server closes the connection instead of answering."""


def ok(body: bytes, etag: str = ETAG, more: str = "") -> bytes:
    date = "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT"
    head = f'HTTP/1.1 200 OK\r\n{date}\r\nETag: "{etag}"\r\nContent-Length: {len(body)}\r\n'
    return f"{head}{more}\r\n".encode() + body


def refusal(status: str, code: str, more: str = "") -> bytes:
    body = f"<Error><Code>{code}</Code><Message>said the server</Message></Error>"
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n{body}".encode()


class Scripted:
    """A server that gives the answers of a script in turn, whoever asks; it keeps who asked."""

    def __init__(self) -> None:
        self.script: list[bytes] = []
        self.agents: list[str | None] = []
        self.ports: set[int] = set()
        self._server = LoopbackServer(self._answer)
        self.url = f"http://127.0.0.1:{self._server.port}"
        self.close = self._server.close

    def _answer(self, request: Request) -> None:
        self.ports.add(request.client_address[1])
        self.agents.append(request.headers.get("User-Agent"))
        answer = self.script.pop(0)
        request.wfile.write(answer.removesuffix(b"<cut>"))
        request.wfile.flush()
        if answer == CLOSE or answer.endswith(b"<cut>"):
            request.hang_up()

    def lean_requests(self) -> int:
        """How many came from the lean client: boto3 tells who it is, and the lean client does not."""
        return self.agents.count(None)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    one = Scripted()
    yield one
    one.close()


def read(source, key="one.jpg", reserve=lambda _: None):
    return source.read(key, ETAG, limit_bytes=LIMIT, reserve=reserve)


def test_a_connection_is_kept(server):
    server.script = [ok(b"one"), ok(b"x" * 300_000), ok(b""), ok(b"four")]
    source = S3Source("data", endpoint_url=server.url)
    assert [len(read(source)) for _ in range(4)] == [3, 300_000, 0, 4]
    assert (len(server.ports), server.lean_requests()) == (1, 4)


def test_a_kept_connection_that_was_closed_is_opened_anew(server):
    server.script = [ok(b"one"), CLOSE, ok(b"two")]
    source = S3Source("data", endpoint_url=server.url)
    assert [read(source), read(source)] == [b"one", b"two"]
    assert (len(server.ports), server.lean_requests()) == (2, 3)


def test_a_server_that_says_close_is_heeded(server):
    server.script = [ok(b"one", more="Connection: close\r\n") + b"<cut>", ok(b"two")]
    source = S3Source("data", endpoint_url=server.url)
    assert [read(source), read(source)] == [b"one", b"two"]
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
def test_what_may_pass_is_tried_again_by_boto3_and_then_by_the_lean_client(server, first):
    server.script = [first, ok(b"one"), ok(b"two")]
    source = S3Source("data", endpoint_url=server.url)
    asked = []
    assert read(source, reserve=asked.append) == b"one"
    assert len(asked) == 1  # also where the body was cut after there was room for it
    assert read(source) == b"two"
    assert server.lean_requests() == 2
    assert source._lean


@pytest.mark.parametrize(
    "first",
    [
        refusal("301 Moved Permanently", "PermanentRedirect", "x-amz-bucket-region: us-west-2\r\n"),
        refusal("400 Bad Request", "AuthorizationHeaderMalformed", "x-amz-bucket-region: us-west-2\r\n"),
        refusal("403 Forbidden", "AccessDenied"),
        b'HTTP/1.1 200 OK\r\nETag: "'
        + ETAG.encode()
        + b'"\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n0\r\n\r\n',
    ],
    ids=["moved", "other region", "refused", "chunked"],
)
def test_what_boto3_alone_can_read_is_left_to_it_from_then_on(server, first):
    server.script = [first, ok(b"one"), ok(b"two")]
    source = S3Source("data", endpoint_url=server.url)
    assert [read(source), read(source)] == [b"one", b"two"]
    assert server.lean_requests() == 1
    assert not source._lean
    assert not S3Source("data", endpoint_url=server.url)._lean
    assert lean_client("data", server.url) is None


def test_what_boto3_is_refused_too_is_told_in_the_servers_words(server):
    server.script = [refusal("404 Not Found", "NoSuchKey")] * 2 + [ok(b"two")]
    source = S3Source("data", endpoint_url=server.url)
    with pytest.raises(SampleFailedError, match="404 NoSuchKey: said the server") as caught:
        read(source)
    assert caught.value.outcome is Outcome.MISSING
    assert read(source) == b"two"
    assert server.lean_requests() == 2  # a missing object says nothing about the next one


def test_attempts_are_bounded(server):
    server.script = [refusal("503 Slow Down", "SlowDown")] * 10
    with pytest.raises(SampleFailedError, match="503 SlowDown") as caught:
        read(S3Source("data", endpoint_url=server.url))
    assert caught.value.outcome is Outcome.UNAVAILABLE
    assert (len(server.agents), server.lean_requests()) == (3, 1)


def test_another_version_costs_no_body_and_no_second_question(server):
    server.script = [ok(b"x" * 500_000, etag="1" * 32)]
    with pytest.raises(SampleFailedError) as caught:
        read(S3Source("data", endpoint_url=server.url))
    assert caught.value.outcome is Outcome.CHANGED
    assert len(server.agents) == 1


def test_tls_trusts_whom_botocore_trusts(tmp_path, certificates, monkeypatch):
    body = bytes(range(256)) * 2000
    etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
    pair = certificates.server
    with serve_objects(tmp_path / "buckets", monkeypatch, cert=pair.cert_file, key=pair.key_file) as store:
        (store.directory / "data").mkdir()
        (store.directory / "data" / "one.jpg").write_bytes(body)
        client = lean_client("data", store.url)
        with pytest.raises(LeanFailedError, match="CERTIFICATE_VERIFY_FAILED"):
            client.finish(client.begin("one.jpg", etag), limit_bytes=LIMIT, reserve=lambda _: None)
        monkeypatch.setenv("AWS_CA_BUNDLE", certificates.ca_file)
        client = lean_client("data", store.url + "/")
        for _ in range(2):
            assert (
                client.finish(client.begin("one.jpg", etag), limit_bytes=LIMIT, reserve=lambda _: None)
                == body
            )


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("answer", [b"", b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\nETag: "a"\r\n\r\nabc'])
def test_a_server_that_falls_silent_is_not_waited_for_for_ever(certificates, monkeypatch, tls, answer):
    """Also over TLS, where the system's limit alone would make OpenSSL ask again and again."""
    monkeypatch.setattr(s3_connection, "READ_TIMEOUT_S", 0.2)
    monkeypatch.setattr(s3_connection, "_TIMEVAL", struct.pack("ll", 0, 200_000))
    listening = socket.create_server(("127.0.0.1", 0))
    kept = []

    def serve():
        accepted, _ = listening.accept()
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates.server.cert_file, certificates.server.key_file)
            accepted = context.wrap_socket(accepted, server_side=True)
        kept.append(accepted)
        accepted.recv(4096)
        accepted.sendall(answer)

    server = threading.Thread(target=serve)
    server.start()
    context = ssl.create_default_context(cafile=certificates.ca_file) if tls else None
    connection = s3_connection.S3Connection("127.0.0.1", listening.getsockname()[1], context)
    connection.send(b"GET / HTTP/1.1\r\n\r\n")
    server.join()
    with pytest.raises(OSError, match=r"timed out|temporarily unavailable"):
        connection.body(connection.head())
    for each in (connection, listening, *kept):
        each.close()


ADDRESSES = 8
FILLING = 4


@pytest.fixture
def nowhere(monkeypatch):
    """The URL of a server with eight addresses, none of which takes connections; and who looked it up."""
    listening = socket.socket()
    listening.bind(("0.0.0.0", 0))  # all of 127.0.0.0/8
    listening.listen(0)
    port = listening.getsockname()[1]
    filling = [socket.socket() for _ in range(FILLING)]
    for one in filling:
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
    looked_up = []

    def look_up(host, *_, **__):
        looked_up.append(host)
        stream = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*stream, (f"127.0.0.{number}", port)) for number in range(1, ADDRESSES + 1)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(s3_connection, "CONNECT_TIMEOUT_S", 0.4)
    monkeypatch.setattr(s3_connection, "_ADDRESS_TIMEOUT_S", 0.1)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    yield f"http://s3.nowhere.test:{port}", looked_up
    close_lean_clients()
    for one in (*filling, listening):
        one.close()


def test_an_invocation_waits_once_for_all_addresses_and_names_the_way(nowhere):
    url, looked_up = nowhere
    source = S3Source("photos", endpoint_url=url)
    assert source._lean
    assert source.begin("a.jpg", "0" * 32) is None
    for key in ("a.jpg", "b.jpg"):
        with pytest.raises(SampleFailedError, match=r"none of 8 addresses of s3\.nowhere\.test") as caught:
            source.read(key, "0" * 32, limit_bytes=10**6, reserve=lambda _size: None)
        assert caught.value.outcome == Outcome.UNAVAILABLE
        assert "a function in a VPC reaches S3 by a gateway endpoint" in caught.value.why
    assert looked_up == ["s3.nowhere.test"]  # neither the lean client again, nor boto3
