"""TLS: the peer is verified, what does not fit is named with what mends it, nothing waits for ever."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from superdl.super_dataset.reading.reader import BatchReader, ReadSettings
from superdl.super_wire.cache import CacheAddress, CacheConnection, Credentials
from superdl.super_wire.errors import CacheError, CacheUnreachableError
from tests.fixtures.tls_front import TlsFront
from tests.super_dataset.stored_batches import images, ref_of, store


@pytest.fixture
def front_of(valkey, certificates):
    """Starts fronts of the server; gives their addresses."""
    with contextlib.ExitStack() as ending:

        def start(**arguments) -> str:
            front = TlsFront(f"{valkey.directory}/redis.sock", certificates, **arguments)
            return f"rediss://127.0.0.1:{ending.enter_context(front).port}"

        yield start


def connect(url, *, timeout_s=5.0, **credentials):
    return CacheConnection(CacheAddress.parse(url), Credentials(**credentials), timeout_s=timeout_s)


def lasting(caught) -> bool:
    return not isinstance(caught.value, CacheUnreachableError)


@pytest.mark.parametrize("side", [8, 224])
@pytest.mark.parametrize("in_flight_bytes", [1, 2**24])
def test_batches_arrive_as_they_were(valkey, front_of, certificates, monkeypatch, side, in_flight_bytes):
    monkeypatch.setenv("SUPER_CACHE_CA_FILE", certificates.ca_file)
    arrays = images(24, side)
    ref = ref_of(24, front_of())
    store(valkey, ref, arrays)
    reader = BatchReader(ReadSettings(verify="all", in_flight_bytes=in_flight_bytes))
    for _ in range(2):
        read = reader.read(ref)
        assert np.array_equal(read.buffer.block.numpy().reshape(24, side, side, 3), np.stack(arrays))


def test_an_unknown_authority_is_refused_and_its_setting_named(front_of, certificates):
    for ca_file in ("", certificates.strange_ca_file):
        with pytest.raises(CacheError, match=r"certificate.*SUPER_CACHE_CA_FILE") as caught:
            connect(front_of(), ca_file=ca_file)
        assert lasting(caught)


def test_a_certificate_for_another_host_is_refused(front_of, certificates):
    with pytest.raises(CacheError, match=r"not valid for '127\.0\.0\.1'") as caught:
        connect(front_of(shows=certificates.elsewhere), ca_file=certificates.ca_file)
    assert lasting(caught)


def test_a_client_certificate_is_shown_where_it_is_wanted(front_of, certificates):
    url, pair = front_of(demand_client=True), certificates.client
    connection = connect(url, ca_file=certificates.ca_file, cert_file=pair.cert_file, key_file=pair.key_file)
    assert connection.ask(b"PING") == b"PONG"
    connection.close()
    with pytest.raises(CacheError, match="SUPER_CACHE_CERT_FILE"):
        connect(url, ca_file=certificates.ca_file).ask(b"PING")


def test_a_port_without_tls_is_given_up_in_time(valkey, certificates):
    url = valkey.url.replace("redis://", "rediss://")
    with pytest.raises(CacheUnreachableError, match=r"nothing came for 0\.2 s.*redis:// goes without"):
        connect(url, timeout_s=0.2, ca_file=certificates.ca_file)


def test_a_port_that_wants_tls_is_told_from_one_that_is_away(front_of):
    url = front_of().replace("rediss://", "redis://")
    with pytest.raises(CacheError, match="rediss://"):
        connect(url).ask(b"PING")
