"""What error replies and failures of TLS mean, and which of them pass by themselves."""

from __future__ import annotations

import ssl

import pytest

from superdl.super_wire.cache import CacheAddress
from superdl.super_wire.cache.refusals import is_passing, no_redis, refusal, tls_failure
from superdl.super_wire.errors import CacheUnreachableError

PLAIN, TLS = CacheAddress.parse("redis://h:1"), CacheAddress.parse("rediss://h:1")


@pytest.mark.parametrize(
    ("text", "passing", "remedy"),
    [
        ("LOADING Redis is loading", True, ""),
        ("MASTERDOWN Link with MASTER is down", True, ""),
        ("CLUSTERDOWN Hash slot not served", True, ""),
        ("TRYAGAIN Multiple keys request during rehashing of slot", True, ""),
        ("NOPERM no permissions", False, "GET on super:r1"),
        ("WRONGPASS invalid username-password pair", False, "SUPER_CACHE_PASSWORD"),
        ("MOVED 1 10.0.0.1:7000", False, "CLUSTER SLOTS"),
        ("ERR unknown", False, ""),
    ],
)
def test_what_passes_and_what_must_be_mended(text, passing, remedy):
    assert is_passing(text) is passing
    assert remedy in str(refusal("redis://h:1", text))


def test_a_peer_that_speaks_tls_is_told_from_other_strangers():
    assert "rediss://" in str(no_redis(PLAIN, b"\x15\x03\x03\x00\x02\x02\x46", ValueError("odd")))
    assert "rediss://" not in str(no_redis(PLAIN, b"HTTP/1.1 400", ValueError("odd")))


@pytest.mark.parametrize(
    ("reason", "lasting", "says"),
    [
        ("CERTIFICATE_VERIFY_FAILED", True, "SUPER_CACHE_CA_FILE"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", True, "SUPER_CACHE_CERT_FILE"),
        ("TLSV1_ALERT_UNKNOWN_CA", True, "SUPER_CACHE_CERT_FILE"),
        ("WRONG_VERSION_NUMBER", False, "redis:// goes without"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", False, "HANDSHAKE_FAILURE"),
        (None, False, "all of it"),
    ],
)
def test_what_openssl_says_is_put_into_words(reason, lasting, says):
    error = ssl.SSLError(1, "all of it")
    error.reason = reason
    found = tls_failure(TLS, error)
    assert isinstance(found, CacheUnreachableError) is not lasting
    assert says in str(found)
    assert "rediss://h:1" in str(found)
