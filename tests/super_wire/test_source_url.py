"""URLs of sources are taken apart alike for trainer and coordinator, and bad ones are refused by name."""

from __future__ import annotations

import pytest

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.source_url import split_url


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://b", ("s3://b", "")),
        ("S3://my.bucket-1/x//y/", ("s3://my.bucket-1", "x//y/")),
        ("s3://b/a\u00e4 b%20?x=1#y", ("s3://b", "a\u00e4 b%20?x=1#y")),
        ("gs://b/x", ("gs://b", "x")),
        ("AZ://c/x/", ("az://c", "x/")),
        ("file:///a%20b c", ("", "/a%20b c")),
        ("FILE://localhost/a", ("", "/a")),
        ("a/b", ("", "a/b")),
    ],
)
def test_bucket_and_key_or_a_path(url, parts):
    assert split_url(url, "source") == parts


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://bucket/x", r"unknown scheme ftp://.*s3://bucket/prefix .*file:///directory"),
        ("az://KEY:hunter2@bucket/x", "carries no credentials.*AZURE_STORAGE_ACCOUNT_NAME"),
        ("https://me:hunter2@example.org/x", r"https://\*\*\*@example.*unknown scheme https://"),
        ("", "is empty.*s3://bucket/prefix"),
        (" ", "is empty"),
        ("/a\0b", "NUL"),
        ("s3://", "names no bucket"),
        ("s3:///train", "names no bucket"),
        ("s3://a b/train", "names no bucket"),
        ("s3://a:b/train", "names no bucket"),
        ("s3://KEY:hunter2@bucket/x", "carries no credentials"),
        ("file://train", "not absolute.*three slashes"),
        ("file://", "not absolute"),
    ],
)
def test_bad_urls(url, reason):
    with pytest.raises(ConfigError, match=f"(?s)^key_list.*{reason}") as caught:
        split_url(url, "key_list")
    assert "hunter2" not in str(caught.value)
