"""From the data section of a spec to source URLs."""

from __future__ import annotations

import pytest

from superdl.experiments.data import MADE_SETS, PreparedData, Source, make_set, prepare_data
from superdl.experiments.spec import DataSpec
from superdl.super_wire.errors import ConfigError, SourceError, SourceNotFoundError


def test_without_a_source_the_digits_are_written(tmp_path):
    prepared = prepare_data(DataSpec(directory=str(tmp_path / "digits")))
    assert prepared.train.url == f"file://{tmp_path}/digits/train"
    assert prepared.val == Source(f"file://{tmp_path}/digits/val")
    assert (tmp_path / "digits" / "train" / "7").is_dir()


def test_a_drawn_set_is_made_where_it_is_asked_for_and_taken_where_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = []
    prepared = prepare_data(DataSpec(kind="mnist-like", samples=20), told.append)
    place = tmp_path / "data" / "mnist-like-20"
    assert prepared == PreparedData(Source(f"file://{place}/train"), Source(f"file://{place}/val"))
    assert told[0].startswith("drawing mnist-like: 20 training and 10 validation images")
    # One that is there serves without its size being named, with any seed.
    make_set(MADE_SETS["mnist-like"], tmp_path / "mine", samples=30, seed=7)
    prepared = prepare_data(DataSpec(kind="mnist-like", directory="mine"), told.append)
    assert prepared.train.url == f"file://{tmp_path}/mine/train"
    with pytest.raises(SourceError, match="holds something else than mnist-like"):
        prepare_data(DataSpec(kind="mnist-like", directory="mine", samples=31))
    with pytest.raises(SourceError, match="name is 'mnist-like' there"):
        prepare_data(DataSpec(kind="cifar10-like", directory="mine"))


@pytest.mark.parametrize("directory", [None, "absent", "empty"])
def test_where_a_published_set_is_not_a_drawn_one_stands_in_and_says_so(tmp_path, monkeypatch, directory):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    data = DataSpec(kind="mnist", directory=directory, samples=20)
    prepared = prepare_data(data)
    place = tmp_path / (directory or "data/mnist-like-20")
    assert prepared.train.url == f"file://{place}/train"
    assert "mnist as published is not in" in prepared.note
    assert "the images are mnist-like, which are drawn" in prepared.note
    assert prepare_data(data) == prepared


def test_an_s3_url_passes_as_it_is():
    prepared = prepare_data(DataSpec(train="s3://bucket/train", train_key_list="s3://bucket/keys.csv"))
    assert prepared == PreparedData(Source("s3://bucket/train", "s3://bucket/keys.csv"), None)


def test_names_and_versions_go_with_the_sources(tmp_path):
    data = DataSpec(
        train=str(tmp_path), val="s3://bucket/val", train_alias="a", val_alias="b", versions="digests"
    )
    prepared = prepare_data(data)
    assert prepared.val is not None
    assert (prepared.train.alias, prepared.train.versions) == ("a", "digests")
    assert (prepared.val.alias, prepared.val.versions) == ("b", "digests")


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
