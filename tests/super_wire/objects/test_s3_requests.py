"""S3 requests have the same URLs, signatures and credentials as boto3's."""

import contextlib
import hashlib
import os
import sys
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

from superdl.super_wire.objects import Fault, ObjectError, Span, open_bucket
from superdl.super_wire.objects.s3 import close_connections
from superdl.super_wire.objects.s3_account import Account, Signer, object_path, query_of
from superdl.super_wire.objects.s3_connection import headers_of
from superdl.super_wire.objects.web import proxy_of
from tests.fixtures.loopback_http import LoopbackServer


@pytest.fixture(autouse=True)
def no_settings(monkeypatch, tmp_path):
    """Hide this machine's configuration."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "SUPER_S3_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def url_of(bucket, region=""):
    found = Account().endpoint(bucket, region)
    assert (found.tls is not None) == (found.scheme == "https")
    return f"{found.scheme}://{found.netloc}{found.path_prefix}"


def boto3s(buckets):
    """Return the URLs that boto3 uses for buckets."""
    urls = []
    client = Session().create_client("s3", aws_access_key_id="a", aws_secret_access_key="b")

    def stop(request, **_):
        urls.append(request.url.partition("?")[0].rstrip("/"))
        raise InterruptedError

    client.meta.events.register("before-send", stop)
    for bucket in buckets:
        with pytest.raises(InterruptedError):
            client.list_objects_v2(Bucket=bucket)
    client.close()
    return urls


SETTINGS = {
    "a region": ({"AWS_DEFAULT_REGION": "eu-central-1"}, ""),
    "China": ({"AWS_DEFAULT_REGION": "cn-north-1"}, ""),
    "secret": ({"AWS_DEFAULT_REGION": "us-iso-east-1"}, ""),
    "FIPS": ({"AWS_USE_FIPS_ENDPOINT": "true", "AWS_DEFAULT_REGION": "us-east-2"}, ""),
    "both protocols": ({"AWS_USE_DUALSTACK_ENDPOINT": "true", "AWS_DEFAULT_REGION": "us-west-2"}, ""),
    "an endpoint": ({"AWS_ENDPOINT_URL": "http://elsewhere", "AWS_DEFAULT_REGION": "us-west-2"}, ""),
    "S3's endpoint": ({"AWS_ENDPOINT_URL_S3": "https://e:9000/base", "AWS_DEFAULT_REGION": "us-west-2"}, ""),
    "by path": ({"AWS_DEFAULT_REGION": "us-west-2"}, "s3 =\n  addressing_style = path"),
    "accelerated": ({"AWS_DEFAULT_REGION": "us-west-2"}, "s3 =\n  use_accelerate_endpoint = true"),
    "a profile's": ({"AWS_DEFAULT_REGION": "us-west-2"}, "endpoint_url = http://elsewhere"),
    "a service's": (
        {"AWS_DEFAULT_REGION": "us-west-2"},
        "services = mine\n[services mine]\ns3 =\n  endpoint_url = http://elsewhere",
    ),
    "by host": (
        {"AWS_DEFAULT_REGION": "us-west-2", "AWS_ENDPOINT_URL": "https://minio"},
        "s3 =\n  addressing_style = virtual",
    ),
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_bucket_has_the_same_url_as_in_boto3(settings, monkeypatch, tmp_path):
    environment, profile = SETTINGS[settings]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "config").write_text(f"[default]\n{profile}\n")
    buckets = ["my-images", "images-o01abcdefghijklmnopqrst-s3alias"]
    buckets += [] if settings == "accelerated" else ["my.images"]  # refused by boto3
    assert [url_of(bucket) for bucket in buckets] == boto3s(buckets)


def test_a_region_reported_by_s3_overrides_the_settings(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-central-1")  # set in containers, but ignored by boto3
    assert url_of("my-images") == "https://my-images.s3.eu-central-1.amazonaws.com"
    assert url_of("my-images", "us-west-2") == "https://my-images.s3.us-west-2.amazonaws.com"
    monkeypatch.delenv("AWS_REGION")
    assert url_of("my-images") == "https://my-images.s3.us-east-1.amazonaws.com"


@pytest.mark.parametrize(
    ("url", "netloc"),
    [
        ("http://minio:9000", "minio:9000"),
        ("http://minio/", "minio"),
        ("https://minio:443", "minio"),
        ("http://[::1]:9000", "[::1]:9000"),
    ],
)
def test_a_custom_endpoint_uses_path_style(monkeypatch, url, netloc):
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", url)
    found = Account().endpoint("my.images")
    assert (found.netloc, found.path_prefix, found.region) == (netloc, "/my.images", "us-east-1")


@pytest.mark.parametrize(
    ("environment", "bucket", "words"),
    [
        *(
            ({"SUPER_S3_ENDPOINT_URL": url}, "b-b", "a URL such as http://(?!.*geheim)")
            for url in (
                "ftp://minio",
                "minio:9000",
                "http://me:geheim@minio",
                "http://minio..local",
                "http://a:x",
            )
        ),
        ({"AWS_DEFAULT_REGION": "Paris, France"}, "b-b", "region must be a name such as us-east-1"),
        ({"AWS_CA_BUNDLE": "/no/such/file.pem"}, "b-b", "CA bundle /no/such/file.pem cannot be read"),
        ({"AWS_PROFILE": "no-such"}, "b-b", "no usable AWS credentials .*no-such"),
        ({}, "mine--use1-az4--x-s3", "directory bucket"),
    ],
)
def test_invalid_settings_are_named(monkeypatch, environment, bucket, words):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ObjectError, match=words):
        Account().endpoint(bucket)


def test_a_proxy_is_used_only_for_servers_beyond_it(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "minio")
    assert proxy_of("http://minio:9000") == proxy_of("http://127.0.0.1:9000") == proxy_of("https://a") == ""
    assert proxy_of("http://images.example.org") == "http://proxy:3128"


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
VISIBLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=60)
HEX = st.text("0123456789abcdef", min_size=32, max_size=32)
SECONDS = st.integers(946_684_800, 4_102_444_800)  # the years 2000 to 2099


def sent(lines):
    """Return headers by name."""
    return dict(line.split(":", 1) for line in lines)


def botocores(credentials, region, request, second):
    """Sign a request with botocore in the given second, and return its headers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.auth, "get_current_datetime", lambda: datetime.fromtimestamp(second, UTC))
        S3SigV4Auth(credentials, "s3", region).add_auth(request)
    return request.headers


def get_of(host, path, etag, span=None):
    headers = {"If-Match": f'"{etag}"'} | ({"Range": f"bytes={span[0]}-{span[1] - 1}"} if span else {})
    return AWSRequest("GET", f"http://{host}{path}", headers=headers)


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
def test_a_get_is_signed_as_by_botocore(key, etag, secret, token, region, second, span):
    credentials = Credentials("AKID", secret, token)
    host, path = "bucket.example:9000", object_path("/data", key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: second + 0.9)
        signer = Signer(credentials.get_frozen_credentials, region=region, host=host)
        lines = signer.lines("GET", path, headers=headers_of(etag, span))
    mine, theirs = sent(lines), botocores(credentials, region, get_of(host, path, etag, span), second)
    assert mine.get("range") == theirs["Range"]
    assert mine["host"] == host
    assert mine["authorization"] == theirs["Authorization"]
    assert mine["x-amz-date"] == theirs["X-Amz-Date"]
    assert mine.get("x-amz-security-token") == (theirs["X-Amz-Security-Token"] if token else None)


@given(prefix=TEXT, token=VISIBLE, body=st.binary(max_size=9), second=SECONDS)
def test_queries_and_bodies_are_signed_as_by_botocore(prefix, token, body, second):
    credentials = Credentials("AKID", "secret", token)
    fields = {"prefix": prefix, "list-type": "2", "continuation-token": token}
    put = AWSRequest("PUT", "http://h/data", params=fields, data=body, headers={"Content-Type": "image/png"})
    theirs = botocores(credentials, "us-east-1", put, second)
    digest, first = hashlib.sha256(body).hexdigest(), ["content-type:image/png"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: second)
        signer = Signer(credentials.get_frozen_credentials, region="us-east-1", host="h")
        mine = sent(signer.lines("PUT", "/data", query_of(fields), before_host=first, digest=digest))
    assert mine["x-amz-content-sha256"] == theirs["X-Amz-Content-SHA256"]
    assert mine["authorization"] == theirs["Authorization"]


PROCESS = """
import json, pathlib, sys, time
with pathlib.Path(sys.argv[1]).open("a") as file:
    file.write("x")
ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 5))
print(json.dumps({"Version": 1, "AccessKeyId": "AKID", "SecretAccessKey": "s", "SessionToken": ends,
                  "Expiration": ends}))
"""


def test_credentials_are_refreshed_before_they_expire(monkeypatch, tmp_path):
    """Tokens contain their expiry time, after which the server refuses them."""
    program, counted = tmp_path / "process.py", tmp_path / "counted"
    program.write_text(PROCESS)
    (tmp_path / "config").write_text(
        f"[default]\ncredential_process = {sys.executable} {program} {counted}\n"
    )
    tokens = []

    def answer(request):
        tokens.append(request.headers["x-amz-security-token"])
        ends = datetime.fromisoformat(tokens[-1])
        if ends < datetime.now(UTC):
            request.answer(400, {}, b"<Error><Code>ExpiredToken</Code></Error>")
        else:
            request.answer(200, {"ETag": "e"}, b"one")

    with contextlib.closing(LoopbackServer(answer)) as server:
        monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
        bucket = open_bucket("s3://data")
        until_s = time.monotonic() + 2.5
        while time.monotonic() < until_s:
            assert bucket.read("one.jpg", version="e") == b"one"
        close_connections()
    assert len(set(tokens)) >= 2
    assert len(counted.read_text()) <= 10  # not for each request


ROLE = "role_arn = arn:aws:iam::123456789012:role/reader"


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ("credential_process = /bin/false", "custom-process"),
        ("credential_process = /no/such/program", "/no/such/program"),
        ("credential_process = /bin/echo hello", "Expecting value"),
        (f"{ROLE}\nweb_identity_token_file = /no/such/file", "/no/such/file"),
    ],
)
def test_the_error_names_a_failing_source_of_credentials(monkeypatch, tmp_path, profile, words):
    (tmp_path / "config").write_text(f"[default]\n{profile}\n")
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(ObjectError, match=f"no usable AWS credentials .*{words}") as caught:
        open_bucket("s3://data").read("one.jpg")
    assert caught.value.fault is Fault.REFUSED
