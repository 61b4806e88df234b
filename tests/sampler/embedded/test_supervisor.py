"""The supervisor's process is light, since one stands beside every training run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from superdl.sampler.embedded.executor_choice import ExecutorChoice
from superdl.sampler.embedded.supervisor_settings import SupervisorSettings

ROOT = Path(__file__).resolve().parents[3]


def test_it_loads_neither_torch_nor_grpc():
    done = subprocess.run(
        [sys.executable, "-c", "import superdl.sampler.embedded.supervisor, sys; print(*sys.modules)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = set(done.stdout.split())
    assert "superdl.sampler.embedded.supervisor" in loaded
    assert not loaded & {"torch", "grpc", "google.protobuf", "redis"}


def test_settings_survive_the_command_line():
    settings = SupervisorSettings(
        cache_bytes=7,
        workers=2,
        coordinator=("a b", "-c"),
        grace_s=0.5,
        choice=ExecutorChoice("lambda", "rediss://cache:6379", "one\ntwo"),
    )
    assert SupervisorSettings.from_json(settings.to_json()) == settings


def test_the_defaults_are_this_hosts(monkeypatch):
    monkeypatch.setenv("SUPER_CACHE_BYTES", "64mb")
    settings = SupervisorSettings.of_this_host()
    assert settings.cache_bytes == 64 * 2**20
    assert settings.workers >= 1
    assert settings.coordinator == (sys.executable, "-P", "-m", "superdl.coordinator")
