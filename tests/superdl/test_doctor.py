"""The doctor's checks: what they see of this machine, of a real coordinator and cache, and say of it."""

from __future__ import annotations

import argparse
import json
import os

import pytest

from super_wire import coordinator_pb2 as pb
from super_wire.errors import ConfigError
from superdl.doctor import Verdict
from superdl.doctor.machine import check_shared_memory
from superdl.doctor.services import _judge_room
from superdl.doctor.stack import Stack, read_stack
from superdl.doctor_command import add_arguments, run
from tests.fixtures.valkey import Valkey, free_port

MIB = 2**20


def doctor(capsys, *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    code = run(parser.parse_args([*words, "--json"]))
    return code, {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}


@pytest.fixture(autouse=True)
def _nothing_is_named(monkeypatch):
    for name in ("SUPER_COORDINATOR", "SUPER_CACHE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("size", "free", "verdict"),
    [
        (64 * MIB, 64 * MIB, Verdict.BAD),
        (1024 * MIB, 16 * MIB, Verdict.DOUBTFUL),
        (1024 * MIB, 900 * MIB, Verdict.GOOD),
    ],
)
def test_shared_memory(monkeypatch, size, free, verdict):
    sizes = (4096, 4096, size // 4096, free // 4096, free // 4096, 0, 0, 0, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(sizes))
    found = check_shared_memory()
    assert found.verdict is verdict
    assert f"{size // MIB:,} MiB" in found.reason
    assert ("--shm-size" in found.remedy) is (verdict is not Verdict.GOOD)


def test_a_system_without_shared_memory(tmp_path):
    assert check_shared_memory(tmp_path / "none").verdict is Verdict.SKIPPED


def test_all_is_well(stack, capsys):
    code, found = doctor(capsys, "--coordinator", stack.address, "--cache", stack.valkey.unix_url)
    assert code == 0
    assert found["coordinator"]["verdict"] == "good"
    assert "0.0 of 0." in found["room in the cache"]["reason"]
    assert found["cache"]["verdict"] == "good"


def test_a_cache_that_wants_a_password(capsys):
    server = Valkey()
    server.start()
    try:
        with server.client() as client:
            client.config_set("requirepass", "secret-of-the-test")
        code, found = doctor(capsys, "--cache", server.unix_url)
    finally:
        server.close()
    assert code == 1
    assert found["cache"]["verdict"] == "bad"
    assert "SUPER_CACHE_PASSWORD" in found["cache"]["reason"]
    assert found["coordinator"]["verdict"] == "skipped"


def test_nobody_there(capsys):
    address = f"redis://127.0.0.1:{free_port()}"
    code, found = doctor(capsys, "--cache", address)
    assert code == 1
    assert address in found["cache"]["reason"]


def test_a_cache_that_is_too_small_is_doubtful():
    found = _judge_room(
        pb.CacheStats(budget_bytes=2**30, resident_bytes=2**30, thrashing=True, needed_bytes=4 * 2**30)
    )
    assert found.verdict is Verdict.DOUBTFUL
    assert "4.0 GiB" in found.remedy


OUTPUTS = {"CoordinatorAddress": "coordinator.super.internal:50051", "CacheAddress": "rediss://cache:6379"}


@pytest.mark.parametrize(
    "content",
    [
        OUTPUTS,
        {"Stacks": [{"Outputs": [{"OutputKey": k, "OutputValue": v} for k, v in OUTPUTS.items()]}]},
    ],
)
def test_addresses_of_a_stack(tmp_path, content):
    (tmp_path / "stack.json").write_text(json.dumps(content))
    assert read_stack(str(tmp_path / "stack.json")) == Stack(*OUTPUTS.values())


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"Stacks": []}', '{"Stacks": [{"Outputs": 3}]}', '{"a": 1}']
)
def test_what_is_no_stack_is_refused(tmp_path, text):
    (tmp_path / "stack.json").write_text(text)
    with pytest.raises(ConfigError, match=r"stack\.json"):
        read_stack(str(tmp_path / "stack.json"))
