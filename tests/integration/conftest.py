"""Fixtures of the integration tests: short directories for unix sockets, and a shared stack."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack


@pytest.fixture(scope="module")
def temporary():
    """A short temporary directory: the path of a unix socket is limited to 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="super-i-") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def shared_stack():
    """A stack for all tests that leave it unchanged, with one function worker per core.

    Tests that need uncached samples use their own recipe or images; tests that kill something use
    ``restarted_stack``.
    """
    with Stack(arguments=("--slots", str(os.cpu_count() or 1))) as running:
        yield running
        gc.collect()  # unreferenced samplers stop their threads


@pytest.fixture(scope="session")
def restarted_stack():
    """A stack whose parts are killed and emptied. Each test must leave its coordinator serving."""
    with Stack(arguments=("--slots", "2")) as running:
        yield running
        gc.collect()


@pytest.fixture
def photos(object_store, images):
    """A source in S3 that holds the images. Processes started from now on use this object store."""
    shutil.copytree(images, object_store.directory / "photos" / "train")
    return "s3://photos/train"


@pytest.fixture(scope="session")
def expected(images):
    """The pixels and labels that most tests expect of the images."""
    return expected_pixels(images, resize=SIDE, crop=SIDE)


@pytest.fixture
def here(shared_stack, monkeypatch):
    """Name the coordinator in the environment."""
    monkeypatch.setenv("SUPER_COORDINATOR", shared_stack.address)
    yield shared_stack.address
    gc.collect()  # unreferenced samplers close while it still runs
