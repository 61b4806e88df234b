"""A client and a coordinator that do not trust each other: the error names the cause and the remedy."""

import logging
import socket
from contextlib import contextmanager

import grpc
import pytest

from superdl.coordinator.server.trust import ServerTls
from superdl.sampler.rpc import client
from superdl.sampler.rpc.client import FIRST_CONTACT, Client, Patience
from superdl.sampler.rpc.distrust import diagnose_distrust
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.credentials import CoordinatorCredentials
from superdl.super_wire.errors import ConfigError, CoordinatorTrustError, CoordinatorUnreachableError
from tests.sampler.scripted_coordinator import ScriptedCoordinator

REQUEST = pb.GetJobStatsRequest()
TOKEN = "0123456789abcdef"


@contextmanager
def serving(pair=None, client_ca=""):
    """A coordinator, by TLS if there is a certificate for it."""
    tls = ServerTls(pair.cert_file, pair.key_file, client_ca).credentials() if pair else None
    server = ScriptedCoordinator(tls)
    yield server
    server.stop()


def call(address, **credentials):
    caller = Client(address, credentials=CoordinatorCredentials(**credentials))
    return caller.call("GetJobStats", REQUEST, FIRST_CONTACT)


def pair(of):
    return {"cert_file": of.cert_file, "key_file": of.key_file}


@pytest.fixture
def trusting(certificates):
    return {"ca_file": certificates.ca_file}


def test_a_certificate_for_this_name_is_trusted(certificates, trusting):
    with serving(certificates.server) as server:
        port = server.address.partition(":")[2]
        for host in ("127.0.0.1", "localhost"):
            assert call(f"{host}:{port}", **trusting)
    with serving(certificates.elsewhere) as server:
        assert call(server.address, name="cache.example", **trusting)


@pytest.mark.parametrize(
    ("server", "client_ca", "credentials", "message"),
    [
        ("server", False, lambda c: {"ca_file": c.strange_ca_file}, "Set SUPER_COORDINATOR_CA_FILE.* is not"),
        ("elsewhere", False, lambda c: {"ca_file": c.ca_file}, r"not valid for '127\.0\.0\.1'"),
        (
            "elsewhere",
            False,
            lambda c: {"ca_file": c.ca_file, "name": "other.example"},
            r"'other\.example'.*SUPER_COORDINATOR_NAME",
        ),
        ("expired", False, lambda c: {"ca_file": c.ca_file}, "certificate has expired.*Renew"),
        ("server", True, lambda c: {"ca_file": c.ca_file}, "set SUPER_COORDINATOR_CERT_FILE"),
        (
            "server",
            True,
            lambda c: {"ca_file": c.ca_file, **pair(c.stranger)},
            r"stranger\.pem \(SUPER_COORDINATOR_CERT_FILE\)",
        ),
        ("", False, lambda c: {"ca_file": c.ca_file}, "does not use TLS"),
        ("server", False, lambda _: {"token": TOKEN}, "speaks TLS, but this client does not"),
    ],
)
def test_mismatched_trust_is_reported_with_a_remedy(certificates, server, client_ca, credentials, message):
    serving_by = getattr(certificates, server) if server else None
    with serving(serving_by, certificates.ca_file if client_ca else "") as coordinator:
        with pytest.raises(CoordinatorTrustError, match=message):
            call(coordinator.address, **credentials(certificates))
        assert not coordinator.calls


def test_a_client_certificate_of_the_authority_is_accepted(certificates, trusting):
    with serving(certificates.server, certificates.ca_file) as server:
        assert call(server.address, **pair(certificates.client), **trusting)


def test_the_system_s_authorities_are_the_default(certificates, monkeypatch):
    """Linux connects ``0.0.0.0`` to this machine, but SUPER does not treat it as loopback."""
    with serving(certificates.server) as server:
        address = f"0.0.0.0:{server.address.partition(':')[2]}"
        with pytest.raises(CoordinatorTrustError, match="Set SUPER_COORDINATOR_CA_FILE"):
            call(address, name="localhost", token=TOKEN)
        monkeypatch.setenv("SSL_CERT_FILE", certificates.ca_file)
        assert call(address, name="localhost", token=TOKEN)


def test_every_call_sends_the_token_and_follows_its_file(certificates, trusting, tmp_path, caplog):
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with serving(certificates.server) as server:
        call(server.address, token_file=str(file), **trusting)
        file.write_text(f"{TOKEN}-renewed\n{TOKEN}\n")
        call(server.address, token_file=str(file), **trusting)
        file.write_text("")
        with caplog.at_level(logging.WARNING):
            call(server.address, token_file=str(file), **trusting)
        assert server.tokens == [f"Bearer {TOKEN}", f"Bearer {TOKEN}-renewed", f"Bearer {TOKEN}-renewed"]
        assert "keeping the previous token" in caplog.text
        assert TOKEN not in caplog.text
        with pytest.raises(ConfigError, match="contains no token"):
            call(server.address, token_file=str(file), name="localhost", **trusting)


def test_plain_text_beyond_loopback_requires_insecure(caplog):
    with serving() as server:
        address = f"0.0.0.0:{server.address.partition(':')[2]}"
        with pytest.raises(CoordinatorTrustError, match="does not use TLS.*SUPER_INSECURE=1"):
            call(address, token=TOKEN)
        assert not server.calls
        for _ in range(2):
            call(address, token=TOKEN, insecure=True)
        assert server.tokens == [f"Bearer {TOKEN}"] * 2
        assert caplog.text.count("INSECURE:") == 1
        assert TOKEN not in caplog.text


@pytest.fixture
def silent():
    """A listener that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_all_probes_of_a_call_share_a_time_limit(silent, monkeypatch):
    monkeypatch.setattr(client, "PROBING_S", 0.3)
    failing = [grpc.StatusCode.UNAVAILABLE] * 200  # of 0.3 s each, they would outlast it too
    with serving() as server:
        server.script.failures["GetJobStats"] = failing
        caller = Client(server.address, credentials=CoordinatorCredentials())
        monkeypatch.setattr(client, "diagnose_distrust", lambda _, *rest: diagnose_distrust(silent, *rest))
        with pytest.raises(CoordinatorUnreachableError, match="200 attempts"):
            caller.call(
                "GetJobStats",
                REQUEST,
                Patience(attempts=200, total_s=50.0, backoff_s=0.0001, backoff_max_s=0.001),
            )
