"""Cache addresses and credentials: what is read, what is refused and why."""

from __future__ import annotations

import pytest

from superdl.super_wire.cache import CacheAddress, Credentials
from superdl.super_wire.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("redis://localhost", CacheAddress("localhost", 6379, "", 0)),
        ("redis://10.0.0.1:7000/3", CacheAddress("10.0.0.1", 7000, "", 3)),
        ("redis://[::1]:7000", CacheAddress("::1", 7000, "", 0)),
        ("unix:///tmp/redis.sock", CacheAddress("", 0, "/tmp/redis.sock", 0)),
        ("unix:///tmp/redis.sock?db=2", CacheAddress("", 0, "/tmp/redis.sock", 2)),
    ],
)
def test_parses_and_prints(text, address):
    assert CacheAddress.parse(text) == address
    assert CacheAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("redis://:secret@host:1", "SUPER_CACHE_PASSWORD"),
        ("http://host", "redis://host"),
        ("localhost:6379", "redis://host"),
        ("redis://", "no host"),
        ("redis://host:99999", "range"),
        ("redis://host:port", "port"),
        ("redis://host/a", "database"),
        ("redis://host/-1", "database"),
        ("unix://tmp/redis.sock", "three slashes"),
        ("unix://", "three slashes"),
        ("redis://host?protocol=3", "no option protocol"),
        ("unix:///tmp/redis.sock?db=x", "database"),
    ],
)
def test_refuses(text, reason):
    with pytest.raises(ConfigError, match=reason):
        CacheAddress.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "redis://me:geheim@host:1",
        "redis://me:geheim@host:63790000",
        "redis://:geheim#x@host:1",
        "me:geheim@host",
    ],
)
def test_a_refusal_does_not_repeat_the_password(text):
    with pytest.raises(ConfigError) as caught:
        CacheAddress.parse(text)
    assert "geheim" not in f"{caught.value} {caught.value.__cause__}"


def test_plain_text_leaves_this_machine_only_where_it_is_allowed_to():
    away, home = CacheAddress.parse("redis://10.1.2.3"), CacheAddress.parse("redis://localhost")
    with pytest.raises(ConfigError, match=r"redis://10\.1\.2\.3:6379 is beyond loopback"):
        Credentials().check_encrypted(away)
    for address in (home, CacheAddress.parse("rediss://10.1.2.3"), CacheAddress.parse("unix:///c.sock")):
        Credentials().check_encrypted(address)
    Credentials.from_environment({"SUPER_INSECURE": "1"}).check_encrypted(away)


def test_credentials_come_from_the_environment_and_hide():
    files = {f"SUPER_CACHE_{name}_FILE": f"/{name}.pem" for name in ("CA", "CERT", "KEY")}
    credentials = Credentials.from_environment(
        {"SUPER_CACHE_USERNAME": "reader", "SUPER_CACHE_PASSWORD": "geheim", **files}
    )
    assert credentials == Credentials(
        "reader", "geheim", ca_file="/CA.pem", cert_file="/CERT.pem", key_file="/KEY.pem"
    )
    assert "geheim" not in repr(credentials)
    assert Credentials.from_environment({}) == Credentials("", "")
    with pytest.raises(ConfigError, match="SUPER_CACHE_PASSWORD"):
        Credentials.from_environment({"SUPER_CACHE_USERNAME": "reader"})
