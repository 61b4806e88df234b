"""A console whose output can be read, and runs that start their own services."""

import io

import pytest
from rich.console import Console


@pytest.fixture
def console():
    """Print to a StringIO."""
    return Console(file=io.StringIO(), width=120)


@pytest.fixture(autouse=True)
def no_coordinator(monkeypatch):
    """Let runs start their own services."""
    monkeypatch.delenv("SUPER_COORDINATOR", raising=False)
