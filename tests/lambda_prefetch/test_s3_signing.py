"""Signatures equal those of botocore's own signer, whatever the key, the credentials and the second."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import unquote

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.utils import percent_encode
from hypothesis import example, given
from hypothesis import strategies as st

from superdl.lambda_prefetch.s3_signing import Signer, object_path

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
VISIBLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=60)
HEX = st.text("0123456789abcdef", min_size=32, max_size=32)
SECONDS = st.integers(946_684_800, 4_102_444_800)  # the years 2000 to 2099


def headers_of(request: bytes) -> dict[str, str]:
    lines = request.decode().removesuffix("\r\n\r\n").split("\r\n")[1:]
    return dict(line.split(":", 1) for line in lines)


def botocores(credentials, region, host, path, etag, second):
    """The headers that botocore puts on the same GET in the same second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.auth, "get_current_datetime", lambda: datetime.fromtimestamp(second, UTC))
        request = AWSRequest("GET", f"http://{host}{path}", headers={"If-Match": f'"{etag}"'})
        S3SigV4Auth(credentials, "s3", region).add_auth(request)
    return request.headers


@given(
    key=TEXT,
    etag=HEX,
    secret=VISIBLE,
    token=st.none() | VISIBLE,
    region=st.sampled_from(["us-east-1", "eu-central-1", "ap-southeast-2"]),
    second=SECONDS,
)
@example(key="a//b/../c/./d", etag="0" * 32, secret="s", token=None, region="us-east-1", second=10**9)
@example(
    key="ö ne+two=3&%41?#~*'().jpg", etag="0-12", secret="s/+", token="t+/=", region="eu-west-1", second=0
)
@example(key="/leading", etag="e", secret="s", token="", region="us-east-1", second=1_900_000_000)
def test_it_signs_as_botocore_does(key, etag, secret, token, region, second):
    credentials = Credentials("AKID", secret, token)
    host, path = "bucket.example:9000", object_path("/data", key)
    signer = Signer(credentials, region=region, host=host, clock=lambda: second + 0.9)
    request = signer.get(path, etag)
    mine, theirs = headers_of(request), botocores(credentials, region, host, path, etag, second)
    assert request.startswith(f"GET {path} HTTP/1.1\r\nhost:{host}\r\n".encode())
    assert mine["authorization"] == theirs["Authorization"]
    assert mine["x-amz-date"] == theirs["X-Amz-Date"]
    assert mine.get("x-amz-security-token") == (theirs["X-Amz-Security-Token"] if token else None)


@given(key=TEXT)
def test_paths_are_encoded_as_botocore_encodes_keys(key):
    path = object_path("", key)
    assert path == "/" + percent_encode(key, safe="/~")
    assert unquote(path) == "/" + key


def test_nothing_in_a_request_can_end_a_line():
    request = Signer(Credentials("A", "s"), region="us-east-1", host="h").get(
        object_path("", "a\r\nb: c"), "e"
    )
    assert b"/a%0D%0Ab%3A%20c " in request


class Rotating:
    """Credentials that are others each time they are asked."""

    def __init__(self):
        self.asked = 0

    def get_frozen_credentials(self):
        self.asked += 1
        return Credentials(
            f"AKID{self.asked}", f"secret{self.asked}", f"token{self.asked}"
        ).get_frozen_credentials()


def test_credentials_are_asked_for_once_a_second():
    credentials, now = Rotating(), [10**9]
    signer = Signer(credentials, region="us-east-1", host="h", clock=lambda: now[0])
    first = [signer.get("/a", "e") for _ in range(3)]
    assert (credentials.asked, len(set(first))) == (1, 1)
    now[0] += 1
    second = headers_of(signer.get("/a", "e"))
    assert credentials.asked == 2
    expected = botocores(Credentials("AKID2", "secret2", "token2"), "us-east-1", "h", "/a", "e", now[0])
    assert second["authorization"] == expected["Authorization"]
    assert second["x-amz-security-token"] == "token2"
