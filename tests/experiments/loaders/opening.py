"""Open loaders over a directory of clean and dirty files, and compare what an epoch delivers."""

import hashlib
import importlib.util
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from superdl.experiments.data import Source
from superdl.experiments.loaders import LoaderRequest, open_loader
from superdl.experiments.spec import LoaderSpec, RecipeSpec
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
