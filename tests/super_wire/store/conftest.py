"""Stores of both kinds: in a directory, and in a bucket of a real S3 server."""

import itertools

import pytest

from superdl.super_wire.store import open_store, parse_store
from tests.fixtures.object_store import serve_objects
from tests.super_wire.store.packing import Putter

BUCKET = "stores"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """A bucket on a real S3 server, to which the environment points."""
    place = tmp_path_factory.mktemp("served") / "buckets"
    with pytest.MonkeyPatch.context() as patch, serve_objects(place, patch) as served:
        (served.directory / BUCKET).mkdir()
        yield BUCKET


@pytest.fixture(params=["directory", "bucket"])
def new_address(request, tmp_path_factory):
    """Return a function that returns unused addresses."""
    if request.param == "directory":
        return lambda: parse_store(str(tmp_path_factory.mktemp("stores") / "store"))
    bucket = request.getfixturevalue("bucket")
    return lambda: f"s3://{bucket}/deep/{next(_numbers)}"


@pytest.fixture
def address(new_address):
    """An unused address."""
    return new_address()


@pytest.fixture
def opened(address):
    """A function that opens the store at ``address``."""
    return lambda *, create=True, read_only=False: open_store(address, create=create, read_only=read_only)


@pytest.fixture
def put(address):
    return Putter(address)
