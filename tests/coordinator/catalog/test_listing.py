"""Counting, cancelling and failing of a listing on threads."""

from __future__ import annotations

import threading

import pytest

from superdl.coordinator.catalog.listing import (
    Folder,
    FolderBuilder,
    ListingCancelledError,
    Tally,
    is_image,
    list_folders,
)
from superdl.super_wire.errors import SourceForbiddenError


def quiet_tally():
    return Tally(lambda _: None, threading.Event())


@pytest.mark.parametrize(
    "key", ["a.jpg", "A.JPEG", "x/y.PnG", ".webp", "a.b.tiff", "a.tif", "a.ppm", "a.bmp", "a.pgm"]
)
def test_images_by_extension(key):
    assert is_image(key)


@pytest.mark.parametrize("key", ["a", "a.txt", "a.jpg.txt", "jpg", "a.jpg/b", "a.gif", ""])
def test_other_names(key):
    assert not is_image(key)


def test_counts_rise_over_all_threads():
    told = []
    tally = Tally(told.append, threading.Event())

    def work(name):
        found = FolderBuilder(name, tally)
        for number in range(1234):
            found.append(b"%s/%d" % (name.encode(), number), b"v")
        return found.build()

    folders = list_folders(work, ["a", "b", "c"], tally, threads=3)
    assert [(folder.name, len(folder.keys), len(folder.versions)) for folder in folders] == [
        (name, 1234, 1234) for name in "abc"
    ]
    assert told == sorted(told)
    assert told[-1] == 3 * 1234
    assert max(after - before for before, after in zip([0, *told], told, strict=False)) <= 500


def test_the_first_failure_ends_the_others():
    tally = quiet_tally()
    endless_runs = threading.Event()

    def work(name):
        if name == "bad":
            assert endless_runs.wait(30)
            raise SourceForbiddenError(name)
        endless_runs.set()
        while True:  # until the failure of the other ends it
            tally.check()

    with pytest.raises(SourceForbiddenError, match="bad"):
        list_folders(work, ["endless", "bad", *("more",) * 50], tally, threads=2)


def test_cancelled_between_two_counts():
    cancelled = threading.Event()
    told = []

    def progress(count):
        told.append(count)
        cancelled.set()

    tally = Tally(progress, cancelled)

    def work(name):
        found = FolderBuilder(name, tally)
        while True:
            found.append(b"key", b"v")

    with pytest.raises(ListingCancelledError):
        list_folders(work, ["a"], tally, threads=1)
    assert told == [500]


def test_no_folder_no_work():
    assert list_folders(lambda name: Folder(name, None, None), [], quiet_tally(), threads=4) == []
