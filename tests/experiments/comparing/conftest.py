"""A console whose words can be read, and runs that start their own services."""

import io

import pytest
from rich.console import Console


@pytest.fixture
def console():
    """Prints to a text."""
    return Console(file=io.StringIO(), width=120)


@pytest.fixture(autouse=True)
def no_coordinator(monkeypatch):
    """Runs start their own services."""
    monkeypatch.delenv("SUPER_COORDINATOR", raising=False)
