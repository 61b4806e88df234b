"""The HTTP port for metrics and health. Its TLS is tested in worker/test_metrics.py."""

import asyncio
import contextlib
import http.client
import socket

import pytest

from superdl.coordinator.server.tokens import Tokens
from superdl.super_wire import http_port
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.http_port import OPEN_METRICS, Page, listen_for_gets
from tests.fixtures.ports import free_port

TOKEN = "sixteen-or-more1"


def listening(use, **guards):
    """Serve a text as metrics while ``use(port)`` runs in a thread."""

    async def work():
        port = free_port()
        pages = {"/metrics": Page(lambda: lambda: b"# EOF\n", OPEN_METRICS), "/absent": Page(lambda: None)}
        async with await listen_for_gets(f"127.0.0.1:{port}", "metrics_listen", pages, **guards):
            await asyncio.to_thread(use, port)

    asyncio.run(work())


def asked(port, path="/metrics", method="GET", token=TOKEN):
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request(method, path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_statuses_of_requests():
    def use(port):
        assert asked(port) == asked(port, "/metrics?x=1") == (200, b"# EOF\n")
        assert asked(port, token="wrong-token-here") == (401, b"401 Unauthorized\n")
        assert asked(port, "/")[0] == 404
        assert asked(port, "/absent")[0] == 503
        assert asked(port, method="POST")[0] == 405

    listening(use, accepts=Tokens(TOKEN).accept)


def test_silent_and_malformed_clients_are_disconnected(monkeypatch):
    monkeypatch.setattr(http_port, "_TIMEOUT_S", 1.0)

    def use(port):
        def connected():
            return socket.create_connection(("127.0.0.1", port), timeout=20)

        silent = [connected() for _ in range(16)]
        with connected() as peer:
            assert peer.recv(1) == b""
        for peer in silent:
            with peer, contextlib.suppress(ConnectionResetError):
                assert peer.recv(1) == b""
        for words in (b"GET /metrics" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", b"\x16\x03\x01\r\n\r\n"):
            with connected() as peer, contextlib.suppress(ConnectionResetError):
                peer.sendall(words)
                assert peer.recv(100)[:15] in (b"HTTP/1.1 400 Ba", b"")
        assert asked(port)[0] == 200
        with pytest.raises(ConfigError, match="cannot listen on metrics_listen="):
            asyncio.run(listen_for_gets(f"127.0.0.1:{port}", "metrics_listen", {}))

    listening(use)
