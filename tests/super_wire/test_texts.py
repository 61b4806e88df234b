"""Parsing of user input, and redaction of displayed text."""

import logging

import pytest

from superdl.super_wire.display import (
    keep_secrets_out_of_logs,
    shown,
    shown_lines,
    text_without_credentials,
)
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.source_url import is_hidden, join_url, split_url
from superdl.super_wire.user_text import parse_bytes


@pytest.mark.parametrize("name", ["botocore.auth", "botocore.parsers", "urllib3.connectionpool"])
def test_loggers_of_requests_stay_above_debug(name, caplog):
    keep_secrets_out_of_logs()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger(name).debug("a secret")
        logging.getLogger(name).info("news")
    assert "a secret" not in caplog.text
    assert "news" in caplog.text


def test_credentials_in_urls_are_hidden():
    place = "s3://bucket/a@b.jpg, hf://datasets/o/n@v1/x, gs://b/a@b, az://c/a@b"
    told = f"the function f (http://u:a/b@c@host:1) does not respond: 'https://:x@host'; {place}"
    expected = f"the function f (http://***@host:1) does not respond: 'https://***@host'; {place}"
    assert text_without_credentials(told) == expected
    assert text_without_credentials("http://host:1/x and mail@host") == "http://host:1/x and mail@host"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cat/\u00e4 b.jpg", "cat/\u00e4 b.jpg"),
        ("a\x1b[2J\x1b]0;title\x07", "a\\x1b[2J\\x1b]0;title\\x07"),
        ("a\r\nWARNING b", "a\\r\\nWARNING b"),
        ("gpj.\u202ea", "gpj.\\u202ea"),
        ("\x9b31m\ud800\0", "\\x9b31m\\ud800\\x00"),
    ],
)
def test_control_characters_are_escaped(name, text):
    assert shown(name) == text
    assert shown_lines(f"{name.replace(chr(10), '')}\nb").endswith("\nb")


HIDDEN = (
    ".DS_Store",
    "cat/._1.jpg",
    ".ipynb_checkpoints/1.jpg",
    "__MACOSX/cat/1.jpg",
    "Thumbs.db",
    "a/desktop.ini",
)
SHOWN = (
    "1.jpg",
    "./cat/1.a.jpg",
    "../1.jpg",
    "a//1.jpg",
    "a/",
    "MACOSX/1",
    "Thumbs.db/1.jpg",
    "_1.jpg",
    "\udcff.jpg",
)


@pytest.mark.parametrize("key", HIDDEN + SHOWN)
def test_hidden_files_are_recognised(key):
    content = key.encode("utf-8", "surrogateescape")
    assert is_hidden(key) is is_hidden(content) is (key in HIDDEN)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1048576", 2**20),
        ("4gb", 4 * 2**30),
        ("4G", 4 * 2**30),
        (" 512 MB ", 512 * 2**20),
        ("1024kb", 2**20),
        ("1.5gb", 3 * 2**29),
        ("2tb", 2 * 2**40),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_sizes_are_parsed_exactly(text, size_bytes):
    assert parse_bytes(text, "cache_bytes") == size_bytes


@pytest.mark.parametrize(
    "text", ["", "gb", "-1", "1e9", "4xb", "4 g b", "1,5gb", "٤gb", "nan", "9" * 5000, "4", "1023kb"]
)
def test_an_invalid_size_is_refused_by_name(text):
    with pytest.raises(ConfigError, match="^cache_bytes must be a size of at least 1mb, such as 4gb"):
        parse_bytes(text, "cache_bytes")


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
def test_a_url_has_a_bucket_and_key_or_a_path(url, parts):
    assert split_url(url, "source") == parts
    assert not parts[0] or split_url(join_url(*parts), "source") == parts


BAD_URLS = [
    "", " ", "/a\0b", "ftp://bucket/x", "s3://", "s3:///train", "s3://a b/train", "s3://a:b/train",
    "file://train", "file://", "az://KEY:hunter2@bucket/x", "s3://KEY:hunter2@bucket/x",
    "https://me:hunter2@example.org/x", "https://example.org/x?signature=hunter2", "https://example.org/x#a",
    "https:///x", "https://ex ample.org", "https://example.org:0/x", "https://example.org:99999/x",
    "https://example.org/%ff", "https://example.org/%00", "hf://datasets/o", "hf://o/n",
    "hf://datasets/o/n@a%2F..%2F../x", "hf://datasets/o/n@%0a/x", "hf://datasets/../n/x",
]  # fmt: skip


@pytest.mark.parametrize("url", BAD_URLS)
def test_an_invalid_url_is_refused_by_name_without_its_credentials(url):
    with pytest.raises(ConfigError, match="^key_list") as caught:
        split_url(url, "key_list")
    assert "hunter2" not in str(caught.value)
