"""Fixtures: AWS as simulated by moto on loopback, with boto3 redirected to it."""

import pytest
import requests
from moto.server import ThreadedMotoServer


@pytest.fixture(scope="session")
def moto_url():
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def aws(moto_url, monkeypatch):
    """An empty account; all of boto3 leads there. The region is us-east-1."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": moto_url,
    }.items():
        monkeypatch.setenv(name, value)
    requests.post(f"{moto_url}/moto-api/reset", timeout=30)
    yield moto_url
    requests.post(f"{moto_url}/moto-api/reset", timeout=30)
