"""Loaders over a bucket of a real S3 server: the same samples as from files, and errors that name objects."""

from __future__ import annotations

from collections import Counter

import pytest

from superdl.experiments.data import Source
from superdl.super_wire.errors import SourceForbiddenError, SourceNotFoundError
from superdl.super_wire.objects import open_bucket
from tests.experiments.loaders.opening import (
    COUNT,
    counted,
    expected_keys,
    keys_of,
    need,
    opened,
    write_dirty_images,
)

# WebDataset leaves its tar files to be closed by the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture
def bucket(object_store):
    """A bucket whose folder ``sets/train`` holds the images."""
    write_dirty_images(object_store.directory / "photos" / "sets" / "train")
    return object_store.directory / "photos"


def known_in(bucket):
    """As `expected_keys`; in a bucket a key is the whole of it."""
    images = expected_keys(bucket / "sets" / "train")
    return {sample: f"sets/train/{key}" for sample, key in images.items()}


@pytest.mark.parametrize("kind", [need["torch"], need["webdataset"], need["mds"], need["litdata"]])
def test_class_folders_of_a_bucket_are_read_as_those_of_a_directory(kind, bucket, tmp_path):
    known = known_in(bucket)
    loader = opened(kind, Source("s3://photos/sets/train"), tmp_path, workers=2)
    assert (tuple(loader.classes), loader.sample_count) == (("ant", "bee", "cat", "dog"), COUNT)
    for _ in range(2):
        assert counted(keys_of(loader, known)) == counted([list(known.values())])
    # A converted set was fetched before; who reads the images themselves pays for each, each time.
    assert loader.job_stats().source_requests == (2 * COUNT if kind == "torch" else 0)
    loader.close()


@pytest.mark.parametrize("kind", [need["torch"], need["webdataset"], need["mds"], need["litdata"]])
def test_given_classes_decide_labels(kind, bucket, tmp_path):
    classes = ("dog", "elk", "cat", "bee", "ant")
    source = Source("s3://photos/sets/train", classes=classes)
    loader = opened(kind, source, tmp_path, training=False)
    assert tuple(loader.classes) == classes
    labels = Counter(int(label) for _, labels, _ in loader for label in labels)
    folders = Counter(key.split("/")[2] for key in known_in(bucket).values())
    assert {classes[label]: count for label, count in labels.items()} == folders
    loader.close()


def test_what_cannot_be_listed_or_read_is_named(bucket, tmp_path, monkeypatch):
    with pytest.raises(SourceNotFoundError, match="s3://absent"):
        opened("torch", Source("s3://absent/train"), tmp_path)
    loaders = [
        opened("torch", Source("s3://photos/sets/train"), tmp_path, training=False, workers=workers)
        for workers in (0, 1)
    ]
    open_bucket("s3://photos").delete("sets/train/ant/00004.jpg")
    for loader in loaders:
        with pytest.raises(SourceNotFoundError, match=r"s3://photos/sets/train/ant/00004\.jpg"):
            next(iter(loader))
        loader.close()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(SourceForbiddenError, match="s3://photos"):
        opened("torch", Source("s3://photos/sets/train"), tmp_path)
