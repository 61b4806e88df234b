"""Fixtures of the function's tests: a real cache, and an S3 server on loopback with its credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

import boto3
import pytest
from moto.server import ThreadedMotoServer

from superdl.lambda_prefetch.caches import close_idle_connections
from superdl.lambda_prefetch.s3_lean import close_lean_clients
from tests.fixtures.valkey import valkey

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["valkey"]


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def no_connection_outlives_a_test() -> Iterator[None]:
    yield
    close_idle_connections()
    close_lean_clients()


@pytest.fixture
def s3(moto_url, monkeypatch):
    """A client of an S3 server whose bucket ``data`` is empty; the function's settings lead there too."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "SUPER_S3_ENDPOINT_URL": moto_url,
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.session.Session().client("s3", endpoint_url=moto_url)
    client.create_bucket(Bucket="data")
    yield client
    for item in client.list_objects_v2(Bucket="data").get("Contents", []):
        client.delete_object(Bucket="data", Key=item["Key"])
    client.delete_bucket(Bucket="data")
    client.close()
