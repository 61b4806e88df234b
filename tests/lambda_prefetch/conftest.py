"""Fixtures for the function's tests: a real cache, and an S3 server on loopback with its credentials."""

import contextlib
import json

import boto3
import pytest
from moto.server import ThreadedMotoServer

from superdl.lambda_prefetch.push import close_idle_connections
from superdl.super_wire.objects import open_bucket
from superdl.super_wire.objects.directory import Directory
from superdl.super_wire.objects.s3 import close_connections
from superdl.super_wire.store import DirectoryStore, open_store
from tests.fixtures.loopback_http import LoopbackServer
from tests.fixtures.valkey import valkey
from tests.lambda_prefetch.prefetching import encode, file_version, pixels

__all__ = ["valkey"]


@pytest.fixture(scope="session")
def moto_url():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def identity(monkeypatch):
    """Set AWS credentials and a region."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3_server(identity, monkeypatch):
    """Start an S3 server with the given answers for the function. Return its bucket ``data``."""
    with contextlib.ExitStack() as servers:

        def start(answer):
            server = servers.enter_context(contextlib.closing(LoopbackServer(answer)))
            monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
            return open_bucket("s3://data")

        yield start


@pytest.fixture(autouse=True)
def no_connection_outlives_a_test():
    yield
    close_idle_connections()
    close_connections()


@pytest.fixture
def s3(moto_url, identity, monkeypatch):
    """A client of the function's S3 server, whose bucket ``data`` is empty."""
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", moto_url)
    client = boto3.session.Session().client("s3", endpoint_url=moto_url)
    client.create_bucket(Bucket="data")
    yield client
    for item in client.list_objects_v2(Bucket="data").get("Contents", []):
        client.delete_object(Bucket="data", Key=item["Key"])
    client.delete_bucket(Bucket="data")
    client.close()


@pytest.fixture
def root(tmp_path):
    """A directory with five images, 0.png to 4.png."""
    for n in range(5):
        (tmp_path / f"{n}.png").write_bytes(encode(pixels(seed=n)))
    return tmp_path


@pytest.fixture
def directory_store(tmp_path, monkeypatch):
    """The function's store, new, in a directory."""
    store = DirectoryStore.open(tmp_path / "store", create=True)
    monkeypatch.setenv("SUPER_STORE", store.address)
    return store


@pytest.fixture
def s3_store(s3, tmp_path, monkeypatch):
    """The function's store, new, at an S3 prefix."""
    assert s3  # sets the endpoint
    store = open_store(f"s3://data/stores/{tmp_path.name}", create=True)
    monkeypatch.setenv("SUPER_STORE", store.address)
    return store


@pytest.fixture
def spoil_s3(s3_store, s3_server):
    """Make all requests to the S3 store fail, except for its mark. Return the list of requests."""
    mark = json.dumps({"super_store": 1, "id": s3_store.id}).encode()

    def spoil(status, code):
        requests = []

        def answer(request):
            requests.append((request.command, request.path))
            request.read_body()
            if request.path.endswith("/store.json"):
                headers = {"Content-Range": f"bytes 0-{len(mark) - 1}/{len(mark)}", "ETag": "e"}
                request.answer(206, headers, mark)
            elif status:
                request.answer(status, {}, f"<Error><Code>{code}</Code></Error>".encode())
            else:
                request.hang_up()

        s3_server(answer)
        return requests

    return spoil


@pytest.fixture(params=["directory_store", "s3_store"])
def store(request):
    """The function's store, new, of either kind."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["file", "s3"])
def kept(request, tmp_path):
    """A source, and a function that puts an object there and returns its version."""
    if request.param == "file":

        def put(key, body):
            (tmp_path / key).write_bytes(body)
            return file_version(tmp_path / key)

        return Directory(str(tmp_path)), put
    s3 = request.getfixturevalue("s3")

    def put_object(key, body):
        return s3.put_object(Bucket="data", Key=key, Body=body)["ETag"].strip('"')

    return open_bucket("s3://data"), put_object
