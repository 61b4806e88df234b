"""A coordinator's certificate: from files or text, renewed while serving, and checked."""

import logging
import shutil
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from superdl.coordinator.server import trust as trust_module
from superdl.coordinator.server.grpc_server import Health
from superdl.coordinator.server.trust import ServerTls
from superdl.super_wire.errors import ConfigError
from tests.coordinator.running import serving


def presented(port, ca_file, client=None):
    """Return the names in the certificate that a server presents to a TLS client."""
    context = ssl.create_default_context(cafile=ca_file)
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    if client is not None:
        context.load_cert_chain(client.cert_file, client.key_file)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as connected,
        context.wrap_socket(connected) as encrypted,
    ):
        if not encrypted.recv(1):
            raise EOFError
        return [name for _, name in encrypted.getpeercert()["subjectAltName"]]


@pytest.mark.parametrize(
    "form",
    [str, lambda file: Path(file).read_text(), lambda file: Path(file).read_text().replace("\n", "\\n")],
)
def test_a_certificate_may_be_a_file_or_text(serving_loop, certificates, form):
    tls = ServerTls(form(certificates.server.cert_file), form(certificates.server.key_file))
    serving(serving_loop, lambda port, _: presented(port, certificates.ca_file), tls=tls)


def test_clients_need_a_certificate_of_the_authority(serving_loop, certificates):
    def use(port, _):
        assert "localhost" in presented(port, certificates.ca_file, certificates.client)
        for wrong in (None, certificates.stranger):
            with pytest.raises((EOFError, OSError)):
                presented(port, certificates.ca_file, wrong)

    pair = certificates.server
    serving(serving_loop, use, tls=ServerTls(pair.cert_file, pair.key_file, certificates.ca_file))


def test_a_certificate_renewed_on_disk_is_used_on_all_ports(serving_loop, certificates, tmp_path, caplog):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def put(cert_file, key_file):
        shutil.copy(cert_file, cert)
        shutil.copy(key_file, key)

    def use(port, _):
        with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
            context, other_port = tls.context(), server.getsockname()[1]  # that of the metrics

            def serve():
                with context.wrap_socket(server.accept()[0], server_side=True) as connection:
                    connection.sendall(b"x")

            def names():
                serving_other = pool.submit(serve)
                other = presented(other_port, certificates.ca_file)
                serving_other.result()
                assert presented(port, certificates.ca_file) == other
                return other

            assert "localhost" in names()
            put(certificates.server.cert_file, certificates.elsewhere.key_file)  # half of a renewal
            assert "localhost" in names()
            put(certificates.elsewhere.cert_file, certificates.elsewhere.key_file)
            assert names() == ["cache.example"]
            cert.unlink()
            assert names() == ["cache.example"]

    put(certificates.server.cert_file, certificates.server.key_file)
    tls = ServerTls(str(cert), str(key))
    serving(serving_loop, use, tls=tls)
    assert caplog.text.count("cannot load the renewed certificate") == 2


def test_an_unusable_certificate_is_named_without_repeating_a_key(certificates, tmp_path):
    pair, secret = certificates.server, "MHcCAQEEIIIIIIIIIIIIIIIIIIIIIIIIII"
    text = tmp_path / "text"
    text.write_text("no certificate")
    broken = Path(pair.key_file).read_text().replace("A", "B")
    cases = [
        ((str(tmp_path / "none.pem"), pair.key_file), "tls_cert must be the path.*none.pem.*No such file"),
        ((str(text), pair.key_file), f"tls_cert={text} is not a PEM file"),
        ((pair.cert_file, secret), "tls_key must be the path.*No such file"),
        ((pair.cert_file, broken), "tls_cert and tls_key cannot be used"),
        (
            (pair.cert_file, certificates.client.key_file),
            "tls_cert and tls_key cannot be used: .*KEY_VALUES_MISMATCH",
        ),
        ((pair.cert_file, pair.key_file, pair.key_file), "tls_client_ca contains no CA certificates"),
    ]
    for given, reason in cases:
        with pytest.raises(ConfigError, match=reason) as caught:
            ServerTls(*given)
        assert secret not in str(caught.value)
        assert broken.splitlines()[1] not in str(caught.value)


def test_a_certificate_that_expires_soon_or_has_expired_is_logged(certificates, caplog, monkeypatch):
    for pair, days, expected in (
        (certificates.server, 30, (logging.WARNING, "expires at")),
        (certificates.server, 0, None),
        (certificates.expired, 0, (logging.ERROR, "expired at")),
    ):
        caplog.clear()
        monkeypatch.setattr(trust_module, "_WARN_DAYS", days)
        ServerTls(pair.cert_file, pair.key_file)
        assert [record.levelno for record in caplog.records] == ([expected[0]] if expected else [])
        assert not expected or expected[1] in caplog.text


def test_a_health_port_serves_only_checks_in_plain_text(serving_loop, certificates):
    health, tls = Health(), ServerTls(certificates.server.cert_file, certificates.server.key_file)

    def use(_, probed):
        with grpc.insecure_channel(f"127.0.0.1:{probed}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for service, health.serves in (("super.v1.Coordinator", True), ("", False)):
                status = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status
                assert (status == health_pb2.HealthCheckResponse.SERVING) == health.serves
            # A client could keep a Watch open.
            for method in ("super.v1.Coordinator/GetJobStats", "grpc.health.v1.Health/Watch"):
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary(f"/{method}")(b"", timeout=10)
                assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    serving(serving_loop, use, tls=tls, health=health)
