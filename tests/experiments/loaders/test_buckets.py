"""Loaders over a bucket of a real S3 server: the same samples as from files, and errors that name objects."""

from __future__ import annotations

import pytest

from superdl.experiments.data import Source
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
