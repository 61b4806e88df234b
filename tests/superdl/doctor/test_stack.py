"""Where a stack's parts are: from its outputs, in a file or asked for."""

from __future__ import annotations

import json

import pytest

from superdl.doctor.stack import Stack, read_stack
from superdl.super_wire.errors import ConfigError
from tests.fixtures.valkey import free_port
from tests.superdl.doctor.asking import asked

OUTPUTS = {
    "CoordinatorAddress": "coordinator.super.internal:50051",
    "CacheAddress": "rediss://cache:6379",
    "FunctionArn": "arn:aws:lambda:eu-west-1:123456789012:function:super-prefetch:3",
    "Region": "eu-west-1",
    "Bucket": "photos",
    "Prefix": "train/",
}


@pytest.mark.parametrize(
    "content",
    [
        OUTPUTS,
        {"Stacks": [{"Outputs": [{"OutputKey": k, "OutputValue": v} for k, v in OUTPUTS.items()]}]},
    ],
)
def test_addresses_of_a_stack(tmp_path, content):
    (tmp_path / "stack.json").write_text(json.dumps(content))
    stack = read_stack(str(tmp_path / "stack.json"))
    assert stack == Stack(*OUTPUTS.values())
    assert stack.readable == "s3://photos/train/"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"Stacks": []}', '{"Stacks": [{"Outputs": 3}]}', '{"a": 1}']
)
def test_what_is_no_stack_is_refused(tmp_path, text):
    (tmp_path / "stack.json").write_text(text)
    with pytest.raises(ConfigError, match=r"stack\.json"):
        read_stack(str(tmp_path / "stack.json"))


def test_a_file_that_is_not_there_is_asked_of_nobody():
    with pytest.raises(ConfigError, match=r"stack\.json cannot be read"):
        read_stack("no/such/stack.json")


def test_who_may_not_ask_is_told_what_helps(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ConfigError, match=r"the stack super-1 cannot be asked for: .*DescribeStacks"):
        read_stack("super-1")


def test_the_doctor_finds_addresses_by_it(stack, tmp_path, capsys):
    outputs = {**OUTPUTS, "CoordinatorAddress": stack.address, "CacheAddress": stack.valkey.unix_url}
    (tmp_path / "stack.json").write_text(json.dumps(outputs))
    named = ("--stack", str(tmp_path / "stack.json"), "--executor", "local")
    code, found = asked(capsys, *named)
    assert code == 0, found
    assert found["coordinator"]["verdict"] == found["cache"]["verdict"] == "ok"
    assert "below s3://photos/train/" in found["listing"]["remedy"]
    assert found["function"]["verdict"] == "skip"  # it is the coordinator's
