"""Source URLs come into one form; super_wire/test_source_url.py has what is none."""

from __future__ import annotations

import pytest

from superdl.coordinator.catalog.source import parse_source
from superdl.super_wire.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://b", "s3://b", ""),
        ("s3://b/", "s3://b", ""),
        ("s3://b//", "s3://b", "/"),
        ("s3://b/train", "s3://b", "train/"),
        ("s3://b/train/", "s3://b", "train/"),
        ("s3://b/a//b/ä b%20?x=1#y//", "s3://b", "a//b/ä b%20?x=1#y//"),
        ("S3://b/train", "s3://b", "train/"),
        ("s3://my.bucket-1/x", "s3://my.bucket-1", "x/"),
    ],
)
def test_s3(url, bucket, prefix):
    source = parse_source(url)
    assert (source.bucket, source.prefix) == (bucket, prefix)
    assert not source.is_file
    assert parse_source(source.url) == source


@pytest.mark.parametrize("form", ["file://{}", "FILE://{}", "file://localhost{}", "{}", "{}/", "{}/../train"])
def test_directories_by_their_absolute_real_path(tmp_path, form):
    (tmp_path / "train").mkdir()
    source = parse_source(form.format(tmp_path / "train"))
    assert source.bucket == f"file://{(tmp_path / 'train').resolve()}"
    assert source.prefix == ""
    assert source.is_file
    assert source.directory == str((tmp_path / "train").resolve())
    assert parse_source(source.url) == source


def test_a_link_and_what_it_links_to_are_one_source(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert parse_source(f"file://{tmp_path}/link") == parse_source(f"file://{tmp_path}/real")


def test_a_relative_path_is_below_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_source("data/train").directory == str(tmp_path.resolve() / "data/train")


def test_paths_are_taken_as_they_stand(tmp_path):
    assert parse_source(f"file://{tmp_path}/a%20b c").directory.endswith("/a%20b c")


def test_a_directory_whose_name_is_not_utf8(tmp_path):
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    with pytest.raises(ConfigError, match="UTF-8"):
        parse_source(f"{tmp_path}/{name}")
