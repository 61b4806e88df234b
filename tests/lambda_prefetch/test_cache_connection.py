"""Records reach a real cache unchanged, refusals keep its words, and no exchange lasts for ever."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from superdl.lambda_prefetch import cache_connection
from superdl.lambda_prefetch.cache_connection import CacheConnection
from superdl.super_wire.address import CacheAddress, Credentials
from superdl.super_wire.errors import CacheError, CacheUnreachableError, ConfigError
from tests.fixtures.tls_front import TlsFront
from tests.fixtures.valkey import Valkey, free_port

HEADER = b"h" * 64


def open_connection(url, **credentials):
    return CacheConnection(CacheAddress.parse(url), Credentials(**credentials))


@pytest.fixture
def connect(valkey):
    opened = []

    def connect(url=valkey.unix_url, **credentials):
        opened.append(open_connection(url, **credentials))
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
        connection = open_connection(server.unix_url)
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
        open_connection(url)
    with pytest.raises(CacheUnreachableError, match="No such file"):
        open_connection(f"unix://{tmp_path}/none.sock")


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


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b":1\r\n", b"+" * 200_000])
def test_what_does_not_speak_the_protocol(answer):
    url, thread, listener = serve_once(answer)
    with pytest.raises(CacheError, match=r"protocol|neither yes nor no"):
        open_connection(url)
    thread.join(10)
    listener.close()


class CutSocket(socket.socket):
    """A socket whose first receive gives ``cut`` bytes at most."""

    cut = 0

    def recv(self, size, *_):
        first, self.cut = self.cut, 0
        return super().recv(first or size)


def test_answers_are_read_wherever_the_network_cuts_them(valkey, connect):
    connection = connect()
    ours, peer = socket.socketpair()
    connection._socket.close()
    connection._socket = cut_socket = CutSocket(fileno=ours.detach())
    answers, array = b"+OK\r\n-OOM no\r\n+OK\r\n", b"*2\r\n$3\r\nabc\r\n*1\r\n:7\r\n"
    with peer:
        for cut_socket.cut in range(1, len(answers)):
            peer.sendall(answers)
            assert connection.store([record(b"k", b"x")] * 3) == ["", "OOM no", ""]
        for cut_socket.cut in range(1, len(array)):
            peer.sendall(array)
            assert connection.ask(b"ANY") == [b"abc", [7]]


def test_a_silent_cache_is_given_up_after_the_deadline(monkeypatch):
    monkeypatch.setattr(cache_connection, "EXCHANGE_TIMEOUT_S", 0.2)
    url, thread, listener = serve_once(b"+PONG\r\n")
    connection = open_connection(url)
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


@pytest.fixture
def tls_front(valkey, certificates):
    front = TlsFront(f"{valkey.directory}/redis.sock", certificates)
    front.start()
    yield front
    front.close()


def test_records_arrive_unchanged_by_tls(valkey, tls_front, certificates, connect):
    connection = connect(f"rediss://localhost:{tls_front.port}", ca_file=certificates.ca_file)
    payloads = [b"", b"\r\n", *(bytes(range(256)) * n for n in (1, 64, 300, 40_000))] * 9
    for _ in range(2):
        answers = connection.store([record(b"k%d" % n, payload) for n, payload in enumerate(payloads)])
        assert answers == [""] * 54
    with valkey.client() as client:
        assert [client.get(f"k{n}") for n in range(54)] == [HEADER + payload for payload in payloads]


def test_a_certificate_of_nobody_known_is_refused_with_the_remedy(tls_front, certificates):
    url = f"rediss://127.0.0.1:{tls_front.port}"
    for trusted in ({}, {"ca_file": certificates.strange_ca_file}):
        with pytest.raises(CacheError, match=rf"{url}.*SUPER_CACHE_CA_FILE") as caught:
            open_connection(url, **trusted)
        assert not isinstance(caught.value, CacheUnreachableError)


def test_a_cache_that_wants_a_certificate_of_ours_gets_it(valkey, certificates, connect):
    front = TlsFront(f"{valkey.directory}/redis.sock", certificates, demand_client=True)
    front.start()
    url = f"rediss://127.0.0.1:{front.port}"
    try:
        with pytest.raises(CacheUnreachableError):
            open_connection(url, ca_file=certificates.ca_file)
        ours = {"cert_file": certificates.client.cert_file, "key_file": certificates.client.key_file}
        connection = connect(url, ca_file=certificates.ca_file, **ours)
        assert connection.store([record(b"k", b"x")]) == [""]
        connection.close()
    finally:
        front.close()


def test_what_speaks_no_tls_is_told():
    url, thread, listener = serve_once(b"-ERR unknown command\r\n")
    with pytest.raises(CacheUnreachableError, match="no cache answers at rediss"):
        open_connection(url.replace("redis:", "rediss:"))
    thread.join(10)
    listener.close()


@pytest.mark.parametrize("user", ["", "fn"])
def test_resp3_is_spoken_where_it_is_asked_for(valkey, connect, user):
    with valkey.client() as client:
        client.execute_command("ACL", "SETUSER", user or "default", "on", ">word", "~*", "+@all")
        connection = connect(valkey.url + "?protocol=3", username=user, password="word")
        (spoken,) = [entry for entry in client.client_list() if not entry["lib-name"]]
    assert (spoken["user"], spoken["resp"]) == (user or "default", "3")
    assert connection.store([record(b"k", b"x")]) == [""]
    with pytest.raises(CacheError, match="refuses HELLO.*WRONGPASS"):
        open_connection(valkey.url + "?protocol=3", username=user, password="other")


@pytest.mark.parametrize("refusal", [b"-ERR unknown command 'HELLO'", b"-NOPROTO", b"-NOPERM hello"])
def test_a_server_that_refuses_hello_is_spoken_to_in_resp2(refusal):
    listener = socket.create_server(("127.0.0.1", 0))
    told = []

    def serve():
        client, _ = listener.accept()
        for answer in (refusal, b"+OK", b"+PONG", b"+OK"):
            told.append(client.recv(65536).split(b"\r\n")[2])
            client.sendall(answer + b"\r\n")
        client.close()

    thread = threading.Thread(target=serve)
    thread.start()
    url = f"redis://127.0.0.1:{listener.getsockname()[1]}?protocol=3"
    connection = open_connection(url, password="word")
    assert connection.store([record(b"k", b"x")]) == [""]
    connection.close()
    thread.join(10)
    listener.close()
    assert told == [b"HELLO", b"AUTH", b"PING", b"SET"]


def test_a_cache_in_plain_text_beyond_loopback_is_refused_unless_insecure(valkey, connect):
    """Linux takes ``0.0.0.0`` for this machine, and SUPER does not."""
    url = valkey.url.replace("127.0.0.1", "0.0.0.0")  # connected to
    with pytest.raises(ConfigError, match="beyond loopback, where a cache needs TLS.* SUPER_INSECURE=1"):
        connect(url)
    assert connect(url, insecure=True).store([record(b"k", b"x")]) == [""]
