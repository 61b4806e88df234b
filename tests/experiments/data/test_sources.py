"""From the data section of a spec to source URLs."""

from __future__ import annotations

import pytest

from experiments.data import PreparedData, Source, prepare_data
from experiments.spec import DataSpec
from super_wire.errors import ConfigError, SourceNotFoundError


def test_without_a_source_the_digits_are_written(tmp_path):
    prepared = prepare_data(DataSpec(directory=str(tmp_path / "digits")))
    assert prepared.train.url == f"file://{tmp_path}/digits/train"
    assert prepared.val == Source(f"file://{tmp_path}/digits/val")
    assert prepared.train.local_directory == tmp_path / "digits" / "train"
    assert (tmp_path / "digits" / "train" / "7").is_dir()


def test_an_s3_url_passes_as_it_is():
    prepared = prepare_data(DataSpec(train="s3://bucket/train", train_key_list="s3://bucket/keys.csv"))
    assert prepared == PreparedData(Source("s3://bucket/train", "s3://bucket/keys.csv"), None)
    assert prepared.train.local_directory is None


@pytest.mark.parametrize("form", ["{0}", "file://{0}"])
def test_a_directory_becomes_its_real_path(tmp_path, form):
    (tmp_path / "with space").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "with space")
    prepared = prepare_data(DataSpec(train=form.format(link), val=str(tmp_path)))
    assert prepared.train.url == f"file://{tmp_path}/with space"
    assert prepared.val == Source(f"file://{tmp_path}")


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(SourceNotFoundError, match=r"data\.val: there is no directory .*/absent"):
        prepare_data(DataSpec(train=str(tmp_path), val=str(tmp_path / "absent")))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataSpec(train="ftp://host/x"), r"data\.train has the unknown scheme 'ftp'; allowed: s3"),
        (DataSpec(kind="url", train="plain/path"), r"data\.train must be a URL"),
        (DataSpec(kind="directory", train="s3://bucket/x"), r"data\.kind is directory; set data\.kind=url"),
    ],
)
def test_bad_urls_are_named(data, message):
    with pytest.raises(ConfigError, match=message):
        prepare_data(data)
