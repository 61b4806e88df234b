"""The pusher reports which records the cache acknowledged, and fails fast if the cache is gone.

The password may come from Secrets Manager (moto's server). Rotation costs no record. Errors do not show the
secret.
"""

import contextlib
import json
import traceback

import boto3
import pytest

from superdl.lambda_prefetch.push import (
    Pusher,
    cache_connections,
    close_idle_connections,
)
from superdl.lambda_prefetch.settings import FunctionSettings
from superdl.super_wire.cache import WrongPasswordError
from superdl.super_wire.errors import CacheError
from tests.fixtures.loopback_http import LoopbackServer
from tests.fixtures.ports import free_port

HEADER = b"h" * 64
SETTINGS = FunctionSettings(push_bytes=2**20)
NAME, USER = "stack/function", "super-function"
FIRST, SECOND = "first-password-0123", "second-password-4567"


def push(cache, payloads, settings=SETTINGS, name="k"):
    with Pusher(cache, settings) as pusher:
        for index, payload in enumerate(payloads):
            pusher.put(index, b"super:r1:%b%d" % (name.encode(), index), HEADER, memoryview(payload))
    return [pushed.refusal for pushed in sorted(pusher.results, key=lambda pushed: pushed.index)]


def test_a_cache_that_is_gone_fails_every_record_with_the_reason(valkey):
    push(valkey.unix_url, [b"x"])
    valkey.kill()
    refusals = push(valkey.unix_url, [b"y" * 200_000] * 40)
    assert len(refusals) == 40
    assert all(valkey.unix_url in refusal for refusal in refusals)


def test_the_pusher_reports_that_the_cache_is_broken(tmp_path):
    with Pusher(f"unix://{tmp_path}/none.sock", SETTINGS) as pusher:
        pusher.put(0, b"k", HEADER, memoryview(b"x" * 300_000))
        pusher.put(1, b"k", HEADER, memoryview(b"x" * 900_000))  # has room only once the first was given up
        assert "none.sock" in pusher.broken


@pytest.fixture
def manager(moto_url, identity, monkeypatch):
    """A client of the function's Secrets Manager."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", moto_url)
    client = boto3.session.Session().client("secretsmanager")
    yield client
    for secret in client.list_secrets(IncludePlannedDeletion=True)["SecretList"]:
        client.delete_secret(SecretId=secret["ARN"], ForceDeleteWithoutRecovery=True)
    client.close()


def content(password):
    return json.dumps({"username": USER, "password": password})


@pytest.fixture
def secret(manager):
    """The ARN of a secret with the first password."""
    return manager.create_secret(Name=NAME, SecretString=content(FIRST))["ARN"]


def read_secret(name):
    with cache_connections("redis://127.0.0.1:1", FunctionSettings(cache_secret=name)) as nodes:
        assert not nodes.opened
    close_idle_connections()


def let_in(valkey, *passwords):
    """Give the ACL user exactly these passwords."""
    with valkey.client() as client:
        rules = ["on", "resetpass", "resetkeys", "-@all", "%W~super:r1:*", "+set", "+ping", "+cluster|slots"]
        client.execute_command("ACL", "SETUSER", USER, *rules, *(f">{password}" for password in passwords))


def test_a_password_change_costs_no_record(valkey, manager, secret):
    settings = FunctionSettings(cache_secret=secret)
    let_in(valkey, FIRST)
    assert push(valkey.unix_url, [b"x"], settings, "a") == [""]
    let_in(valkey, SECOND)
    manager.put_secret_value(SecretId=secret, SecretString=content(SECOND))
    assert push(valkey.unix_url, [b"x"], settings, "b") == [""]  # the open connection stays let in
    with valkey.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert push(valkey.unix_url, [b"x"], settings, "c") == [""]
    with valkey.client() as client:
        assert client.exists("super:r1:a0", "super:r1:b0", "super:r1:c0") == 3


def test_a_wrong_password_in_the_secret_is_reported(valkey, secret):
    let_in(valkey, SECOND)
    settings = FunctionSettings(cache_secret=secret)
    with (
        pytest.raises(WrongPasswordError, match="SUPER_CACHE_SECRET"),
        cache_connections(valkey.unix_url, settings) as nodes,
    ):
        nodes.connect()


def test_a_secret_is_read_once_it_exists_and_then_cached(manager):
    with pytest.raises(CacheError, match="ResourceNotFoundException"):
        read_secret(f"{NAME}-later")
    arn = manager.create_secret(Name=f"{NAME}-later", SecretString=content(FIRST))["ARN"]
    read_secret(f"{NAME}-later")
    manager.delete_secret(SecretId=arn, ForceDeleteWithoutRecovery=True)
    read_secret(f"{NAME}-later")


@pytest.mark.parametrize(
    "text", ["hunter2-not-json", '["hunter2"]', '{"username": "hunter2"}', '{"password": ["hunter2"]}']
)
def test_an_invalid_secret_is_named_and_not_shown(manager, text):
    arn = manager.create_secret(Name=NAME, SecretString=text)["ARN"]
    with pytest.raises(CacheError) as caught:
        read_secret(arn)
    assert arn in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert "hunter2" not in repr(vars(caught.value)) + repr(caught.value.__context__)


def test_errors_of_secrets_manager_name_the_remedy(manager, monkeypatch):
    said = json.dumps({"__type": "AccessDeniedException", "Message": "User: fn is not authorized"}).encode()
    with contextlib.closing(LoopbackServer(lambda request: request.answer(400, {}, said))) as server:
        for port, remedy in ((server.port, "GetSecretValue on it"), (free_port(), "interface endpoint")):
            monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", f"http://127.0.0.1:{port}")
            with pytest.raises(CacheError, match=remedy):
                read_secret(f"{NAME}-refused")


def test_a_secrets_region_is_in_its_arn(manager, secret, monkeypatch):
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    read_secret(secret)
    with pytest.raises(CacheError, match="set AWS_REGION"):
        read_secret(f"{NAME}-elsewhere")
