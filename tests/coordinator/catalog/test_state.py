"""A coordinator's state: catalogs and ids read from files equal those written, or are rebuilt.

The key list fuzzers check that any catalog survives the round trip through its file.
"""

import asyncio
import multiprocessing
import os
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from unittest import mock

import numpy as np
import pytest

from superdl.coordinator.catalog.catalog import Catalog
from superdl.coordinator.catalog.datasets import DatasetRegistry
from superdl.coordinator.catalog.lister import list_source
from superdl.coordinator.catalog.source import Allowed
from superdl.coordinator.catalog.state import CatalogState, Kept, open_state
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.recipe import Recipe

RECIPE = Recipe.image(resize=8, crop=8)
KEY = bytes(16)
DAYS_S = 86_400.0


@pytest.fixture
def state(tmp_path):
    return CatalogState(tmp_path / "state")


def derive(places):
    return b"".join(int(place).to_bytes(16, "big") for place in places)


class Listings:
    """List a source, and count the listings."""

    def __init__(self):
        self.count = 0

    def __call__(self, *what):
        self.count += 1
        return list_source(*what)


def registered(directory, source, run="run", max_age_s=300.0, *, renew=False, **options):
    """Return what a newly started coordinator registers for a source, and how often it listed it."""

    async def register():
        listings = Listings()
        state = CatalogState(directory)
        datasets = DatasetRegistry(max_age_s=max_age_s, lister=listings, state=state, **options)
        dataset = datasets.register(f"file://{source}", RECIPE, "", run, renew=renew)
        await datasets.wait(dataset, listed=2**62, wait_s=20.0)
        assert dataset.ready
        catalog, every = dataset.catalog, np.arange(len(dataset.catalog))
        listed = catalog.fingerprint, catalog.names_at(every), catalog.labels_at(every), dataset.ids(every, 0)
        await datasets.close()
        return listed, listings.count

    return asyncio.run(register())


def test_a_restarted_coordinator_continues_with_the_runs_catalog(state, source):
    listed, listings = registered(state.directory, source)
    assert listings == 1
    (source / "dog" / "3.jpg").write_bytes(b"x")
    assert registered(state.directory, source, max_age_s=1e-3) == (listed, 0)
    assert registered(state.directory, source, "another run") == (listed, 0)
    for how in ({"max_age_s": 1e-3}, {"renew": True, "max_age_s": 1e-3}):
        entry, listings = registered(state.directory, source, f"a run {how}", **how)
        assert (len(entry[1]), listings) == (7, 1)
    assert registered(state.directory, source, max_age_s=1e-3) == (listed, 0), "the run keeps its own listing"
    assert registered(state.directory, source, max_age_s=1e-3, renew=True)[1] == 1


def test_two_coordinators_share_a_state(state, source):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
        both = [processes.submit(registered, state.directory, source) for _ in range(2)]
        (first, _), (second, _) = (registering.result(60) for registering in both)
    assert first == second
    assert registered(state.directory, source) == (first, 0)


def test_a_read_only_state_is_read(state, source, monkeypatch):
    listed, _ = registered(state.directory, source)
    refused = mock.Mock(side_effect=PermissionError(13, "Permission denied"))
    for name in ("os.utime", "os.mkdir", "tempfile.NamedTemporaryFile"):  # file modes do not stop root
        monkeypatch.setattr(name, refused)
    assert registered(state.directory, source) == (listed, 0)
    assert refused.called


def test_a_catalog_of_other_permissions_is_not_used(state, source):
    listed, _ = registered(state.directory, source)
    for allowed in (Allowed(roots=("/nowhere",)), Allowed(http_hosts=())):
        assert registered(state.directory, source, allowed=allowed) == (listed, 1)


def test_any_damaged_byte_is_detected(state, source):
    catalog, file = state.hold(list_source(str(source)))
    kept = Kept(file, time.time())
    state.note(KEY, kept)
    ids = state.ids(KEY, 6, derive).tobytes()
    assert state.find(KEY) == kept
    for path in sorted(state.directory.iterdir()):
        content = path.read_bytes()
        assert len(content) <= 4096
        for place in range(len(content)):
            damaged = bytearray(content)
            damaged[place] ^= 1 << place % 8
            path.write_bytes(damaged)
            entry = state.find(KEY)
            loaded = None if entry is None else state.load(entry)
            assert loaded is None or (path.suffix != ".arrow" and loaded.fingerprint == catalog.fingerprint)
            assert state.ids(KEY, 6, derive).tobytes() == ids
        path.write_bytes(content[:-1])
        entry = state.find(KEY)
        assert path.suffix == ".ids" or entry is None or state.load(entry) is None
        path.write_bytes(content)
    assert state.load(kept).fingerprint == catalog.fingerprint


def test_a_damaged_catalog_or_one_of_another_version_is_listed_again(state, source, monkeypatch):
    listed, _ = registered(state.directory, source)
    (path,) = state.directory.glob("*.arrow")
    path.write_bytes(path.read_bytes()[:-9])
    assert registered(state.directory, source) == (listed, 1)
    for path in state.directory.iterdir():
        path.unlink()
    with monkeypatch.context() as later:
        later.setattr("superdl.coordinator.catalog.catalog_file.VERSION", 2)
        assert registered(state.directory, source) == (listed, 1)
        assert registered(state.directory, source) == (listed, 0)
    assert registered(state.directory, source) == (listed, 1)


def test_without_a_writable_directory_catalogs_are_in_temporary_files_or_memory(source, tmp_path, caplog):
    (tmp_path / "file").write_bytes(b"")
    gone, full = CatalogState(tmp_path / "store" / "state"), CatalogState(tmp_path / "full")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for state, limit in ((gone, soft), (CatalogState(tmp_path / "file" / "state"), soft), (full, 200)):
        catalog = list_source(str(source))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            kept, file = state.hold(catalog)
            assert len(state.ids(KEY, 1000, derive).tobytes()) == 16_000
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert (kept.fingerprint, file, kept is catalog) == (catalog.fingerprint, "", state is full)
        assert str(state.directory) in caplog.text
    assert not gone.directory.parent.exists()
    assert list(full.directory.iterdir()) == []


def test_without_a_directory_no_files_remain(source, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    state = CatalogState(None)
    catalog, file = state.hold(list_source(str(source)))
    ids = state.ids(KEY, 6, derive)
    assert (file, ids.tobytes()) == ("", derive(range(6)))
    assert list((tmp_path / "temporary").iterdir()) == []
    assert len(catalog.names_at(np.arange(6))) == 6
    state.note(KEY, Kept(file, 1.0))
    assert state.find(KEY) is None


def test_the_least_recently_used_files_are_removed_but_none_of_today(source, tmp_path):
    state, now_s = CatalogState(tmp_path / "state", max_bytes=3000), time.time()
    files = []
    for days, classes in ((3, ("cat", "dog", "a")), (2, ("cat", "dog", "b")), (0, ("cat", "dog", "c"))):
        catalog, file = state.hold(list_source(str(source), classes=classes))
        files.append(tmp_path / "state" / file)
        os.utime(files[-1], (now_s, now_s - days * DAYS_S))
        assert isinstance(catalog, Catalog)
    size = files[0].stat().st_size
    assert 1500 < size < 3000 < 3 * size
    state.note(KEY, Kept(files[-1].name, now_s))
    assert [file.exists() for file in files] == [False, False, True]
    for days, name in (
        (2, "1.unfinished"),
        (0, "2.unfinished"),
        (31, f"{bytes(16).hex()}.json"),
        (9, "user.txt"),
    ):
        (tmp_path / "state" / name).touch()
        os.utime(tmp_path / "state" / name, (now_s, now_s - days * DAYS_S))
    state.note(bytes(15) + b"1", Kept(files[-1].name, now_s))
    kept = {file.name for file in (tmp_path / "state").iterdir()}
    assert kept == {files[-1].name, "2.unfinished", "user.txt", f"{(bytes(15) + b'1').hex()}.json"}


@pytest.mark.parametrize(
    ("setting", "store", "directory"),
    [
        ("none", "/store", None),
        ("auto", "/store", "/store/catalogs"),
        ("AUTO", "s3://bucket/store", "{here}/cache/superdl/catalogs"),
        ("auto", "", "{here}/cache/superdl/catalogs"),
        ("{here}/a/state", "/store", "{here}/a/state"),
    ],
)
def test_a_setting_determines_the_directory(setting, store, directory, tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    entry = open_state(setting.format(here=tmp_path), store, environment).directory
    assert (entry and str(entry)) == (directory and directory.format(here=tmp_path))


def test_a_given_directory_that_cannot_be_created_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=f"{tmp_path}/file/state cannot be created: Not a directory"):
        open_state(f"{tmp_path}/file/state", "", {})
