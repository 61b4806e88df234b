"""The lean client knows where usual buckets are, and leaves every unusual configuration to boto3."""

from __future__ import annotations

import os

import pytest
from botocore.session import Session

from superdl.lambda_prefetch.s3_endpoint import NotLeanError, lean_endpoint


@pytest.fixture
def session(monkeypatch, tmp_path):
    """A botocore session that finds nothing of this machine's configuration."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return Session()


def test_aws_is_asked_at_the_buckets_own_host(session, monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    found = lean_endpoint(session, "my-images", "")
    assert (found.host, found.port, found.path_prefix) == ("my-images.s3.eu-central-1.amazonaws.com", 443, "")
    assert (found.host_header, found.region) == (found.host, "eu-central-1")
    assert found.tls is not None


@pytest.mark.parametrize(
    ("url", "host", "port", "header"),
    [
        ("http://minio:9000", "minio", 9000, "minio:9000"),
        ("http://minio/", "minio", 80, "minio"),
        ("https://minio:443", "minio", 443, "minio"),
        ("http://[::1]:9000", "::1", 9000, "[::1]:9000"),
    ],
)
def test_a_named_server_is_asked_by_path(session, url, host, port, header):
    found = lean_endpoint(session, "my.images", url)
    assert (found.host, found.port, found.host_header) == (host, port, header)
    assert (found.path_prefix, found.region) == ("/my.images", "us-east-1")
    assert (found.tls is not None) == url.startswith("https")


@pytest.mark.parametrize(
    "bucket",
    [
        "with.dots",
        "arn:aws:s3:us-east-1:123456789012:accesspoint/mine",
        "mine-abcdefghijklmnopqrstuvwxyz0123-s3alias",
        "mine--use1-az4--x-s3",
        "mine-o01abc--ol-s3",
        "UPPER",
        "under_score",
    ],
)
def test_buckets_with_rules_of_their_own_are_boto3s(session, bucket):
    with pytest.raises(NotLeanError):
        lean_endpoint(session, bucket, "")


@pytest.mark.parametrize(
    "region", ["cn-north-1", "us-gov-west-1", "us-iso-east-1", "eu-isoe-west-1", "aws-global"]
)
def test_regions_of_other_partitions_are_boto3s(session, region, monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    with pytest.raises(NotLeanError, match=region):
        lean_endpoint(session, "data", "")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_USE_FIPS_ENDPOINT", "true"),
        ("AWS_USE_DUALSTACK_ENDPOINT", "true"),
        ("AWS_ENDPOINT_URL", "http://elsewhere"),
        ("AWS_ENDPOINT_URL_S3", "http://elsewhere"),
        ("HTTPS_PROXY", "http://proxy:3128"),
        ("https_proxy", "http://proxy:3128"),
        ("AWS_CA_BUNDLE", "/no/such/file.pem"),
    ],
)
def test_unusual_environments_are_boto3s(session, name, value, monkeypatch):
    lean_endpoint(session, "data", "")
    monkeypatch.setenv(name, value)
    with pytest.raises(NotLeanError):
        lean_endpoint(Session(), "data", "")


@pytest.mark.parametrize(
    "lines",
    [
        "s3 =\n  addressing_style = path",
        "s3 =\n  use_accelerate_endpoint = true",
        "endpoint_url = http://elsewhere",
        "services = mine\n[services mine]\ns3 =\n  endpoint_url = http://elsewhere",
    ],
)
def test_unusual_profiles_are_boto3s(session, lines, tmp_path):
    (tmp_path / "config").write_text(f"[default]\n{lines}\n")
    with pytest.raises(NotLeanError, match="profile"):
        lean_endpoint(session, "data", "")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://minio",
        "http://minio/base",
        "http://me@minio",
        "minio:9000",
        "https://b.vpce-1.s3.us-east-1.vpce.amazonaws.com",
    ],
)
def test_unusual_addresses_are_boto3s(session, url):
    with pytest.raises(NotLeanError):
        lean_endpoint(session, "data", url)


def test_a_server_beside_the_proxy_needs_none(session, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert lean_endpoint(session, "data", "http://127.0.0.1:9000").port == 9000
    with pytest.raises(NotLeanError, match="proxy"):
        lean_endpoint(session, "data", "http://minio:9000")
