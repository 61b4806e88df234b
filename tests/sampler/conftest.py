"""A scripted coordinator in the test's own process, and a run of the embedded default with a stand-in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sampler.scripted_coordinator import ScriptedCoordinator
from tests.sampler.supervised import Supervised

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def coordinator() -> Iterator[ScriptedCoordinator]:
    server = ScriptedCoordinator()
    yield server
    server.stop()


@pytest.fixture
def supervised(monkeypatch) -> Iterator[Supervised]:
    run = Supervised(monkeypatch)
    yield run
    run.close()
