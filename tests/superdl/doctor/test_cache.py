"""The cache as a reader meets it: real servers, each broken in one way."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from superdl.coordinator.cache.info import CacheInfo
from superdl.doctor import CheckStatus
from superdl.doctor.service import judge_memory
from tests.fixtures.ports import free_port
from tests.fixtures.tls_front import TlsFront
from tests.fixtures.valkey import Valkey
from tests.superdl.doctor.conftest import asked, only

SECRET = "secret-of-the-test"
MEMORY = CacheInfo(frozenset({"a"}), 2**20, 2**30, "noeviction", 2**34, 12)


@pytest.fixture(autouse=True)
def _the_cache_alone(monkeypatch):
    only(monkeypatch, "cache", "cache memory")


@contextlib.contextmanager
def served(*commands, maxmemory="512mb", **options):
    with Valkey(maxmemory=maxmemory, **options) as server:
        with server.client() as client:
            for command in commands:
                client.execute_command(*command.split())
        yield server


def test_all_is_well(valkey, capsys):
    code, found = asked(capsys, "--cache", valkey.url)
    assert code == 0
    for check in ("cache", "cache memory"):
        assert found[check]["verdict"] == "ok", found[check]
    assert found["cache memory"]["measured"]["policy"] == "noeviction"
    with valkey.client() as client:
        assert client.dbsize() == 0  # nothing is left behind


def test_a_cache_that_wants_a_password(capsys):
    with served(f"CONFIG SET requirepass {SECRET}") as server:
        code, found = asked(capsys, "--cache", server.url)
    assert code == 1
    assert found["cache"]["verdict"] == "fail"
    assert "SUPER_CACHE_PASSWORD" in found["cache"]["reason"]
    assert found["cache memory"]["verdict"] == "skip"
    assert found["cache memory"]["reason"] == "not looked at, because the check 'cache' has failed"


def test_nobody_there(capsys):
    address = f"redis://127.0.0.1:{free_port()}"
    code, found = asked(capsys, "--cache", address)
    assert code == 1
    assert address in found["cache"]["reason"]
    assert "security group" in found["cache"]["remedy"]


@pytest.mark.parametrize(
    ("rules", "code", "words"),
    [
        ("%R~super:r1:* %W~super:n1:* +get +xadd", 0, "may read records"),
        ("%R~super:r1:* %W~super:n1:* +get", 1, "%W~super:n1:* +xadd"),
        ("%R~super:r1:* %W~super:n2:* +get +xadd", 1, "write read reports"),
        ("%R~super:r9:* %W~super:n1:* +get +xadd", 1, "a reader needs GET on super:r1:*"),
    ],
)
def test_rights_of_a_reader(capsys, monkeypatch, rules, code, words):
    monkeypatch.setenv("SUPER_CACHE_USERNAME", "reader")
    monkeypatch.setenv("SUPER_CACHE_PASSWORD", SECRET)
    with served(f"ACL SETUSER reader on >{SECRET} resetkeys -@all {rules} +cluster|slots +asking") as server:
        ended, found = asked(capsys, "--cache", server.url)
    assert found["cache memory"]["verdict"] == "skip"
    told = found["cache"]
    assert told["verdict"] == ("fail" if code else "ok"), told
    assert words in told["reason"] + told["remedy"]
    if not code:  # what a reader may not ask for says so
        assert "INFO" in found["cache memory"]["reason"]
    assert ended == code


def test_a_certificate_of_nobody_that_is_known(valkey, certificates, monkeypatch, capsys):
    with TlsFront(f"{valkey.directory}/redis.sock", certificates) as front:
        address = f"rediss://127.0.0.1:{front.port}"
        code, found = asked(capsys, "--cache", address)
        assert code == 1
        assert "SUPER_CACHE_CA_FILE" in found["cache"]["reason"]
        monkeypatch.setenv("SUPER_CACHE_CA_FILE", certificates.ca_file)
        code, found = asked(capsys, "--cache", address)
        assert code == 0, found
        assert "by TLS" in found["cache"]["reason"]


@pytest.mark.parametrize(
    ("change", "words", "remedy"),
    [
        ({"policy": "allkeys-lru"}, "policy allkeys-lru", "noeviction"),
        ({"maxmemory": 0}, "maxmemory is not set", "config set maxmemory"),
        ({"evicted_keys": 7}, "7 keys", "maxmemory is too small"),
    ],
)
def test_memory_that_is_set_wrong(change, words, remedy):
    found = judge_memory(replace(MEMORY, **change))
    assert judge_memory(MEMORY).verdict is CheckStatus.GOOD
    assert found.verdict is CheckStatus.DOUBTFUL
    assert words in found.reason
    assert remedy in found.remedy
