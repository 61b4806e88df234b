"""Fixtures of the executors' tests: a real cache, and misbehaving functions that workers can import."""

from pathlib import Path

import pytest

from tests.coordinator.executors.functions import MODULE
from tests.fixtures.valkey import valkey

__all__ = ["valkey"]

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def functions(monkeypatch):
    """The module of misbehaving functions, importable by workers."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return MODULE
