"""Loaders whose workers decode: the same samples and pixels, fresh orders, and errors that name files."""

import hashlib
import importlib.util
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from superdl.experiments.data import Source
from superdl.experiments.loaders import LoaderRequest, open_loader
from superdl.experiments.spec import LoaderSpec, RecipeSpec
from superdl.lambda_prefetch.image_steps import Program
from superdl.super_wire.errors import BadSampleError, SourceNotFoundError
from superdl.super_wire.recipe import Recipe
from superdl.super_wire.request import Limits
from tests.fixtures.images import independent_decode, write_images

RESIZE, CROP, BATCH = 24, 20, 8
COUNT = 53  # no multiple of the batch size, of two workers or of two ranks

_NO_WEBDATASET = pytest.mark.skipif(not importlib.util.find_spec("webdataset"), reason="needs webdataset")
DECODING_KINDS = ["torch", pytest.param("webdataset", marks=_NO_WEBDATASET)]


def write_dirty_images(directory):
    """Write images of four classes in the modes, formats and orientations of real sets."""
    write_images(directory, COUNT - 6)
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 40, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    picture.convert("L").save(directory / "ant" / "grey.jpg")
    picture.rotate(90).convert("CMYK").save(directory / "bee" / "cmyk.jpg")
    picture.rotate(10).save(directory / "cat" / "turned.JPEG", exif=exif)
    picture.rotate(20).convert("P").save(directory / "dog" / "palette.png")
    (directory / "dog" / "a.b 'ü'").mkdir()
    picture.rotate(30).convert("RGBA").save(directory / "dog" / "a.b 'ü'" / "alpha.tar.png")
    picture.rotate(40).convert("LA").save(directory / "ant" / "grey_alpha.png")
    return directory


def opened(
    kind,
    source,
    place,
    *,
    training=True,
    workers=0,
    seed=0,
    rank=0,
    replicas=1,
    recipe=None,
    print_line=lambda _: None,
):
    """Open a loader that writes its tars, if any, below ``place``."""
    return open_loader(
        LoaderRequest(
            source=source if isinstance(source, Source) else Source(f"file://{source}"),
            recipe=recipe or RecipeSpec(resize=RESIZE, crop=CROP),
            loader=LoaderSpec(kind=kind, batch_size=BATCH, num_workers=workers),
            training=training,
            seed=seed,
            pin_memory=False,
            rank=rank,
            replicas=replicas,
            converted=place / "converted",
            print_line=print_line,
        ),
    )


def expected_keys(directory):
    """Return each image's key by its label and the pixels that Pillow alone decodes."""
    classes = sorted(entry.name for entry in directory.iterdir())
    keys = {}
    for path in (entry for entry in directory.rglob("*") if entry.is_file()):
        key = path.relative_to(directory).as_posix()
        pixels = independent_decode(path, resize=RESIZE, crop=CROP).tobytes()
        keys[classes.index(key.split("/")[0]), pixels] = key
    return keys


def samples_of(batch):
    """Return the label and the HWC pixels of each sample."""
    images, labels, _ = batch
    return [
        (int(label), image.permute(1, 2, 0).numpy().tobytes())
        for image, label in zip(images, labels, strict=True)
    ]


def keys_of(batches, known):
    """Return the keys of each batch, and check that its id is derived from them in this order."""
    all_keys = []
    for batch in batches:
        keys = [known[sample] for sample in samples_of(batch)]
        digest = hashlib.blake2b("\0".join(keys).encode(), digest_size=16).digest()
        assert batch[2].batch_id == digest
        all_keys.append(keys)
    return all_keys


def counted(batches):
    """Count each key."""
    return Counter(key for keys in batches for key in keys)


# WebDataset leaves its tar files to be closed by the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
STEPS = (
    {"op": "random_resized_crop", "size": CROP, "scale": [0.3, 1.0]},
    {"op": "horizontal_flip", "p": 0.5},
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_dirty_images(tmp_path_factory.mktemp("dirty") / "train")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory where all tests share the tars."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def known(directory):
    keys = expected_keys(directory)
    assert len(keys) == COUNT
    return keys


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", DECODING_KINDS)
def test_an_epoch_has_each_sample_once_in_a_fresh_order(kind, workers, directory, place, known):
    orders = []
    for seed in (0, 0, 7):
        loader = opened(kind, directory, place, workers=workers, seed=seed)
        assert (tuple(loader.classes), loader.sample_count) == (("ant", "bee", "cat", "dog"), COUNT)
        for epoch in (1, 2):
            batches = list(loader)
            assert len(batches) == len(loader)
            orders.append(keys_of(batches, known))
            assert counted(orders[-1]) == counted([list(known.values())])
            assert loader.job_stats().samples_produced == epoch * COUNT
        for images, labels, metrics in batches:
            assert (images.dtype, images.shape) == (torch.uint8, (len(labels), 3, CROP, CROP))
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert labels.dtype == torch.int64
            assert (metrics.fetch_s > 0) == (kind == "torch"), "WebDataset reads ahead of the samples"
            assert metrics.decode_s > 0
            assert (metrics.hits, metrics.misses, metrics.size_bytes) == (0, 0, images.numel())
        loader.close()
        assert not torch.multiprocessing.active_children()
    assert orders[0:2] == orders[2:4], "the seed determines the orders"
    assert orders[0] != orders[1]
    assert orders[0] != orders[4]
    with pytest.raises(RuntimeError, match="closed"):
        next(iter(loader))


@pytest.mark.parametrize("kind", DECODING_KINDS)
def test_a_bucket_is_read_like_a_directory(kind, object_store, tmp_path):
    directory = write_dirty_images(object_store.directory / "photos" / "sets" / "train")
    known = {sample: f"sets/train/{key}" for sample, key in expected_keys(directory).items()}
    lines = []
    for _ in range(2):
        source = Source("s3://photos/sets/train")
        loader = opened(kind, source, tmp_path, workers=2, print_line=lines.append)
        assert counted(keys_of(loader, known)) == counted([list(known.values())])
        # The tars hold images fetched before; torch pays for each image in each epoch.
        assert loader.job_stats().source_requests == (COUNT if kind == "torch" else 0)
        loader.close()
    assert len(lines) == (kind != "torch"), "tars are written once"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", DECODING_KINDS)
def test_validation_has_the_order_of_an_image_folder(kind, workers, directory, place, known):
    ordered = sorted(known.values(), key=lambda key: [key.split("/")[0], *key.rpartition("/")[::2]])
    expected = [ordered[start : start + BATCH] for start in range(0, COUNT, BATCH)]
    loader = opened(kind, directory, place, training=False, workers=workers)
    assert [keys_of(loader, known) for _ in range(2)] == [expected, expected]
    loader.close()


@pytest.mark.parametrize("kind", DECODING_KINDS)
def test_random_steps_have_the_pixels_of_functions_in_each_epoch(kind, directory, place):
    recipe = RecipeSpec(steps=STEPS, augment_seed=5)
    loader = opened(kind, directory, place, workers=2, recipe=recipe)
    classes = sorted(entry.name for entry in directory.iterdir())
    keys = [path.relative_to(directory).as_posix() for path in directory.rglob("*.*") if path.is_file()]
    for epoch in range(3):
        program = Program(
            Recipe(STEPS, augment_seed=5),
            bucket=f"file://{directory.resolve()}",
            epoch=epoch,
            limit_pixels=Limits().image_pixels,
            step_modules=frozenset(),
        )
        pixels = [program.make((directory / key).read_bytes(), key).tobytes() for key in keys]
        labels = [classes.index(key.split("/")[0]) for key in keys]
        known = dict(zip(zip(labels, pixels, strict=True), keys, strict=True))
        assert counted(keys_of(loader, known)) == counted([keys])
    loader.close()


def test_a_missing_or_corrupt_file_is_named(tmp_path):
    directory = write_dirty_images(tmp_path / "train")
    with pytest.raises(SourceNotFoundError, match="absent"):
        opened("torch", tmp_path / "absent", tmp_path)
    loader = opened("torch", directory, tmp_path, training=False)
    (directory / "ant" / "00000.jpg").unlink()
    with pytest.raises(SourceNotFoundError, match=r"ant/00000\.jpg was removed after it was listed"):
        next(iter(loader))
    (directory / "ant" / "00000.jpg").write_bytes(b"no image")
    for workers in (0, 1):
        loader = opened("torch", directory, tmp_path, training=False, workers=workers)
        with pytest.raises(BadSampleError, match=rf"cannot decode file://{directory}/ant/00000\.jpg: "):
            next(iter(loader))
        loader.close()


def test_a_key_list_names_images_and_classes(directory, tmp_path):
    key_list = tmp_path / "keys.csv"
    key_list.write_text("label,key\nzebra,bee/cmyk.jpg\nape,ant/grey.jpg\nzebra,cat/turned.JPEG\n")
    source = Source(f"file://{directory}", key_list=str(key_list))
    loader = opened("torch", source, tmp_path, training=False)
    assert (tuple(loader.classes), loader.sample_count) == (("ape", "zebra"), 3)
    assert [labels.tolist() for _, labels, _ in loader] == [[0, 1, 1]], "in key order"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["super", "super-threads"])
@pytest.mark.parametrize("steps", [STEPS, None])
def test_super_has_the_same_samples_and_labels(kind, steps, directory, tmp_path):
    recipe = RecipeSpec(resize=RESIZE, crop=CROP, steps=steps, augment_seed=5)
    plain = opened("torch", directory, tmp_path, recipe=recipe)
    request = LoaderRequest(
        Source(f"file://{directory}"), recipe, LoaderSpec(kind=kind, batch_size=BATCH), True, 0, False
    )
    loader = open_loader(request)
    assert tuple(loader.classes) == tuple(plain.classes)
    for _ in range(2):
        ours, theirs = (
            np.sort([hash(sample) for batch in batches for sample in samples_of(batch)])
            for batches in (loader, plain)
        )
        np.testing.assert_array_equal(ours, theirs)
    loader.close()
