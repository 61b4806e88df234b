"""Sources and key lists in the forms that users write them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from superdl.super_dataset.dataset import normalise_url
from superdl.super_wire.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("S3://bucket/a b/c/", "s3://bucket/a b/c"),
    ],
)
def test_s3(text, url):
    assert normalise_url(text, name="source") == url


def test_paths_become_real_file_urls(tmp_path, monkeypatch):
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    url = f"file://{os.path.realpath(real)}"
    for form in [
        "real",
        "link",
        Path("real/"),
        str(real),
        f"file://{tmp_path}/link/",
        "~/real",
        "real/../real",
    ]:
        assert normalise_url(form, name="source") == url


def test_normalising_again_changes_nothing(tmp_path):
    once = normalise_url(tmp_path / "a b%20c", name="source")
    assert normalise_url(once, name="source") == once


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("gs://bucket/train", "gs://"),
        ("http://host/list.csv", "http://"),
        ("s3://", "bucket"),
        ("s3:///train", "bucket"),
        ("file://relative/dir", "three slashes"),
        ("", "empty"),
        (" ", "empty"),
        ("a\0b", "NUL"),
        (b"/bytes", "URL or a path"),
        (7, "URL or a path"),
        (None, "URL or a path"),
    ],
)
def test_refuses_and_names_the_argument(value, reason):
    with pytest.raises(ConfigError, match=reason) as caught:
        normalise_url(value, name="key_list")
    assert "key_list" in str(caught.value)
