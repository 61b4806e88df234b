"""What several integration tests need: short directories for unix sockets, and a stack that they share."""

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
    """A short temporary directory: paths of unix sockets have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="super-i-") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def shared_stack():
    """One for all tests that leave it as it was, with a function worker for each core.

    Who needs samples that are not cached yet has a recipe or images of its own; who kills something takes
    ``restarted_stack``.
    """
    with Stack(arguments=("--slots", str(os.cpu_count() or 1))) as running:
        yield running
        gc.collect()  # samplers that nobody holds any more end their threads


@pytest.fixture(scope="session")
def restarted_stack():
    """One whose parts are killed and emptied; each test leaves a coordinator that serves."""
    with Stack(arguments=("--slots", "2")) as running:
        yield running
        gc.collect()


@pytest.fixture
def photos(object_store, images):
    """A source in S3 that holds the images; who starts from now on knows the object store."""
    shutil.copytree(images, object_store.directory / "photos" / "train")
    return "s3://photos/train"


@pytest.fixture(scope="session")
def expected(images):
    """The pixels and labels that the images have in most tests."""
    return expected_pixels(images, resize=SIDE, crop=SIDE)


@pytest.fixture
def here(shared_stack, monkeypatch):
    """A coordinator that the environment names."""
    monkeypatch.setenv("SUPER_COORDINATOR", shared_stack.address)
    yield shared_stack.address
    gc.collect()  # samplers that nobody holds are closed while it runs
