"""Records reach a real cache unchanged, refusals keep its words, and no exchange lasts for ever."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from lambda_prefetch import cache_connection
from lambda_prefetch.cache_connection import CacheConnection
from super_wire.errors import CacheError, CacheUnreachableError, ConfigError
from tests.fixtures.valkey import Valkey, free_port

HEADER = b"h" * 64


@pytest.fixture
def connect(valkey):
    opened = []

    def connect(url=valkey.unix_url, **credentials):
        opened.append(CacheConnection(url, **credentials))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def record(key, payload):
    return key, HEADER, memoryview(payload)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_records_arrive_unchanged(valkey, connect, kind):
    connection = connect(valkey.unix_url if kind == "unix" else valkey.url)
    payloads = [b"", b"\r\n", b"x" * 5, bytes(range(256)) * 1000]
    assert connection.store([record(b"k%d" % n, payload) for n, payload in enumerate(payloads)]) == [""] * 4
    with valkey.client() as client:
        assert [client.get(f"k{n}") for n in range(4)] == [HEADER + payload for payload in payloads]


def test_more_buffers_and_bytes_than_one_send_takes(valkey, connect):
    payload = bytes(range(256)) * 200
    assert connect().store([record(b"k%d" % n, payload) for n in range(1500)]) == [""] * 1500
    with valkey.client() as client:
        assert client.dbsize() == 1500
        assert client.get("k1499") == HEADER + payload


def test_one_connection_serves_many_exchanges(valkey, connect):
    connection = connect()
    for n in range(5):
        assert connection.store([record(b"k", b"%d" % n)]) == [""]
    with valkey.client() as client:
        assert client.get("k") == HEADER + b"4"


@pytest.mark.parametrize("form", ["redis://127.0.0.1:{port}/3", "unix://{directory}/redis.sock?db=3"])
def test_an_address_may_name_a_database(valkey, connect, form):
    connect(form.format(port=valkey.port, directory=valkey.directory)).store([record(b"k", b"x")])
    with valkey.client() as client:
        assert client.dbsize() == 0
        client.execute_command("SELECT", 3)
        assert client.dbsize() == 1


def test_each_record_is_refused_by_itself(valkey, connect):
    with valkey.client() as client:
        client.execute_command("ACL", "SETUSER", "fn", "on", ">word", "+@connection", "+set", "~super:r1:*")
    connection = connect(username="fn", password="word")
    refused, stored = connection.store([record(b"other", b"x"), record(b"super:r1:1", b"x")])
    assert "NOPERM" in refused
    assert stored == ""


def test_a_full_cache_refuses_in_its_own_words():
    server = Valkey(maxmemory="2mb")
    server.start()
    try:
        connection = CacheConnection(server.unix_url)
        answers = connection.store([record(b"k%d" % n, b"x" * 400_000) for n in range(10)])
        connection.close()
    finally:
        server.close()
    assert answers[0] == ""
    assert answers[-1].startswith("OOM")


@pytest.mark.parametrize(
    ("credentials", "words"),
    [({"password": "wrong"}, "refuses AUTH"), ({"username": "who", "password": "word"}, "refuses AUTH")],
)
def test_wrong_credentials(valkey, connect, credentials, words):
    with valkey.client() as client:
        client.execute_command("ACL", "SETUSER", "default", ">word")
    with pytest.raises(CacheError, match=words) as caught:
        connect(**credentials)
    assert "word" not in str(caught.value).replace("password", "")


def test_missing_credentials(valkey, connect):
    with valkey.client() as client:
        client.config_set("requirepass", "word")
    with pytest.raises(CacheError, match="NOAUTH"):
        connect()
    assert connect(password="word").store([record(b"k", b"x")]) == [""]


def test_nobody_answers(tmp_path):
    url = f"redis://127.0.0.1:{free_port()}"
    with pytest.raises(CacheUnreachableError, match=url):
        CacheConnection(url)
    with pytest.raises(CacheUnreachableError, match="No such file"):
        CacheConnection(f"unix://{tmp_path}/none.sock")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis://",
        "unix://",
        "http://127.0.0.1",
        "redis://127.0.0.1:port",
        "redis://h:1/x",
        "unix:///a?db=x",
    ],
)
def test_what_is_no_address(url):
    with pytest.raises(ConfigError, match="address"):
        CacheConnection(url)


def test_credentials_in_an_address_are_refused_and_not_repeated():
    with pytest.raises(ConfigError, match="SUPER_CACHE_PASSWORD") as caught:
        CacheConnection("redis://:hunter2@127.0.0.1:6379")
    assert "hunter2" not in str(caught.value)


def serve_once(answer):
    """A server on loopback that answers whatever comes with ``answer`` and then falls silent."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        client, _ = listener.accept()
        client.recv(65536)
        with contextlib.suppress(ConnectionError):  # the other side may have had enough
            client.sendall(answer)
            while client.recv(65536):
                pass
        client.close()

    thread = threading.Thread(target=serve)
    thread.start()
    return f"redis://127.0.0.1:{listener.getsockname()[1]}", thread, listener


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b":1\r\n", b"x" * 200_000])
def test_what_does_not_speak_the_protocol(answer):
    url, thread, listener = serve_once(answer)
    with pytest.raises(CacheError, match=r"protocol|neither yes nor no"):
        CacheConnection(url)
    thread.join(10)
    listener.close()


def test_a_silent_cache_is_given_up_after_the_deadline(monkeypatch):
    monkeypatch.setattr(cache_connection, "_EXCHANGE_TIMEOUT_S", 0.2)
    url, thread, listener = serve_once(b"+PONG\r\n")
    connection = CacheConnection(url)
    with pytest.raises(CacheUnreachableError, match="no answer in time"):
        connection.store([record(b"k", b"x")])
    connection.close()
    thread.join(10)
    listener.close()


def test_a_cache_that_died_is_unreachable(valkey, connect):
    connection = connect()
    valkey.kill()
    with pytest.raises(CacheUnreachableError, match="broke"):
        connection.store([record(b"k", b"x")])
