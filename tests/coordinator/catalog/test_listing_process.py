"""Long listings run in a separate process, with the catalog and errors of a thread."""

import asyncio
import threading

import numpy as np
import psutil
import pytest

from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.catalog.listing import ListingCancelledError
from superdl.coordinator.catalog.listing_process import list_apart
from superdl.coordinator.catalog.source import Allowed
from superdl.super_wire.errors import SourceEmptyError, SourceError, SourceForbiddenError
from superdl.super_wire.ids import Naming
from superdl.super_wire.recipe import Recipe
from tests.coordinator.catalog.key_lists import make

RECIPE = Recipe.image(resize=8, crop=8)


@pytest.fixture
def long_list(tmp_path):
    """A key list that takes about a second to read."""
    path = tmp_path / "long.csv"
    path.write_text("key,label,version\n" + "".join(f"{row}.jpg,{row % 9},1-1\n" for row in range(200_000)))
    return path


def listed(source, key_list="", naming=Naming(), classes=(), **options):  # noqa: B008  # frozen
    """Return a registry's listing of a source, and whether this process did all the listing."""

    async def register():
        datasets = DatasetRegistry(max_age_s=300.0, **options)
        try:
            dataset = datasets.register(f"file://{source}", RECIPE, str(key_list), "run", naming, classes)
            await datasets.wait(dataset, listed=2**62, wait_s=60.0)
            catalog = dataset.catalog
            every = np.arange(len(catalog))
            said = catalog.fingerprint, catalog.classes, catalog.warnings, catalog.bucket, catalog.alias
            return *said, catalog.names_at(every), catalog.labels_at(every), dataset.ids(every, 0)
        finally:
            await datasets.close()

    return asyncio.run(register())


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"naming": Naming("pets", "digests")},
        {"classes": ("dog", "cat", "cow")},
        {"key_list": "labels.csv"},
    ],
)
def test_a_process_yields_the_catalog_of_a_thread(source, tmp_path, how):
    make(source, "loose.jpg")  # a warning
    rows = "".join(f"{path.relative_to(source)},{len(path.name)}\n" for path in source.glob("*/*"))
    (tmp_path / "labels.csv").write_text("key,label\n" + rows)
    how = {name: tmp_path / value if name == "key_list" else value for name, value in how.items()}
    apart = listed(source, **how, few_samples=0)
    assert apart == listed(source, **how)
    assert len(apart[5]) == 6


def test_a_process_raises_the_errors_of_a_thread(source, tmp_path):
    (tmp_path / "bad.csv").write_text("key,label\na.jpg,0\nb.jpg\n")
    for how, error in (
        ({"allowed": Allowed(roots=("/nowhere",))}, SourceForbiddenError),
        ({"allowed": Allowed(samples=3)}, SourceError),
        ({"key_list": tmp_path / "bad.csv"}, SourceError),
        ({"classes": ("cow",)}, SourceError),
    ):
        said = []
        for few_samples in (0, 10_000):
            with pytest.raises(error) as caught:
                listed(source, **how, few_samples=few_samples)
            said.append((type(caught.value), str(caught.value)))
        assert said[0] == said[1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceEmptyError):
        listed(tmp_path / "empty", few_samples=0)


def list_long(tmp_path, key_list, progress, cancelled=None):
    what = f"file://{tmp_path}", str(key_list), progress, cancelled or threading.Event(), Naming(), ()
    list_apart(str(tmp_path / "out"), *what, allowed=Allowed())


def test_a_killed_process_is_an_error_and_a_cancelled_one_ends(tmp_path, long_list):
    cancelled, numbers, before = threading.Event(), [], set(psutil.Process().children())

    def kill(number):
        numbers.append(number)
        for child in set(psutil.Process().children()) - before:
            child.kill()

    def cancel(number):
        numbers.append(number)
        cancelled.set()

    with pytest.raises(SourceError, match=r"\(exit code -9"):
        list_long(tmp_path, long_list, kill)
    with pytest.raises(ListingCancelledError):
        list_long(tmp_path, long_list, cancel, cancelled)
    assert numbers
    assert set(psutil.Process().children()) <= before
    numbers.clear()
    list_long(tmp_path, long_list, numbers.append)
    assert numbers[-1] is None, "the last report is of packing"
    # A fast machine lists everything before the first report is due.
    counts = [number for number in numbers if number is not None]
    assert counts == sorted(counts)
    assert all(count <= 200_000 for count in counts)
