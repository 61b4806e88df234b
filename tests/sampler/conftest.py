"""Fixtures: a scripted coordinator in this process, and a run of the embedded default."""

import pytest

from tests.sampler.embedded_run import EmbeddedRun
from tests.sampler.scripted_coordinator import ScriptedCoordinator


@pytest.fixture
def coordinator():
    server = ScriptedCoordinator()
    yield server
    server.stop()


@pytest.fixture
def embedded_run(monkeypatch):
    run = EmbeddedRun(monkeypatch)
    yield run
    run.close()
