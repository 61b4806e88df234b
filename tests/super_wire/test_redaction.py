"""What botocore would tell at DEBUG stays untold; what somebody made quieter stays quieter."""

from __future__ import annotations

import logging

import pytest

from superdl.super_wire.redaction import (
    keep_secrets_out_of_logs,
    shown,
    shown_lines,
    text_without_credentials,
)


@pytest.mark.parametrize("name", ["botocore.auth", "botocore.parsers", "urllib3.connectionpool"])
def test_debug_of_the_root_does_not_reach_who_tells_secrets(name, caplog):
    keep_secrets_out_of_logs()
    with caplog.at_level(logging.DEBUG):
        logging.getLogger(name).debug("a secret")
        logging.getLogger(name).info("news")
    assert "a secret" not in caplog.text
    assert "news" in caplog.text


def test_urls_within_a_text_are_shown_without_their_credentials():
    place = "s3://bucket/a@b.jpg, hf://datasets/o/n@v1/x, gs://b/a@b, az://c/a@b"
    told = f"the function f (http://u:a/b@c@host:1) does not answer: 'https://:x@host'; {place}"
    expected = f"the function f (http://***@host:1) does not answer: 'https://***@host'; {place}"
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
def test_others_words_do_not_steer_a_terminal(name, text):
    assert shown(name) == text
    assert shown_lines(f"{name.replace(chr(10), '')}\nb").endswith("\nb")
