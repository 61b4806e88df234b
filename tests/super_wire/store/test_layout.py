"""Addresses have one form, and names that could lead out of a store are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superdl.super_wire.errors import ConfigError, StoreFormatError
from superdl.super_wire.store import bucket_and_prefix, default_directory, is_bucket, parse_store
from superdl.super_wire.store.layout import (
    FOLDERS,
    checked_name,
)
from tests.super_wire.mutating import mutated


@pytest.mark.parametrize(
    ("text", "address", "parts"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b", ("bucket", "a/b")),
        ("s3://bucket/a/b/", "s3://bucket/a/b", ("bucket", "a/b")),
        ("s3://bucket", "s3://bucket", ("bucket", "")),
        ("s3://bucket/", "s3://bucket", ("bucket", "")),
    ],
)
def test_a_prefix_has_one_form(text, address, parts):
    assert parse_store(text) == address
    assert parse_store(address) == address
    assert is_bucket(address)
    assert bucket_and_prefix(address) == parts


def test_a_directory_has_one_form(tmp_path, monkeypatch):
    real = tmp_path.resolve() / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for text in ("real", "./real/", "link", "~/real", "real/../link", str(real)):
        assert parse_store(text) == str(real)
    assert not is_bucket(str(real))


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "a\0b", "s3://", "s3://b", "s3://-b/x", "s3:///x", "s3://bucket/../x", "s3://bucket/a//b"),
        *("s3://bucket/./a", "http://host/x", "file:///x", "gs://bucket/x", "S3://bucket/x"),
        *("~nobody-has-this-name/store", "caf\udce9"),
    ],
)
def test_what_is_no_store_is_refused(text):
    with pytest.raises(ConfigError, match=r"a store is a directory or s3://bucket/prefix"):
        parse_store(text)


@pytest.mark.parametrize("text", ["s3://key:secret@bucket/x", "https://key:secret@host/x"])
def test_credentials_are_refused_and_not_repeated(text):
    with pytest.raises(ConfigError) as refused:
        parse_store(text)
    assert "secret" not in str(refused.value)


def test_the_default_is_below_the_users_cache(tmp_path):
    assert default_directory({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/superdl/store")
    assert default_directory({"XDG_CACHE_HOME": "c", "HOME": "/h"}) == Path("/h/.cache/superdl/store")
    assert default_directory({"HOME": "/h"}) == Path("/h/.cache/superdl/store")
    assert default_directory({}) == Path.home() / ".cache/superdl/store"


GOOD_NAMES = {
    "packs": "0123456789abcdef-0123456789abcdef01234567.pack",
    "index": "0123456789abcdef01234567.index",
    "open": "host-1_2",
    "used": "0123456789abcdef",
    "tmp": "anything at all",
}


@given(st.sampled_from(FOLDERS), st.data())
def test_no_name_leads_out(folder, data):
    good = GOOD_NAMES[folder]
    for way_out in ("", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b"):
        with pytest.raises(StoreFormatError):
            checked_name(folder, way_out)
    assert checked_name(folder, good) == good
    name = data.draw(mutated(good.encode())).decode(errors="replace")
    try:
        checked_name(folder, name)
    except StoreFormatError:
        return
    assert "/" not in name
    assert "\0" not in name
    assert os.path.normpath(name) == name
    assert name not in {"", ".", ".."}
