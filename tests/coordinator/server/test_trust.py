"""Where a coordinator may listen, and what it needs before it is reached from elsewhere."""

from __future__ import annotations

import logging

import pytest

from superdl.coordinator.server.settings import Settings
from superdl.coordinator.server.trust import check_listen_address, leaves_this_machine, warn_if_insecure
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.protocol import socket_path

AWAY = "0.0.0.0:50051"
TLS = {"tls_cert": "/run/server.pem", "tls_key": "/run/server.key"}
TOKEN = {"token": "0123456789abcdef"}


@pytest.mark.parametrize(
    ("listen", "leaves"),
    [
        ("127.0.0.1:50051", False),
        ("localhost:1", False),
        ("[::1]:65535", False),
        ("unix:/run/super.sock", False),
        ("unix:///" + "x" * 106, False),
        ("0.0.0.0:50051", True),
        ("[2001:db8::1]:1", True),
        ("example.org:50051", True),
    ],
)
def test_what_is_beyond_loopback_leaves_this_machine(listen, leaves):
    check_listen_address(listen)
    assert leaves_this_machine(listen) is leaves


def test_both_forms_of_a_socket_address_name_one_path():
    assert socket_path("unix:/run/a.sock") == socket_path("unix:///run/a.sock") == "/run/a.sock"
    assert socket_path("127.0.0.1:50051") is None


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        *(({"listen": text}, "listen is host:port or unix:/path") for text in ("", "50051", "127.0.0.1:")),
        *(
            ({"listen": text}, "listen is host:port")
            for text in ("127.0.0.1:0", "[::1", "::1:1", "tcp://a:1")
        ),
        *(
            ({"listen": text}, "absolute path")
            for text in ("unix:", "unix:relative.sock", "unix:/directory/")
        ),
        ({"listen": "127.0.0.1:65536"}, "listen is host:port or unix:/path"),
        ({"listen": "unix:/" + "x" * 107}, "at most 107 bytes, this one 108"),
        ({"cache": "127.0.0.1:6379"}, "address"),
        ({"cache": "redis://10.1.2.3"}, "where a cache needs TLS: use rediss://.* SUPER_INSECURE"),
        ({"tls_cert": "c.pem"}, "tls_cert is set and tls_key is not"),
        ({"tls_key": "c.key"}, "tls_key is set and tls_cert is not"),
        ({"tls_client_ca": "ca.pem"}, "tls_client_ca is set and tls_cert is not"),
        ({"listen": "unix:/run/c.sock", **TLS}, "there is no TLS on it"),
        ({"health_listen": "127.0.0.1"}, "health_listen is host:port or unix:/path"),
        ({"health_listen": "127.0.0.1:50051"}, "health_listen and listen are both"),
        ({"metrics_listen": "9400"}, "metrics_listen is host:port"),
        ({"metrics_listen": "unix:/run/m.sock"}, "need a host:port of their own"),
        ({"metrics_listen": "127.0.0.1:50051"}, "need a host:port of their own"),
        ({"metrics_listen": "0.0.0.0:9400"}, "metrics_listen=0.0.0.0:9400: beyond loopback .* has neither"),
    ],
)
def test_what_cannot_be_or_does_not_go_together_is_told(given, reason):
    with pytest.raises(ConfigError, match=reason):
        Settings(**given)


@pytest.mark.parametrize(
    "cache", ["redis://user:secret@127.0.0.1", "unix:///redis.sock?username=me&password=secret"]
)
def test_credentials_in_the_caches_address_are_refused_and_not_repeated(cache):
    with pytest.raises(ConfigError, match="SUPER_CACHE_USERNAME and SUPER_CACHE_PASSWORD") as caught:
        Settings(cache=cache)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "lacks"),
    [({}, "has neither"), (TLS, "has no token"), (TOKEN, "has no TLS"), ({"token_file": "/t"}, "has no TLS")],
)
def test_listening_beyond_loopback_needs_tls_and_a_token(given, lacks, caplog):
    with pytest.raises(ConfigError, match=rf"listen=0\.0\.0\.0:50051: beyond loopback .*{lacks}.*--insecure"):
        Settings(listen=AWAY, **given)
    with caplog.at_level(logging.WARNING):
        warn_if_insecure(Settings(listen=AWAY, insecure=True, **given))
    assert f"INSECURE: listening on {AWAY}" in caplog.text


@pytest.mark.parametrize("token", [TOKEN, {"token_file": "/run/tokens"}])
def test_with_both_it_may_listen_anywhere_and_nobody_is_warned(token, caplog):
    warn_if_insecure(Settings(listen=AWAY, metrics_listen="0.0.0.0:9400", **TLS, **token))
    warn_if_insecure(Settings(insecure=True))
    assert not caplog.text


@pytest.mark.parametrize("token", ["zq", "0123456789abcdef,short", "0123456789 abcdef", "ü" * 20])
def test_a_token_that_could_be_guessed_or_not_be_sent_is_refused_and_not_repeated(token):
    with pytest.raises(ConfigError, match="16 to 512 letters.*openssl rand") as caught:
        Settings(token=token)
    assert token not in str(caught.value)


@pytest.mark.parametrize("token", [",", "\n", "# a remark, or a token that begins so"])
@pytest.mark.parametrize("insecure", [False, True])
def test_a_token_that_is_none_is_not_taken_for_one(token, insecure):
    with pytest.raises(ConfigError, match="token is set and holds no token: set it to one or more"):
        Settings(listen=AWAY, **TLS, token=token, insecure=insecure)


def test_secrets_are_in_no_picture_of_the_settings():
    settings = Settings(token="0123456789abcdef", tls_cert="cert", tls_key="-----BEGIN PRIVATE KEY-----")
    assert "0123456789abcdef" not in repr(settings)
    assert "PRIVATE" not in repr(settings)
