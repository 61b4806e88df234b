"""The port for metrics and health: TLS and tokens, and bounds on strangers."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import shutil
import socket
import ssl

import pytest

from superdl.coordinator.server.tokens import Tokens
from superdl.coordinator.server.trust import ServerTls
from superdl.super_wire import http_port
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.http_port import OPEN_METRICS, Page, listen_for_gets
from tests.fixtures.ports import free_port

TOKEN = "sixteen-or-more1"


def listening(use, **guards):
    """Serve a text as metrics, and call ``use(port)`` in a thread meanwhile."""

    async def work():
        port = free_port()
        pages = {"/metrics": Page(lambda: lambda: b"# EOF\n", OPEN_METRICS), "/absent": Page(lambda: None)}
        async with await listen_for_gets(f"127.0.0.1:{port}", "metrics_listen", pages, **guards):
            await asyncio.to_thread(use, port)

    asyncio.run(work())


def asked(port, path="/metrics", method="GET", tls=None, **headers):
    kinds = {"context": tls} if tls else {}
    kind = http.client.HTTPSConnection if tls else http.client.HTTPConnection
    with contextlib.closing(kind("127.0.0.1", port, timeout=20, **kinds)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_a_scrape_needs_the_certificate_that_is_on_disk_and_a_token(certificates, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(pair):
        shutil.copy(pair.cert_file, cert)
        shutil.copy(pair.key_file, key)

    def use(port):
        tls = ssl.create_default_context(cafile=certificates.ca_file)
        assert asked(port, tls=tls) == (401, b"401 Unauthorized\n")
        assert asked(port, tls=tls, Authorization="Bearer wrong-token-here")[0] == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert asked(port, tls=tls, **right) == (200, b"# EOF\n")
        assert asked(port, "/metrics?x=1", tls=tls, **right)[0] == 200
        assert asked(port, "/", tls=tls, **right)[0] == 404
        assert asked(port, "/absent", tls=tls, **right) == (503, b"503 Service Unavailable\n")
        assert asked(port, method="POST", tls=tls, **right)[0] == 405
        put(certificates.elsewhere)
        with pytest.raises(ssl.SSLCertVerificationError):
            asked(port, tls=tls, **right)

    put(certificates.server)
    guards = {"tls": ServerTls(str(cert), str(key)).context(), "accepts": Tokens(TOKEN).accept}
    listening(use, **guards)


def test_strangers_who_say_nothing_or_no_http_hold_little_and_not_for_long(monkeypatch):
    monkeypatch.setattr(http_port, "_TIMEOUT_S", 1.0)

    def use(port):
        def connected():
            return socket.create_connection(("127.0.0.1", port), timeout=20)

        silent = [connected() for _ in range(http_port._CONNECTIONS_MAX)]
        with connected() as one_more:
            assert one_more.recv(1) == b""
        for one in silent:
            with one, contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
        for words in (b"GET /metrics" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", b"\x16\x03\x01\r\n\r\n"):
            with connected() as one, contextlib.suppress(ConnectionResetError):
                one.sendall(words)
                assert one.recv(100)[:15] in (b"HTTP/1.1 400 Ba", b"")
        assert asked(port)[0] == 200
        with pytest.raises(ConfigError, match="metrics_listen=.*cannot be listened on"):
            asyncio.run(listen_for_gets(f"127.0.0.1:{port}", "metrics_listen", {}))

    listening(use)
