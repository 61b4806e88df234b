"""Fixtures of the infrastructure's tests: moto's AWS on loopback, where boto3 leads by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from moto.server import ThreadedMotoServer

from tests.infra.account import empty_account

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def aws(moto_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty account; all of boto3 leads there. The region is us-east-1."""
    with empty_account(moto_url, monkeypatch):
        yield moto_url
