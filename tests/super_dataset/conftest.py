"""Fixtures of the reader's tests: a real cache, and nothing that asks a coordinator."""

from __future__ import annotations

import pytest

from superdl.super_dataset import listed_source
from tests.fixtures.valkey import valkey

__all__ = ["valkey"]


@pytest.fixture(autouse=True)
def _no_coordination(monkeypatch):
    """As where nobody has imported from ``superdl``, whatever tests ran before."""
    monkeypatch.setattr(listed_source, "_coordination", None)
