"""The function on the tests' Lambda, where real environments run it: present, ours, within its limits."""

from __future__ import annotations

import pytest

from superdl.doctor import CheckStatus
from superdl.doctor.lambda_function import judge_concurrency
from tests.coordinator.executors.lambda_running import handler_of
from tests.fixtures.stack import Stack
from tests.fixtures.valkey import free_port
from tests.superdl.doctor.asking import asked, only

ON_LAMBDA = ("--executor", "lambda")


@pytest.fixture(autouse=True)
def _the_function_alone(monkeypatch):
    only(monkeypatch, "credentials", "coordinator", "cache", "function")


@pytest.fixture
def service(lambda_service):
    """With an identity, but nobody at AWS who would know it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPER_S3_ENDPOINT_URL", lambda_service.url)
        yield lambda_service


def test_a_function_that_is_ours(service, valkey, capsys):
    code, found = asked(capsys, *ON_LAMBDA, "--cache", valkey.url)
    assert code == 0, found
    assert found["function"]["verdict"] == found["credentials"]["verdict"] == "ok"
    limits = {"wanted": 100, "limit": 1000}
    assert found["function"]["measured"] == {"memory_mb": 1769, "timeout_s": 60, **limits}
    assert "reaches the cache" in found["function"]["reason"]


def test_a_function_that_is_not_there(service, capsys):
    code, found = asked(capsys, *ON_LAMBDA, "--lambda-function", "nobody")
    assert code == 1
    assert "the function nobody" in found["function"]["reason"]
    assert "deploy it" in found["function"]["reason"]


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        ("of_another_version", ("is SUPER 9.9.9", "deploy the function of")),
        pytest.param("of_no_version", ("deploy SUPER's function there",), marks=pytest.mark.slow),
    ],
)
def test_a_function_that_is_another(service, capsys, handler, words):
    service.deploy(handler=handler_of(handler))
    code, found = asked(capsys, *ON_LAMBDA)
    assert (code, found["function"]["verdict"]) == (1, "fail")
    assert all(one in found["function"]["reason"] for one in words)


@pytest.mark.slow
def test_a_function_that_decodes_otherwise(service, capsys):
    service.deploy(handler=handler_of("decoding_otherwise"))
    code, found = asked(capsys, *ON_LAMBDA)
    assert code == 0
    assert "decodes images otherwise than this machine" in found["function"]["reason"]
    code, found = asked(capsys, "--executor", "local,lambda")
    assert code == 1
    assert "share a cache" in found["function"]["remedy"]


@pytest.mark.slow
def test_a_function_that_does_not_reach_the_cache(service, valkey, capsys):
    service.deploy(environment={"SUPER_CACHE_PASSWORD": "wrong"})
    code, found = asked(capsys, *ON_LAMBDA, "--cache", valkey.url)
    assert code == 1
    assert "cannot use the cache" in found["function"]["reason"]
    assert found["cache"]["verdict"] == "ok"


@pytest.mark.slow
def test_a_function_that_is_small_slow_and_few(service, capsys):
    service.deploy(memory_mb=256, timeout_s=60.0)
    service.concurrency, service.reserved = 1000, 3
    code, found = asked(capsys, *ON_LAMBDA, "--lambda-concurrency", "50")
    assert code == 0
    assert found["function"]["verdict"] == "warn"
    assert "1769 MB" in found["function"]["remedy"]
    assert "3 are reserved" in found["function"]["reason"]


def test_an_identity_that_may_not_look(service, capsys):
    service.denied = ("/configuration", "/invocations", "/account-settings")
    code, found = asked(capsys, *ON_LAMBDA)
    assert code == 1
    assert found["function"]["verdict"] == "fail"
    assert "lambda:InvokeFunction" in found["function"]["reason"]


@pytest.mark.slow
def test_with_a_coordinator_its_role_is_what_counts(service, valkey, capsys):
    words = ("--executor", "lambda", "--lambda-warm", "1", "--lambda-concurrency", "7")
    running = Stack(arguments=words, cache=valkey.url)
    running.start()
    try:
        code, found = asked(capsys, "--coordinator", running.address)
        assert code == 0, found
        assert found["function"]["verdict"] == "ok"
        assert found["function"]["measured"]["wanted"] == 7  # the coordinator told it
        service.denied = ("/configuration", "/invocations", "/account-settings")
        code, found = asked(capsys, "--coordinator", running.address)
        assert code == 0, found
        assert found["function"]["verdict"] == "skip"
    finally:
        service.denied = ()
        running.close()


@pytest.mark.parametrize(
    ("limits", "verdict", "words"),
    [
        ({"unreserved": 900, "reserved": -1}, CheckStatus.GOOD, "900"),
        ({"unreserved": 10, "reserved": -1}, CheckStatus.DOUBTFUL, "Service Quotas"),
        ({"unreserved": 900, "reserved": 0}, CheckStatus.BAD, "0 stops it"),
        ({"unreserved": 0, "reserved": 100}, CheckStatus.GOOD, "100 are reserved"),
    ],
)
def test_limits(limits, verdict, words):
    found = judge_concurrency(100, **limits)
    assert found.verdict is verdict
    assert words in found.reason + found.remedy


@pytest.mark.slow
def test_functions_on_a_ray_cluster(ray_cluster, valkey, monkeypatch, capsys):
    monkeypatch.setenv("SUPER_RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    code, found = asked(capsys, "--executor", "ray", "--cache", valkey.url)
    assert code == 1
    assert found["function"]["verdict"] == "fail"
    monkeypatch.setenv("SUPER_RAY_ADDRESS", ray_cluster.address)
    code, found = asked(capsys, "--executor", "ray", "--cache", valkey.url)
    assert code == 1
    assert "add one" in found["function"]["reason"]  # there is no node but the head
    ray_cluster.add(cpus=2)
    code, found = asked(capsys, "--executor", "ray", "--cache", valkey.url)
    assert code == 0, found
    assert found["function"]["measured"]["places"] == 2
    assert "decodes images as this machine does" in found["function"]["reason"]
