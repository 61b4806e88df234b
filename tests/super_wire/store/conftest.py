"""Stores of both kinds: a directory, and a prefix of a bucket that a real S3 server serves."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from superdl.coordinator.catalog.s3_client import make_s3_client
from superdl.super_wire.store import bucket_and_prefix, is_bucket, open_store, parse_store
from tests.fixtures.object_store import serve_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from superdl.super_wire.store import Store

BUCKET = "stores"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A bucket that a server serves; the environment leads there."""
    place = tmp_path_factory.mktemp("served") / "buckets"
    with pytest.MonkeyPatch.context() as patch, serve_objects(place, patch) as served:
        (served.directory / BUCKET).mkdir()
        yield BUCKET


@pytest.fixture(params=["directory", "bucket"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where a store may be made; nothing is there yet."""
    if request.param == "directory":
        return parse_store(str(tmp_path_factory.mktemp("stores") / "store"))
    return f"s3://{request.getfixturevalue('bucket')}/deep/{next(_numbers)}"


@pytest.fixture
def opened(address: str) -> Iterator[Callable[..., Store]]:
    """Opens the store at ``address``; clients of S3 end with the test."""
    clients: list[Any] = []

    def client() -> Any:
        clients.append(make_s3_client())
        return clients[-1]

    yield lambda *, create=True, read_only=False: open_store(
        address, create=create, read_only=read_only, s3_client=client
    )
    for made in clients:
        made.close()


@dataclass(frozen=True)
class Putter:
    """Called, it puts somebody's file where a store is or may be."""

    address: str
    client: Any

    def __call__(self, name: str, data: bytes) -> None:
        if is_bucket(self.address):
            bucket, prefix = bucket_and_prefix(self.address)
            self.client.put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=data)
            return
        path = Path(self.address, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def held(self, name: str) -> bytes:
        """What is there under this name."""
        if not is_bucket(self.address):
            return Path(self.address, name).read_bytes()
        bucket, prefix = bucket_and_prefix(self.address)
        return self.client.get_object(Bucket=bucket, Key=f"{prefix}/{name}")["Body"].read()


@pytest.fixture
def put(address: str) -> Iterator[Putter]:
    client = make_s3_client() if is_bucket(address) else None
    yield Putter(address, client)
    if client is not None:
        client.close()
