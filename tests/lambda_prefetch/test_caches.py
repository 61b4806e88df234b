"""The function gets its cache password out of Secrets Manager, follows its rotation, and says what is wrong.

Secrets Manager is moto's server; the cache is a real one whose ACL user changes its password.
"""

from __future__ import annotations

import contextlib
import json
import traceback

import boto3
import pytest

from superdl.lambda_prefetch.caches import take_cache, warm_connection
from superdl.lambda_prefetch.push import Pusher
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.super_wire.errors import CacheError
from tests.fixtures.loopback_http import LoopbackServer
from tests.fixtures.ports import free_port

NAME = "stack/function"
CACHE = "redis://127.0.0.1:1"  # nobody connects
USER = "super-function"
FIRST, SECOND = "first-password-0123", "second-password-4567"
HEADER = b"h" * 64


@pytest.fixture
def manager(moto_url, monkeypatch):
    """A client of Secrets Manager; the function's own boto3 leads to the same."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL_SECRETS_MANAGER": moto_url,
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.session.Session().client("secretsmanager")
    yield client
    for secret in client.list_secrets(IncludePlannedDeletion=True)["SecretList"]:
        client.delete_secret(SecretId=secret["ARN"], ForceDeleteWithoutRecovery=True)
    client.close()


def said(password, username=USER):
    return json.dumps({"username": username, "password": password})


@pytest.fixture
def secret(manager):
    """The ARN of a secret with the first password."""
    return manager.create_secret(Name=NAME, SecretString=said(FIRST))["ARN"]


def let_in(valkey, *passwords):
    """Make the ACL user have these passwords and no others."""
    with valkey.client() as client:
        rules = ["on", "resetpass", "resetkeys", "-@all", "%W~super:r1:*", "+set", "+ping", "+cluster|slots"]
        client.execute_command("ACL", "SETUSER", USER, *rules, *(f">{password}" for password in passwords))


def disconnect_everybody(valkey):
    with valkey.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def push(valkey, settings, name):
    with Pusher(valkey.unix_url, settings) as pusher:
        pusher.put(0, b"super:r1:" + name, HEADER, memoryview(b"payload"))
    return pusher.results[0].refusal


def test_a_password_that_changes_in_the_middle_costs_no_record(valkey, manager, secret):
    settings = FunctionSettings(cache_secret=secret)
    let_in(valkey, FIRST)
    assert push(valkey, settings, b"a") == ""
    let_in(valkey, SECOND)
    manager.put_secret_value(SecretId=secret, SecretString=said(SECOND))
    assert push(valkey, settings, b"b") == ""  # the open connection stays let in
    disconnect_everybody(valkey)
    assert push(valkey, settings, b"c") == ""
    with valkey.client() as client:
        assert client.exists("super:r1:a", "super:r1:b", "super:r1:c") == 3


def test_a_password_that_is_wrong_in_the_secret_too_is_the_caches_refusal(valkey, manager, secret):
    let_in(valkey, SECOND)
    with pytest.raises(CacheError, match="refused: WRONGPASS.*SUPER_CACHE_SECRET"):
        warm_connection(valkey.unix_url, FunctionSettings(cache_secret=secret))


def test_a_secret_is_read_once(manager, secret):
    take_cache(CACHE, FunctionSettings(cache_secret=secret))
    manager.delete_secret(SecretId=secret, ForceDeleteWithoutRecovery=True)
    take_cache(CACHE, FunctionSettings(cache_secret=secret))


def test_a_secret_that_comes_later_is_found(manager):
    settings = FunctionSettings(cache_secret=f"{NAME}-later")
    with pytest.raises(CacheError, match="ResourceNotFound"):
        take_cache(CACHE, settings)
    manager.create_secret(Name=f"{NAME}-later", SecretString=said(FIRST))
    take_cache(CACHE, settings)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("hunter2-not-json", "is not a JSON object"),
        ('["hunter2"]', "is not a JSON object"),
        ('{"username": "hunter2"}', "has no password"),
        ('{"password": ""}', "has no password"),
        ('{"password": ["hunter2"]}', "has no password"),
    ],
)
def test_a_secret_of_another_form_is_named_and_not_told(manager, content, reason):
    arn = manager.create_secret(Name=NAME, SecretString=content)["ARN"]
    with pytest.raises(CacheError, match=reason) as caught:
        take_cache(CACHE, FunctionSettings(cache_secret=arn))
    assert arn in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in repr(vars(caught.value)) + repr(caught.value.__context__)


def test_a_refusal_names_the_permission(manager, monkeypatch):
    said = {"__type": "AccessDeniedException", "Message": "User: fn is not authorized"}
    with contextlib.closing(
        LoopbackServer(lambda request: request.answer(400, {}, json.dumps(said).encode()))
    ) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", f"http://127.0.0.1:{server.port}")
        with pytest.raises(CacheError, match="AccessDeniedException: User: fn.*GetSecretValue"):
            take_cache(CACHE, FunctionSettings(cache_secret=f"{NAME}-refused"))


def test_a_network_without_a_way_there_is_told_of_the_endpoint(manager, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(CacheError, match="did not answer.*interface endpoint for secretsmanager"):
        take_cache(CACHE, FunctionSettings(cache_secret=f"{NAME}-away"))


def test_the_region_is_the_arns_own(manager, secret, monkeypatch):
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    take_cache(CACHE, FunctionSettings(cache_secret=secret))
    with pytest.raises(CacheError, match="set AWS_REGION"):
        take_cache(CACHE, FunctionSettings(cache_secret=f"{NAME}-elsewhere"))
