"""Stores of both kinds: a directory, and a prefix of a bucket that a real S3 server serves."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from superdl.super_wire.objects import open_bucket
from superdl.super_wire.store import bucket_and_prefix, is_bucket, open_store, parse_store
from tests.fixtures.object_store import serve_objects

BUCKET = "stores"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """A bucket that a server serves; the environment leads there."""
    place = tmp_path_factory.mktemp("served") / "buckets"
    with pytest.MonkeyPatch.context() as patch, serve_objects(place, patch) as served:
        (served.directory / BUCKET).mkdir()
        yield BUCKET


@pytest.fixture(params=["directory", "bucket"])
def new_address(request, tmp_path_factory):
    """Gives addresses where nothing is yet."""
    if request.param == "directory":
        return lambda: parse_store(str(tmp_path_factory.mktemp("stores") / "store"))
    bucket = request.getfixturevalue("bucket")
    return lambda: f"s3://{bucket}/deep/{next(_numbers)}"


@pytest.fixture
def address(new_address):
    """Where a store may be made; nothing is there yet."""
    return new_address()


@pytest.fixture
def opened(address):
    """Opens the store at ``address``."""
    return lambda *, create=True, read_only=False: open_store(address, create=create, read_only=read_only)


@dataclass(frozen=True)
class Putter:
    """Called, it puts somebody's file where a store is or may be."""

    address: str

    def __call__(self, name, data):
        if is_bucket(self.address):
            bucket, prefix = bucket_and_prefix(self.address)
            open_bucket(f"s3://{bucket}").put(f"{prefix}/{name}", data)
            return
        path = Path(self.address, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def held(self, name):
        """What is there under this name."""
        if not is_bucket(self.address):
            return Path(self.address, name).read_bytes()
        bucket, prefix = bucket_and_prefix(self.address)
        return bytes(open_bucket(f"s3://{bucket}").read(f"{prefix}/{name}"))


@pytest.fixture
def put(address):
    return Putter(address)
