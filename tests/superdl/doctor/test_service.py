"""Cache and function as a trainer meets them: real servers and a local Lambda, each broken in one way."""

import contextlib

import pytest

from tests.coordinator.executors.lambda_running import handler_of
from tests.fixtures.ports import free_port
from tests.fixtures.tls_front import TlsFront
from tests.fixtures.valkey import Valkey
from tests.superdl.doctor.conftest import check_findings, only

SECRET = "secret-of-the-test"
ON_LAMBDA = ("--executor", "lambda")


@pytest.fixture(autouse=True)
def _the_services_alone(monkeypatch, request):
    only(monkeypatch, "coordinator", "cache", *["function"] * ("service" in request.fixturenames))


@contextlib.contextmanager
def served(command):
    with Valkey(maxmemory="512mb") as server:
        with server.client() as client:
            client.execute_command(*command.split())
        yield server


def test_all_is_well(valkey, capsys):
    check_findings(capsys, "--cache", valkey.url, cache=["ok"])
    with valkey.client() as client:
        assert client.dbsize() == 0  # nothing is left behind


def test_nobody_there_and_a_cache_that_requires_a_password(capsys):
    address = f"redis://127.0.0.1:{free_port()}"
    check_findings(capsys, "--cache", address, cache=["fail", address])
    with served(f"CONFIG SET requirepass {SECRET}") as server:
        check_findings(capsys, "--cache", server.url, cache=["fail", "SUPER_CACHE_PASSWORD"])


@pytest.mark.parametrize(
    ("rules", "verdict", "words"),
    [
        ("%R~super:r1:* %W~super:n1:* +get +xadd", "ok", ""),
        ("%R~super:r1:* %W~super:n1:* +get", "fail", "%W~super:n1:* +xadd"),
        ("%R~super:r1:* %W~super:n2:* +get +xadd", "fail", "XADD"),
        ("%R~super:r9:* %W~super:n1:* +get +xadd", "fail", "GET on super:r1:*"),
    ],
)
def test_rights_of_a_reader(capsys, monkeypatch, rules, verdict, words):
    monkeypatch.setenv("SUPER_CACHE_USERNAME", "reader")
    monkeypatch.setenv("SUPER_CACHE_PASSWORD", SECRET)
    with served(f"ACL SETUSER reader on >{SECRET} resetkeys -@all {rules} +cluster|slots +asking") as server:
        check_findings(capsys, "--cache", server.url, cache=[verdict, words])


def test_a_certificate_of_nobody_that_is_known(valkey, certificates, monkeypatch, capsys):
    with TlsFront(f"{valkey.directory}/redis.sock", certificates) as front:
        address = f"rediss://127.0.0.1:{front.port}"
        check_findings(capsys, "--cache", address, cache=["fail", "SUPER_CACHE_CA_FILE"])
        monkeypatch.setenv("SUPER_CACHE_CA_FILE", certificates.ca_file)
        check_findings(capsys, "--cache", address, cache=["ok", "over TLS"])


@pytest.fixture
def service(lambda_service):
    """With an identity, but nobody at AWS who would know it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPER_S3_ENDPOINT_URL", lambda_service.url)
        yield lambda_service


def test_a_function_that_is_ours(service, valkey, capsys):
    check_findings(capsys, *ON_LAMBDA, "--cache", valkey.url, function=["ok"])


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (None, ("nobody",)),
        ("of_another_version", ("9.9.9",)),
        pytest.param("of_no_version", (), marks=pytest.mark.slow),
    ],
)
def test_a_function_that_is_not_there_or_another(service, valkey, monkeypatch, capsys, handler, words):
    if handler:
        service.deploy(handler=handler_of(handler))
    else:
        monkeypatch.setenv("SUPER_LAMBDA_FUNCTION", "nobody")
    check_findings(capsys, *ON_LAMBDA, "--cache", valkey.url, function=["fail", *words])


def test_an_identity_that_may_not_invoke_and_a_cache_that_is_not_named(service, valkey, capsys):
    service.denied = ("/invocations",)
    refused = ["fail", "lambda:InvokeFunction"]
    check_findings(capsys, *ON_LAMBDA, "--cache", valkey.url, function=refused)
    check_findings(capsys, *ON_LAMBDA, function=["skip", "--cache"])
