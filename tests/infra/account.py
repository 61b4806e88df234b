"""An empty account of moto's, to which all of boto3 leads, and clients of it."""

from __future__ import annotations

import functools
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import boto3
import requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


@contextmanager
def empty_account(moto_url: str, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lead boto3 to moto, in us-east-1, and empty the account before and after."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": moto_url,
    }.items():
        patch.setenv(name, value)
    requests.post(f"{moto_url}/moto-api/reset", timeout=30)
    yield
    requests.post(f"{moto_url}/moto-api/reset", timeout=30)


def client(service: str) -> Any:
    """A client of a service of the account; making one takes longer than using it."""
    return _client(service, os.environ["AWS_ENDPOINT_URL"])


@functools.cache
def _session() -> boto3.session.Session:
    return boto3.session.Session("testing", "testing", region_name="us-east-1")


@functools.cache
def _client(service: str, url: str) -> Any:
    return _session().client(service, endpoint_url=url)
