"""Where a coordinator may listen and where its cache may be: this machine, named without credentials."""

from __future__ import annotations

import re

import pytest

from superdl.coordinator.server.addresses import (
    check_cache_address,
    check_listen_address,
    leaves_this_machine,
    socket_path,
)
from superdl.super_wire.errors import ConfigError


@pytest.mark.parametrize(
    "listen",
    ["127.0.0.1:50051", "localhost:1", "[::1]:65535", "unix:/run/super.sock", "unix:///run/super.sock"],
)
def test_an_address_on_this_machine_may_be_listened_on(listen):
    check_listen_address(listen)
    assert not leaves_this_machine(listen)


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:50051", "[::]:50051", "[2001:db8::1]:1", "example.org:50051", "10.1.2.3:9"]
)
def test_what_is_beyond_loopback_leaves_this_machine(listen):
    check_listen_address(listen)
    assert leaves_this_machine(listen)


@pytest.mark.parametrize(
    "listen",
    [
        "",
        "50051",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "[::1",
        "::1:50051",
        "tcp://a:1",
    ],
)
def test_what_is_no_address_to_listen_on_is_named(listen):
    with pytest.raises(ConfigError, match="listen is host:port or unix:/path"):
        check_listen_address(listen)


@pytest.mark.parametrize("listen", ["unix:", "unix:relative.sock", "unix:/directory/"])
def test_a_socket_is_named_by_its_absolute_path(listen):
    with pytest.raises(ConfigError, match="absolute path"):
        check_listen_address(listen)


def test_a_socket_path_that_the_kernel_does_not_take_is_refused():
    check_listen_address("unix:/" + "x" * 106)
    with pytest.raises(ConfigError, match="at most 107 bytes, this one 108"):
        check_listen_address("unix:/" + "x" * 107)


def test_both_forms_of_a_socket_address_name_one_path():
    assert socket_path("unix:/run/a.sock") == socket_path("unix:///run/a.sock") == "/run/a.sock"
    assert socket_path("127.0.0.1:50051") is None


@pytest.mark.parametrize(
    "cache",
    [
        "redis://127.0.0.1",
        "redis://127.0.0.1:6379",
        "redis://127.0.0.1:6379/",
        "redis://localhost:6379/2",
        "redis://[::1]:6379",
        "unix:///run/redis.sock",
        "unix:///run/redis.sock?db=3",
        "rediss://127.0.0.1:6379",
    ],
)
def test_a_cache_on_this_machine_is_taken(cache):
    check_cache_address(cache)


@pytest.mark.parametrize(
    "cache",
    [
        "redis://user:secret@127.0.0.1:6379",
        "redis://:secret@127.0.0.1:6379",
        "redis://user@127.0.0.1:6379",
        "redis://127.0.0.1:6379?password=secret",
        "unix:///run/redis.sock?username=me&password=secret",
        "unix://:secret@/run/redis.sock",
    ],
)
def test_credentials_in_the_caches_address_are_refused_and_not_repeated(cache):
    with pytest.raises(ConfigError, match="SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD") as caught:
        check_cache_address(cache)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "cache",
    [
        "",
        "127.0.0.1:6379",
        "redis://",
        "redis://127.0.0.1:0",
        "redis://127.0.0.1:port",
        "redis://127.0.0.1:6379?secure=yes",
        "redis://[::1",
        "redis://127.0.0.1:6379?protocol=4",
        "redis://127.0.0.1:6379#x",
        "unix://host/redis.sock",
    ],
)
def test_what_is_no_cache_address_is_named(cache):
    with pytest.raises(ConfigError, match=f"address.*{re.escape(repr(cache))}"):
        check_cache_address(cache)


@pytest.mark.parametrize("cache", ["redis://127.0.0.1/x", "redis://127.0.0.1/-1", "unix:///a.sock?db=two"])
def test_a_database_is_a_number(cache):
    with pytest.raises(ConfigError, match="a database is a number"):
        check_cache_address(cache)


@pytest.mark.parametrize(
    "cache", ["redis://10.0.0.7:6379", "redis://cache.example.org", "redis://[2001:db8::1]:6379"]
)
def test_a_cache_beyond_loopback_needs_tls(cache):
    with pytest.raises(
        ConfigError, match="beyond loopback, where a cache needs TLS: use rediss://.* SUPER_INSECURE"
    ):
        check_cache_address(cache)
    check_cache_address(cache, insecure=True)
    check_cache_address(cache.replace("redis:", "rediss:"))
