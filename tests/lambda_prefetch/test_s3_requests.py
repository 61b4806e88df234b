"""The lean client knows where usual buckets are, leaves what is unusual to boto3, and signs as botocore."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.session import Session
from hypothesis import example, given
from hypothesis import strategies as st

from superdl.lambda_prefetch.s3_connection import Signer, object_path
from superdl.lambda_prefetch.s3_lean_client import NotLeanError, lean_endpoint
from superdl.lambda_prefetch.sources import Span


@pytest.fixture
def session(monkeypatch, tmp_path):
    """A botocore session that finds nothing of this machine's configuration."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return Session()


@pytest.mark.parametrize("variable", ["AWS_DEFAULT_REGION", "AWS_REGION"])
def test_aws_is_asked_at_the_buckets_own_host(session, monkeypatch, variable):
    monkeypatch.setenv(variable, "eu-central-1")
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


UNUSUAL = {
    **{
        f"bucket {bucket}": {"bucket": bucket}
        for bucket in (
            *("with.dots", "arn:aws:s3:us-east-1:123456789012:accesspoint/mine", "mine--use1-az4--x-s3"),
            *("mine-abcdefghijklmnopqrstuvwxyz0123-s3alias", "mine-o01abc--ol-s3", "UPPER", "under_score"),
        )
    },
    **{
        f"{name}={value}": {"environment": {name: value}}
        for name, value in (
            *(("AWS_DEFAULT_REGION", "cn-north-1"), ("AWS_DEFAULT_REGION", "us-gov-west-1")),
            *(("AWS_DEFAULT_REGION", "us-iso-east-1"), ("AWS_DEFAULT_REGION", "aws-global")),
            *(("AWS_USE_FIPS_ENDPOINT", "true"), ("AWS_USE_DUALSTACK_ENDPOINT", "true")),
            *(("AWS_ENDPOINT_URL", "http://elsewhere"), ("AWS_ENDPOINT_URL_S3", "http://elsewhere")),
            *(("HTTPS_PROXY", "http://proxy:3128"), ("https_proxy", "http://proxy:3128")),
            ("AWS_CA_BUNDLE", "/no/such/file.pem"),
        )
    },
    **{
        f"profile {lines!r}": {"profile": lines}
        for lines in (
            "s3 =\n  addressing_style = path",
            "s3 =\n  use_accelerate_endpoint = true",
            "endpoint_url = http://elsewhere",
            "services = mine\n[services mine]\ns3 =\n  endpoint_url = http://elsewhere",
        )
    },
    **{
        f"address {url}": {"url": url}
        for url in (
            *("ftp://minio", "http://minio/base", "http://me@minio", "minio:9000"),
            "https://b.vpce-1.s3.us-east-1.vpce.amazonaws.com",
        )
    },
}


@pytest.mark.parametrize("unusual", UNUSUAL)
def test_what_is_unusual_is_boto3s(session, unusual, monkeypatch, tmp_path):
    lean_endpoint(session, "data", "")
    said = {"bucket": "data", "url": "", "environment": {}, "profile": ""} | UNUSUAL[unusual]
    for name, value in said["environment"].items():
        monkeypatch.setenv(name, value)
    (tmp_path / "config").write_text(f"[default]\n{said['profile']}\n")
    with pytest.raises(NotLeanError):
        lean_endpoint(Session(), said["bucket"], said["url"])


def test_a_server_beside_the_proxy_needs_none(session, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert lean_endpoint(session, "data", "http://127.0.0.1:9000").port == 9000
    with pytest.raises(NotLeanError, match="proxy"):
        lean_endpoint(session, "data", "http://minio:9000")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
VISIBLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=60)
HEX = st.text("0123456789abcdef", min_size=32, max_size=32)
SECONDS = st.integers(946_684_800, 4_102_444_800)  # the years 2000 to 2099


def headers_of(request: bytes) -> dict[str, str]:
    lines = request.decode().removesuffix("\r\n\r\n").split("\r\n")[1:]
    return dict(line.split(":", 1) for line in lines)


def botocores(credentials, region, host, path, etag, second, span=None):
    """The headers that botocore puts on the same GET in the same second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.auth, "get_current_datetime", lambda: datetime.fromtimestamp(second, UTC))
        headers = {"If-Match": f'"{etag}"'} | ({"Range": f"bytes={span[0]}-{span[1] - 1}"} if span else {})
        request = AWSRequest("GET", f"http://{host}{path}", headers=headers)
        S3SigV4Auth(credentials, "s3", region).add_auth(request)
    return request.headers


@given(
    key=TEXT,
    etag=HEX,
    secret=VISIBLE,
    token=st.none() | VISIBLE,
    region=st.sampled_from(["us-east-1", "eu-central-1", "ap-southeast-2"]),
    second=SECONDS,
    span=st.none()
    | st.tuples(st.integers(0, 2**40), st.integers(1, 2**24)).map(lambda n: Span(n[0], sum(n))),
)
@example(key="a//b/../c/./d", etag="0" * 32, secret="s", token=None, region="us-east-1", second=9, span=None)
@example(
    key="ö ne+two=3&%41?#~*'().jpg",
    etag="0-12",
    secret="s/+",
    token="t+/=",
    region="eu-west-1",
    second=0,
    span=Span(0, 1),
)
@example(key="/leading", etag="e", secret="s", token="", region="us-east-1", second=1_900_000_000, span=None)
def test_it_signs_as_botocore_does(key, etag, secret, token, region, second, span):
    credentials = Credentials("AKID", secret, token)
    host, path = "bucket.example:9000", object_path("/data", key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: second + 0.9)
        request = Signer(credentials, region=region, host=host).get(path, etag, span)
    mine, theirs = headers_of(request), botocores(credentials, region, host, path, etag, second, span)
    assert mine.get("range") == theirs["Range"]
    assert request.startswith(f"GET {path} HTTP/1.1\r\nhost:{host}\r\n".encode())
    assert mine["authorization"] == theirs["Authorization"]
    assert mine["x-amz-date"] == theirs["X-Amz-Date"]
    assert mine.get("x-amz-security-token") == (theirs["X-Amz-Security-Token"] if token else None)


class Rotating:
    """Credentials that are others each time they are asked."""

    def __init__(self):
        self.asked = 0

    def get_frozen_credentials(self):
        self.asked += 1
        return Credentials(
            f"AKID{self.asked}", f"secret{self.asked}", f"token{self.asked}"
        ).get_frozen_credentials()


def test_credentials_are_asked_for_once_a_second(monkeypatch):
    credentials, now = Rotating(), [10**9]
    signer = Signer(credentials, region="us-east-1", host="h")
    monkeypatch.setattr(time, "time", lambda: now[0])
    first = [signer.get("/a", "e") for _ in range(3)]
    assert (credentials.asked, len(set(first))) == (1, 1)
    now[0] += 1
    second = headers_of(signer.get("/a", "e"))
    assert credentials.asked == 2
    expected = botocores(Credentials("AKID2", "secret2", "token2"), "us-east-1", "h", "/a", "e", now[0])
    assert second["authorization"] == expected["Authorization"]
    assert second["x-amz-security-token"] == "token2"
