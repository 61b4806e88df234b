"""Fixtures shared by all trials of a process."""

import os
from types import SimpleNamespace

import pytest

from tests.fixtures.images import CLASSES, SIDE, independent_decode, write_images
from tests.fixtures.object_store import serve_objects
from tests.fixtures.valkey import Valkey
from tests.hostile.trial import IMAGES

SOAKED = int(os.environ.get("SUPER_TEST_TRIALS", "500"))


def pytest_generate_tests(metafunc):
    """Run forty seeds of trials in the slow tests, and any requested number in the soak."""
    if "seed" in metafunc.fixturenames:
        slow = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(40)]
        soak = [pytest.param(seed, marks=pytest.mark.soak) for seed in range(100, 100 + SOAKED)]
        metafunc.parametrize("seed", slow + soak, ids="seed-{}".format)


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A cache that is emptied between trials, a store, and images with known pixels."""
    directory = tmp_path_factory.mktemp("hostile")
    images = write_images(directory / "images", IMAGES)
    names = sorted(str(path.relative_to(images)) for path in images.glob("*/*.jpg"))
    pixels = [independent_decode(images / name, resize=SIDE, crop=SIDE).tobytes() for name in names]
    labels = [CLASSES.index(name.split("/")[0]) for name in names]
    with (
        Valkey() as valkey,
        pytest.MonkeyPatch.context() as patch,
        serve_objects(directory / "buckets", patch) as store,
    ):
        write_images(store.directory / "photos" / "train", IMAGES)
        yield SimpleNamespace(valkey=valkey, store=store, directory=images, pixels=pixels, labels=labels)
