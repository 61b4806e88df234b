"""Reading a batch from a single node over every transport, with credentials, from Valkey and Redis."""

import numpy as np
import pytest
import redis

from superdl.super_dataset.reading.reader import BatchReader, ReadSettings
from superdl.super_wire.errors import CacheError
from superdl.super_wire.keys import cache_key, report_stream
from tests.fixtures.tls_front import TlsFront
from tests.fixtures.valkey import Valkey
from tests.super_dataset.stored_batches import JOB, id_at, images, record, ref_of, store

# A reader's permissions in docs/reference.md. Redis 6.2 has no %R~ and %W~.
LEAST = [
    "on",
    ">geheim",
    "resetkeys",
    "~super:r1:*",
    "~super:n1:*",
    "-@all",
    "+get",
    "+xadd",
    "+cluster|slots",
    "+asking",
]


@pytest.fixture
def tls_url(either, certificates, monkeypatch):
    monkeypatch.setenv("SUPER_CACHE_CA_FILE", certificates.ca_file)
    with TlsFront(f"{either.directory}/redis.sock", certificates) as front:
        yield f"rediss://127.0.0.1:{front.port}"


def let_in(server, credentials, monkeypatch):
    with server.client() as client:
        if credentials == "acl":
            client.execute_command("ACL", "SETUSER", "reader", *LEAST)
            monkeypatch.setenv("SUPER_CACHE_USERNAME", "reader")
        if credentials != "none":
            client.config_set("requirepass", "geheim")
            monkeypatch.setenv("SUPER_CACHE_PASSWORD", "geheim")


@pytest.mark.parametrize("credentials", ["none", "password", "acl"])
@pytest.mark.parametrize("transport", ["tcp", "unix", "tls"])
def test_every_connection_delivers_the_same_bytes(either, tls_url, transport, credentials, monkeypatch):
    arrays = images(40)
    url = {"tcp": either.url, "unix": either.unix_url, "tls": tls_url}[transport]
    ref = ref_of(41, url)
    store(either, ref, [*arrays, None])
    with either.client() as client:
        client.ping()  # log in before a password is required
        let_in(either, credentials, monkeypatch)
        last = (cache_key(id_at(ref, 40)), record(arrays[0], id_at(ref, 40)))
        reader = BatchReader(ReadSettings(verify="all"), sleep=lambda _: client.set(*last))
        for attempts in (2, 1, 1):
            read = reader.read(ref)
            found = read.buffer.block.numpy().reshape(41, 8, 8, 3)
            assert np.array_equal(found, np.stack([*arrays, arrays[0]]))
            assert read.attempts == attempts
        assert client.xlen(report_stream(JOB)) >= 3  # one per attempt, maybe without the last


def test_a_ping_reports_missing_permissions(valkey, monkeypatch):
    with valkey.client() as client:
        client.acl_setuser("blind", enabled=True, passwords=["+p"], keys=["super:*"], commands=["+ping"])
    monkeypatch.setenv("SUPER_CACHE_USERNAME", "blind")
    monkeypatch.setenv("SUPER_CACHE_PASSWORD", "p")
    with pytest.raises(CacheError, match=r"NOPERM.*GET on super:r1"):
        BatchReader(ReadSettings()).ping(valkey.unix_url, timeout_s=5.0)


class OldServer(Valkey):
    """A server without CLUSTER."""

    def __init__(self):
        super().__init__(arguments=("--rename-command", "CLUSTER", ""))

    def client(self):
        return redis.Redis.from_url(self.unix_url, protocol=2)


def test_a_server_without_cluster_support_is_a_single_node():
    with OldServer() as server:
        arrays = images(3)
        ref = ref_of(3, server.unix_url)
        store(server, ref, arrays)
        assert BatchReader(ReadSettings()).read(ref).hits == 3
