"""Connections to S3: TLS, silent servers and unreachable ones."""

import hashlib
import socket
import ssl
import threading

import pytest

from superdl.super_wire.objects import Fault, ObjectError, open_bucket
from superdl.super_wire.objects.s3 import Patience, open_s3
from superdl.super_wire.objects.s3_connection import S3Connection
from tests.fixtures.object_store import serve_objects

ETAG = "0" * 32


def test_tls_uses_boto3s_ca_bundle(tmp_path, certificates, monkeypatch):
    body = bytes(range(256)) * 2000
    etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
    pair = certificates.server
    with serve_objects(tmp_path / "buckets", monkeypatch, cert=pair.cert_file, key=pair.key_file) as store:
        (store.directory / "data").mkdir()
        (store.directory / "data" / "one.jpg").write_bytes(body)
        with pytest.raises(ObjectError, match=r"CERTIFICATE_VERIFY_FAILED.*AWS_CA_BUNDLE") as caught:
            open_bucket("s3://data").read("one.jpg", version=etag)
        assert caught.value.fault is Fault.FAILED
        monkeypatch.setenv("AWS_CA_BUNDLE", certificates.ca_file)
        bucket = open_bucket("s3://data")
        for _ in range(2):
            assert bucket.read("one.jpg", version=etag) == body
        assert bucket.head("one.jpg") == (etag, len(body))


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("answer", [b"", b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\nETag: "a"\r\n\r\nabc'])
def test_a_silent_server_times_out(certificates, tls, answer):
    """Over TLS too, where OpenSSL would retry forever after a kernel timeout."""
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
    port = listening.getsockname()[1]
    connection = S3Connection("127.0.0.1", port, context, Patience(silence_s=0.2))
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
    """Point the client to a server with eight unreachable addresses, and return the lookups."""
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
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://s3.nowhere.test:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    yield looked_up
    for one in (*filling, listening):
        one.close()


def test_an_unreachable_server_fails_once_with_a_remedy(nowhere):
    bucket = open_s3("photos", Patience(connect_s=0.4, address_s=0.1))
    for ask in (lambda: bucket.read("a.jpg"), lambda: bucket.begin("a.jpg", ETAG)):
        nowhere.clear()
        with pytest.raises(
            ObjectError, match=r"none of the 8 addresses of s3\.nowhere\.test.*gateway"
        ) as caught:
            ask()
        assert (caught.value.fault, caught.value.unreachable) == (Fault.UNAVAILABLE, True)
        assert nowhere == ["s3.nowhere.test"]
