"""Counting, cancelling and failing of a listing on threads."""

from __future__ import annotations

import threading

import pytest

from superdl.coordinator.catalog.listing import (
    FolderBuilder,
    Tally,
    list_folders,
)
from superdl.super_wire.errors import SourceForbiddenError


def quiet_tally():
    return Tally(lambda _: None, threading.Event())


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
