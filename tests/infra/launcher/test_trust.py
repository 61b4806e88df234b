"""What a run needs beyond this machine is asked for by name, and lifted loudly."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from infra.launcher.cluster import Cluster
from infra.launcher.trust import check_trust, trust_of
from superdl.super_wire.errors import ConfigError

AWAY = Cluster(("algo-1",), ("algo-2",), "algo-1")
HERE = Cluster(("127.0.0.2",), ("127.0.0.3",), "127.0.0.2")
ALL = {
    "SUPER_TOKEN": "a-token-of-this-test",
    "SUPER_TLS_CERT": "cert.pem",
    "SUPER_TLS_KEY": "key.pem",
    "SUPER_CACHE_PASSWORD": "a password",
    "RAY_USE_TLS": "1",
}


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("SUPER_TOKEN", "a token"),
        ("SUPER_TLS_KEY", "a certificate for algo-1"),
        ("SUPER_CACHE_PASSWORD", "a password for the cache"),
        ("RAY_USE_TLS", "TLS between Ray's nodes"),
    ],
)
def test_what_is_missing_beyond_loopback_is_named(missing, told, caplog):
    environment = {name: value for name, value in ALL.items() if name != missing}
    with pytest.raises(ConfigError, match=f"lacks {told}.*--insecure"):
        check_trust(AWAY, environment, insecure=False, own_cache=True, ray=True)
    check_trust(AWAY, environment, insecure=True, own_cache=True, ray=True)
    assert "INSECURE: without " + told in caplog.text


def test_nothing_is_missing_where_all_is_there_or_not_needed(caplog):
    check_trust(AWAY, ALL, insecure=False, own_cache=True, ray=True)
    check_trust(HERE, {}, insecure=False, own_cache=True, ray=True)
    follower = Cluster(("algo-1",), ("algo-2",), "algo-2")
    check_trust(follower, {"SUPER_TOKEN": ALL["SUPER_TOKEN"]}, insecure=False, own_cache=False, ray=False)
    assert caplog.text == ""


def test_a_certificate_given_as_text_is_written_for_this_user_alone(certificates, tmp_path):
    environment = {
        "SUPER_TOKEN": ALL["SUPER_TOKEN"],
        "SUPER_TLS_CERT": Path(certificates.server.cert_file).read_text(),
        "SUPER_TLS_KEY": Path(certificates.server.key_file).read_text().replace("\n", "\\n"),
        "SUPER_COORDINATOR_CA_FILE": certificates.ca_file,
    }
    trust = trust_of(HERE, environment, tmp_path)
    assert trust.server_tls is not None
    assert trust.client_tls is not None
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    assert ALL["SUPER_TOKEN"] not in repr(trust)


def test_a_certificate_that_no_client_would_ask_for_is_refused(certificates, tmp_path):
    environment = {
        "SUPER_TLS_CERT": certificates.server.cert_file,
        "SUPER_TLS_KEY": certificates.server.key_file,
    }
    with pytest.raises(ConfigError, match="SUPER_TLS_CERT is set and SUPER_COORDINATOR_CA_FILE is not"):
        trust_of(HERE, environment, tmp_path)


def test_a_certificate_that_is_none_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="SUPER_TLS_CERT and SUPER_TLS_KEY cannot be used"):
        trust_of(HERE, {"SUPER_TLS_CERT": "/nonexistent", "SUPER_TLS_KEY": "/nonexistent"}, tmp_path)
