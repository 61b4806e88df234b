"""URLs of sources are taken apart alike for trainer and coordinator, and bad ones are refused by name."""

from __future__ import annotations

import pytest

from superdl.super_wire.errors import ConfigError
from superdl.super_wire.source_url import join_url, split_url


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://b", ("s3://b", "")),
        ("S3://my.bucket-1/x//y/", ("s3://my.bucket-1", "x//y/")),
        ("s3://b/a\u00e4 b%20?x=1#y", ("s3://b", "a\u00e4 b%20?x=1#y")),
        ("gs://b/x", ("gs://b", "x")),
        ("AZ://c/x/", ("az://c", "x/")),
        ("hf://datasets/o/n.1", ("hf://datasets/o/n.1", "")),
        ("hf://datasets/o/n/a/b%20c", ("hf://datasets/o/n", "a/b%20c")),
        ("HF://datasets/o/n@v1/a@b/", ("hf://datasets/o/n@v1", "a@b/")),
        ("hf://datasets/o/n@refs/pr/7/a", ("hf://datasets/o/n@refs%2Fpr%2F7", "a")),
        ("hf://datasets/o/n@feature%2Fx/a", ("hf://datasets/o/n@feature%2Fx", "a")),
        ("https://Images.example.org:0443/a%20b/", ("https://images.example.org", "a b/")),
        ("http://127.0.0.1:8080", ("http://127.0.0.1:8080", "")),
        ("file:///a%20b c", ("", "/a%20b c")),
        ("FILE://localhost/a", ("", "/a")),
        ("a/b", ("", "a/b")),
    ],
)
def test_bucket_and_key_or_a_path(url, parts):
    assert split_url(url, "source") == parts
    assert not parts[0] or split_url(join_url(*parts), "source") == parts


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://bucket/x", r"unknown scheme ftp://.*s3://bucket/prefix .*file:///directory"),
        ("az://KEY:hunter2@bucket/x", "carries no credentials.*AZURE_STORAGE_ACCOUNT_NAME"),
        ("https://me:hunter2@example.org/x", r"https://\*\*\*@example.*carries no credentials"),
        ("https://example.org/x?signature=hunter2", r"no '\?'"),
        ("https://example.org/x#there", "no '#'"),
        ("https:///x", "names no web server"),
        ("https://ex ample.org/x", "names no web server"),
        ("https://example.org:0/x", "names no web server"),
        ("https://example.org:99999/x", "names no web server"),
        ("https://example.org/%ff", "not UTF-8"),
        ("https://example.org/%00", "NUL"),
        ("hf://datasets/o", r"names no dataset.*OWNER/NAME@REVISION"),
        ("hf://o/n", "names no dataset"),
        ("hf://datasets/o/n@a%2F..%2F../x", "names no dataset"),
        ("hf://datasets/o/n@%0a/x", "names no dataset"),
        ("hf://datasets/../n/x", "names no dataset"),
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
