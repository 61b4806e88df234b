"""What settings need beside each other before a coordinator is reached from elsewhere."""

from __future__ import annotations

import logging

import pytest

from superdl.coordinator.server.settings import Settings, warn_if_insecure
from superdl.super_wire.errors import ConfigError

AWAY = "0.0.0.0:50051"
TLS = {"tls_cert": "/run/server.pem", "tls_key": "/run/server.key"}
TOKEN = {"token": "0123456789abcdef"}


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
    warn_if_insecure(Settings(listen=AWAY, **TLS, **token))
    warn_if_insecure(Settings(insecure=True))
    assert not caplog.text


def test_a_cache_in_plain_text_beyond_loopback_is_warned_of(caplog):
    with pytest.raises(ConfigError, match="where a cache needs TLS"):
        Settings(cache="redis://10.1.2.3")
    warn_if_insecure(Settings(cache="redis://10.1.2.3", insecure=True))
    assert "INSECURE: the cache's password and all samples go to redis://10.1.2.3" in caplog.text


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"tls_cert": "c.pem"}, "tls_cert is set and tls_key is not"),
        ({"tls_key": "c.key"}, "tls_key is set and tls_cert is not"),
        ({"tls_client_ca": "ca.pem"}, "tls_client_ca is set and tls_cert is not"),
        ({"listen": "unix:/run/c.sock", **TLS}, "there is no TLS on it"),
        ({"health_listen": "0.0.0.0:1"}, "health_listen=0.0.0.0:1 is beyond loopback"),
        ({"health_listen": "127.0.0.1"}, "health_listen is host:port or unix:/path"),
        ({"health_listen": "127.0.0.1:50051"}, "health_listen and listen are both"),
    ],
)
def test_what_does_not_go_together_is_told(given, reason):
    with pytest.raises(ConfigError, match=reason):
        Settings(**given)


@pytest.mark.parametrize(
    "token", ["zq", "0123456789abcde", "0123456789abcdef,short", "0123456789 abcdef", "ü" * 20]
)
def test_a_token_that_could_be_guessed_or_not_be_sent_is_refused_and_not_repeated(token):
    with pytest.raises(ConfigError, match="16 to 512 letters.*openssl rand") as caught:
        Settings(token=token)
    assert token not in str(caught.value)


def test_secrets_are_in_no_picture_of_the_settings():
    settings = Settings(token="0123456789abcdef", tls_cert="cert", tls_key="-----BEGIN PRIVATE KEY-----")
    assert "0123456789abcdef" not in repr(settings)
    assert "PRIVATE" not in repr(settings)


@pytest.mark.parametrize("token", [",", "\n", "# a remark, or a token that begins so"])
@pytest.mark.parametrize("insecure", [False, True])
def test_a_token_that_is_none_is_not_taken_for_one(token, insecure):
    with pytest.raises(ConfigError, match="token is set and holds no token: set it to one or more"):
        Settings(listen=AWAY, **TLS, token=token, insecure=insecure)
