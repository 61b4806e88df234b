"""A scripted coordinator in the test's own process, and a run of the embedded default."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sampler.embedded_run import EmbeddedRun
from tests.sampler.scripted_coordinator import ScriptedCoordinator

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def coordinator() -> Iterator[ScriptedCoordinator]:
    server = ScriptedCoordinator()
    yield server
    server.stop()


@pytest.fixture
def embedded_run(monkeypatch) -> Iterator[EmbeddedRun]:
    run = EmbeddedRun(monkeypatch)
    yield run
    run.close()
