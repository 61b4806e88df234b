"""The function on the tests' Lambda, where real environments run it: present, ours, allowed."""

import pytest

from tests.coordinator.executors.lambda_running import handler_of
from tests.superdl.doctor.conftest import judged, only

ON_LAMBDA = ("--executor", "lambda")


@pytest.fixture(autouse=True)
def _the_function_alone(monkeypatch):
    only(monkeypatch, "coordinator", "cache", "function")


@pytest.fixture
def service(lambda_service):
    """With an identity, but nobody at AWS who would know it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SUPER_S3_ENDPOINT_URL", lambda_service.url)
        yield lambda_service


def test_a_function_that_is_ours(service, valkey, capsys):
    judged(capsys, *ON_LAMBDA, "--cache", valkey.url, function=["ok"])


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
    judged(capsys, *ON_LAMBDA, "--cache", valkey.url, function=["fail", *words])


def test_an_identity_that_may_not_invoke_and_a_cache_that_is_not_named(service, valkey, capsys):
    service.denied = ("/invocations",)
    refused = ["fail", "lambda:InvokeFunction"]
    judged(capsys, *ON_LAMBDA, "--cache", valkey.url, function=refused)
    judged(capsys, *ON_LAMBDA, function=["skip", "--cache"])
