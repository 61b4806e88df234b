"""What every loader that decodes by itself gives: the same samples, fresh orders, shares of ranks."""

import pytest
import torch

from superdl.experiments.data import Source
from tests.experiments.loaders.opening import (
    BATCH,
    COUNT,
    CROP,
    counted,
    expected_keys,
    keys_of,
    need,
    opened,
    write_dirty_images,
)

# WebDataset leaves its tar files to be closed by the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

ALL = [need["torch"], need["webdataset"], need["mds"], need["litdata"]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_dirty_images(tmp_path_factory.mktemp("dirty") / "train")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Conversions are made once for all tests."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def known(directory):
    keys = expected_keys(directory)
    assert len(keys) == COUNT
    return keys


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ALL)
def test_an_epoch_has_each_sample_once_with_pixels_label_and_key(kind, workers, directory, place, known):
    loader = opened(kind, directory, place, workers=workers)
    assert (tuple(loader.classes), loader.sample_count) == (("ant", "bee", "cat", "dog"), COUNT)
    for epoch in (1, 2):
        batches = list(loader)
        assert len(batches) == len(loader)
        assert counted(keys_of(batches, known)) == counted([list(known.values())])
        assert loader.job_stats().samples_produced == epoch * COUNT
    for images, labels, figures in batches:
        assert (images.dtype, images.shape) == (torch.uint8, (len(labels), 3, CROP, CROP))
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels.dtype == torch.int64
        assert (figures.fetch_s > 0) == (kind == "torch"), "the others read ahead of the samples"
        assert figures.decode_s > 0
        assert (figures.hits, figures.misses, figures.size_bytes) == (0, 0, images.numel())
    assert loader.job_stats().decode_s > 0
    loader.close()
    assert not torch.multiprocessing.active_children()
    with pytest.raises(RuntimeError, match="closed"):
        next(iter(loader))


@pytest.mark.parametrize("kind", ALL)
def test_orders_are_fresh_each_epoch_and_repeat_with_the_seed(kind, directory, place, known):
    orders = []
    for seed in (0, 0, 7):
        loader = opened(kind, directory, place, workers=2, seed=seed)
        orders.append([keys_of(loader, known) for _ in range(3)])
        loader.close()
    first, again, other = orders
    assert again == first
    assert first[0] != first[1] != first[2] != first[0]
    assert other[0] != first[0]
    classes = {key.split("/")[0] for key in first[0][0]}
    assert len(classes) > 1, "a batch mixes classes, though files lie by class"


@pytest.mark.parametrize("kind", ALL)
def test_class_folders_of_a_bucket_are_read_as_those_of_a_directory(kind, object_store, tmp_path):
    directory = write_dirty_images(object_store.directory / "photos" / "sets" / "train")
    # In a bucket a key is the whole of it.
    known = {sample: f"sets/train/{key}" for sample, key in expected_keys(directory).items()}
    lines = []
    for _ in range(2):
        loader = opened(kind, Source("s3://photos/sets/train"), tmp_path, workers=2, tell=lines.append)
        assert (tuple(loader.classes), loader.sample_count) == (("ant", "bee", "cat", "dog"), COUNT)
        for _ in range(2):
            assert counted(keys_of(loader, known)) == counted([list(known.values())])
        # The images in shards were fetched before; torch pays for each image in each epoch.
        assert loader.job_stats().source_requests == (2 * COUNT if kind == "torch" else 0)
        loader.close()
    assert [f"{COUNT} images" in line for line in lines] == [True] * (kind != "torch"), (
        "its shards are written once"
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ALL)
def test_validation_is_read_from_the_files_in_the_order_of_an_image_folder(
    kind, workers, directory, place, known
):
    ordered = sorted(known.values(), key=lambda key: [key.split("/")[0], *key.rpartition("/")[::2]])
    expected = [ordered[start : start + BATCH] for start in range(0, COUNT, BATCH)]
    loader = opened(kind, directory, place, training=False, workers=workers)
    assert [keys_of(loader, known) for _ in range(2)] == [expected, expected]
    loader.close()
