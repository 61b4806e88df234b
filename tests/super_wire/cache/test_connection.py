"""Failures of a connection, with or without TLS, are typed errors that name the remedy."""

import contextlib
import random
import socket
import threading

import pytest

from superdl.super_wire.cache import CacheAddress, CacheConnection, Credentials
from superdl.super_wire.errors import CacheError, CacheUnreachableError, ConfigError
from tests.fixtures.ports import free_port
from tests.fixtures.tls_front import TlsFront


def connect(url, *, timeout_s=5.0, **credentials):
    return CacheConnection(CacheAddress.parse(url), Credentials(**credentials), timeout_s=timeout_s)


@pytest.fixture
def stranger():
    """A server that sends the given bytes to each client, and nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        held = []

        def serve(answer):
            def answer_one():
                peer = listening.accept()[0]
                held.append(peer)
                peer.sendall(answer)

            thread = threading.Thread(target=answer_one)
            thread.start()
            held.append(thread)
            return f"redis://127.0.0.1:{listening.getsockname()[1]}"

        yield serve
        for item in held:
            item.join() if isinstance(item, threading.Thread) else item.close()


def test_selects_the_database(valkey):
    first, second = connect(valkey.url), connect(f"{valkey.url}/2")
    first.ask(b"SET", b"k", b"v")
    assert second.ask(b"EXISTS", b"k") == 0
    assert first.ask(b"EXISTS", b"k") == 1
    first.close()
    second.close()
    with pytest.raises(CacheError, match="DB index"):
        connect(f"{valkey.url}/999")


def test_an_address_without_a_server_is_unreachable(tmp_path):
    port = free_port()
    with pytest.raises(CacheUnreachableError, match=f"redis://127.0.0.1:{port}.*refused"):
        connect(f"redis://127.0.0.1:{port}")
    with pytest.raises(CacheUnreachableError, match=r"redis\.sock"):
        connect(f"unix://{tmp_path}/redis.sock")


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (b"", CacheUnreachableError, r"no response for 0\.05 s"),
        (b"HTTP/1.1 400 Bad Request\r\n", CacheError, "does not speak the Redis protocol"),
        (b"-LOADING the dataset in memory\r\n", CacheUnreachableError, "not ready: LOADING"),
    ],
)
def test_a_silent_peer_another_protocol_and_a_loading_cache_are_named(stranger, answer, error, words):
    connection = connect(stranger(answer), timeout_s=5.0 if answer else 0.05)
    with pytest.raises(error, match=words):
        connection.ask(b"PING")
    connection.close()


def test_plain_text_beyond_loopback_requires_insecure(valkey, caplog):
    """On Linux, ``0.0.0.0`` connects to this machine, but it is not a loopback address."""
    url = valkey.url.replace("127.0.0.1", "0.0.0.0")
    with pytest.raises(ConfigError, match="not at a loopback address, .*TLS.* SUPER_INSECURE=1"):
        connect(url)
    assert "INSECURE" not in caplog.text
    for _ in range(2):
        connection = connect(url, insecure=True)
        assert connection.ask(b"PING") == b"PONG"
        connection.close()
    assert caplog.text.count("INSECURE:") == 1


@pytest.fixture
def front_of(valkey, certificates):
    """A function that starts a TLS front of the cache and returns its address."""
    with contextlib.ExitStack() as ending:

        def start(**arguments):
            front = TlsFront(f"{valkey.directory}/redis.sock", certificates, **arguments)
            return f"rediss://127.0.0.1:{ending.enter_context(front).port}"

        yield start


def test_a_certificate_of_an_unknown_authority_or_another_host_is_refused(front_of, certificates):
    elsewhere = front_of(shows=certificates.elsewhere)
    for url, ca_file in (
        (front_of(), ""),
        (front_of(), certificates.strange_ca_file),
        (elsewhere, certificates.ca_file),
    ):
        with pytest.raises(CacheError, match=r"certificate.*SUPER_CACHE_CA_FILE") as caught:
            connect(url, ca_file=ca_file)
        assert not isinstance(caught.value, CacheUnreachableError)


def test_large_values_arrive_unchanged_over_tls(front_of, certificates):
    value = random.Random(0).randbytes(10**6)
    connection = connect(front_of(), ca_file=certificates.ca_file)
    connection.ask(b"SET", b"k", value)
    assert connection.ask(b"GET", b"k") == value
    connection.close()


def test_a_client_certificate_is_sent_if_the_cache_requires_one(front_of, certificates):
    url, pair = front_of(demand_client=True), certificates.client
    connection = connect(url, ca_file=certificates.ca_file, cert_file=pair.cert_file, key_file=pair.key_file)
    assert connection.ask(b"PING") == b"PONG"
    connection.close()
    with pytest.raises(CacheError, match="SUPER_CACHE_CERT_FILE"):
        connect(url, ca_file=certificates.ca_file).ask(b"PING")


def test_tls_to_a_plain_port_times_out_with_a_hint(valkey, certificates):
    url = valkey.url.replace("redis://", "rediss://")
    with pytest.raises(CacheUnreachableError, match=r"no response for 0\.2 s.*use redis://"):
        connect(url, timeout_s=0.2, ca_file=certificates.ca_file)


def test_plain_text_to_a_tls_port_fails_with_a_hint(front_of):
    url = front_of().replace("rediss://", "redis://")
    with pytest.raises(CacheError, match="rediss://"):
        connect(url).ask(b"PING")
