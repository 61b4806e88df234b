"""A network that leads nowhere, as a VPC without a way to S3: it costs one bounded wait, and is named."""

from __future__ import annotations

import socket

import pytest

from superdl.lambda_prefetch import s3_connection
from superdl.lambda_prefetch.s3_lean import close_lean_clients
from superdl.lambda_prefetch.s3_source import S3Source
from superdl.lambda_prefetch.sources import SampleFailedError
from superdl.super_wire.request import Outcome

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
    assert source.lean
    assert source.begin("a.jpg", "0" * 32) is None
    for key in ("a.jpg", "b.jpg"):
        with pytest.raises(SampleFailedError, match=r"none of 8 addresses of s3\.nowhere\.test") as caught:
            source.read(key, "0" * 32, limit_bytes=10**6, reserve=lambda _size: None)
        assert caught.value.outcome == Outcome.SOURCE_ERROR
        assert "a function in a VPC reaches S3 by a gateway endpoint" in caught.value.why
    assert looked_up == ["s3.nowhere.test"]  # neither the lean client again, nor boto3


def test_an_address_that_refuses_is_passed_over(nowhere, monkeypatch):
    url, _ = nowhere
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        ports = (1, server.getsockname()[1])
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda *_, **__: [(*stream, ("127.0.0.1", port)) for port in ports]
        )
        asked = S3Source("photos", endpoint_url=url).begin("a.jpg", "0" * 32)
        assert asked is not None
        asked.close()
