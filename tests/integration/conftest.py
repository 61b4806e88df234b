"""What several integration tests need: short directories for unix sockets, and a stack of a whole file."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.stack import Stack

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def temporary() -> Iterator[Path]:
    """A short temporary directory: paths of unix sockets have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="super-i-") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def shared_stack() -> Iterator[Stack]:
    """One for all tests of a file, with a function worker for each core."""
    running = Stack(arguments=("--workers", str(os.cpu_count() or 1)))
    running.start()
    yield running
    gc.collect()  # samplers that nobody holds any more end their threads
    running.close()
