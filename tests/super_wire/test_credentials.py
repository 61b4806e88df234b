"""Addresses and credentials come from the environment and never appear in errors."""

import pytest

from superdl.super_wire.cache import CacheAddress, Credentials
from superdl.super_wire.credentials import CoordinatorCredentials, insecure_in, is_loopback, parse_tokens
from superdl.super_wire.errors import ConfigError

TOKEN = "0123456789abcdef"


def test_the_first_token_takes_precedence_over_the_file():
    """Coordinator and client may share a variable."""
    found = CoordinatorCredentials.from_environment(
        {"SUPER_TOKEN": f"{TOKEN},other-{TOKEN}", "SUPER_TOKEN_FILE": "/x"}
    )
    assert found.current_token() == TOKEN
    assert TOKEN not in repr(found)


@pytest.mark.parametrize(
    "environment",
    [
        {"SUPER_TOKEN": "too-short-zq"},
        {"SUPER_TOKEN": " , "},
        {"SUPER_TOKEN": "# too-short-zq"},
        {"SUPER_TOKEN_FILE": "/nowhere/token"},
    ],
)
def test_an_invalid_token_is_refused_at_once(environment):
    (name,) = environment
    with pytest.raises(ConfigError, match=name) as caught:
        CoordinatorCredentials.from_environment(environment)
    assert "too-short-zq" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "encrypted"),
    [
        ({}, [False, False, False, True]),
        ({"ca_file": "/ca.pem"}, [False, True, True, True]),
        ({"insecure": True}, [False, False, False, False]),
        ({"insecure": True, "ca_file": "/ca.pem"}, [False, True, True, True]),
    ],
)
def test_which_connections_are_encrypted(given, encrypted):
    hosts = ("", "localhost", "::1", "10.1.2.3")
    assert [CoordinatorCredentials(**given).encrypts(host) for host in hosts] == encrypted


def test_only_loopback_is_this_machine():
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "localhost", "LocalHost", "::1")))
    others = ("0.0.0.0", "::", "10.0.0.7", "fe80::1", "localhost.example.org", "example.org", "")
    assert not any(map(is_loopback, others))


@pytest.mark.parametrize(
    ("text", "meant"), [("", False), ("0", False), ("FALSE", False), ("1", True), ("true", True)]
)
def test_values_of_insecure(text, meant):
    assert insecure_in({"SUPER_INSECURE": text}) is meant


def test_tokens_are_separated_by_lines_and_commas():
    text = f"# remark\n {TOKEN} , b{TOKEN} team=a  share=3\n\nc{TOKEN}\n"
    assert parse_tokens(text, "x") == (
        (TOKEN, {}),
        (f"b{TOKEN}", {"team": "a", "share": "3"}),
        (f"c{TOKEN}", {}),
    )


@pytest.mark.parametrize("word", ["teams=a", "team=", TOKEN, "share=1=2 x", "=", "team"])
def test_an_invalid_right_is_refused_without_the_token(word):
    with pytest.raises(ConfigError, match="x: token 2 of 2 may only be followed by team=NAME") as caught:
        parse_tokens(f"{TOKEN}\nb{TOKEN} {word}", "x")
    assert TOKEN not in str(caught.value)


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
def test_a_cache_address_is_parsed_and_printed(text, address):
    assert CacheAddress.parse(text) == address
    assert CacheAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "http://host", "localhost:6379", "redis://", "redis://host:99999", "redis://host:port", "redis://host/a",
        "redis://host/-1", "unix://tmp/redis.sock", "unix://", "redis://host?protocol=3", "unix:///r.sock?db=x",
    ],
)  # fmt: skip
def test_invalid_cache_addresses_are_refused(text):
    with pytest.raises(ConfigError):
        CacheAddress.parse(text)


@pytest.mark.parametrize("rest", ["me:geheim@host:1", "me:geheim@host:63790000", ":geheim#x@host:1"])
@pytest.mark.parametrize("scheme", ["redis://", ""])
def test_the_error_does_not_contain_the_password(scheme, rest):
    with pytest.raises(ConfigError) as caught:
        CacheAddress.parse(scheme + rest)
    assert "geheim" not in f"{caught.value} {caught.value.__cause__}"


def test_cache_credentials_come_from_the_environment():
    files = {f"SUPER_CACHE_{name}_FILE": f"/{name}.pem" for name in ("CA", "CERT", "KEY")}
    credentials = Credentials.from_environment(
        {"SUPER_CACHE_USERNAME": "reader", "SUPER_CACHE_PASSWORD": "geheim", **files}
    )
    assert credentials == Credentials(
        "reader", "geheim", ca_file="/CA.pem", cert_file="/CERT.pem", key_file="/KEY.pem"
    )
    assert "geheim" not in repr(credentials)
    assert Credentials.from_environment({}) == Credentials("", "")
    for name in ("SUPER_CACHE_USERNAME", "SUPER_CACHE_CERT_FILE", "SUPER_CACHE_KEY_FILE"):
        with pytest.raises(ConfigError, match=name):
            Credentials.from_environment({name: "alone"})
