"""The store below the cache: decoded samples are not decoded again, whatever stops, dies or vanishes."""

import shutil
import time

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.sampler.embedded.embedded import release_all
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.bad_front import LONGEST_S, BadFront
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.fixtures.stack import Stack
from tests.integration.delivery import (
    RECIPE,
    assert_exactly_once,
    collect,
    reading,
    remove_busy,
    settled_stats,
    spoil,
)


@pytest.fixture
def own(images, tmp_path):
    """A private copy of the images."""
    return shutil.copytree(images, tmp_path / "photos")


@pytest.fixture
def coordinator(tmp_path):
    """Start a coordinator with a new, empty cache over the test's one store."""
    started = []

    def start(*arguments, store=str(tmp_path / "store")):
        stack = Stack(arguments=("--slots", "2", "--store", store, *arguments))
        started.append(stack)
        stack.start()
        return stack

    yield start
    for stack in started:
        stack.close()


def train(stack, images, recipe=RECIPE, **named):
    """Train one epoch, in the same order each time. Return its samples and statistics. Without a stack, use
    the embedded default.
    """
    address = stack.address if stack else None
    with reading(images.as_uri(), address, recipe, batch_size=8, **named) as (sampler, loader):
        return collect(loader), settled_stats(sampler)


def change_some(images, directory):
    """Replace eight of the images under their keys."""
    shutil.copytree(write_images(directory, 8, seed=9, side=40), images, dirs_exist_ok=True)


def test_the_embedded_default_keeps_a_store_below_the_cache_directory(
    own, expected, tmp_path, monkeypatch, capfd
):
    monkeypatch.delenv("SUPER_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    runs = []
    for _ in range(2):
        runs.append(train(None, own))
        release_all()
        spoil(own.glob("*/*.jpg"))
    (first, made), (again, restored) = runs
    assert_exactly_once(first, expected)
    assert again == first
    assert (made.samples_produced, restored.samples_produced, restored.source_bytes) == (150, 0, 0)
    line = f"superdl: decoded images are kept in {tmp_path.resolve()}/cache/superdl/store ("
    assert capfd.readouterr().err.count(line) == 2


def test_a_set_that_was_moved_is_recognised_and_a_name_is_suggested(own, tmp_path, coordinator, caplog):
    stack = coordinator()
    train(stack, own)
    assert "alias=" not in caplog.text
    moved = own.rename(tmp_path / "elsewhere")
    for _ in range(2):  # the second epoch stores them under their new identity
        train(stack, moved)
    [line] = [record.getMessage() for record in caplog.records if "alias=" in record.getMessage()]
    assert line.startswith(f"{moved.as_uri()} has files of {own.as_uri()} that the store already contains")


def test_a_name_serves_readers_of_a_store_that_others_write(own, tmp_path, coordinator):
    named = {"alias": "photos", "versions": "digests"}
    train(stack := coordinator(), own, **named)
    assert stack.close_coordinator() == 0
    moved = shutil.copytree(own, tmp_path / "moved", copy_function=shutil.copyfile)  # with new mtimes
    change_some(moved, tmp_path / "changed")

    def times():
        return {str(path): path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}

    before = times()
    delivered, stats = train(coordinator("--store-read-only"), moved, **named)
    assert stats.samples_produced == 8
    assert_exactly_once(delivered, expected_pixels(moved, resize=SIDE, crop=SIDE))
    assert times() == before


def test_changed_objects_and_recipes_are_decoded_and_not_mistaken_for_what_is_stored(
    own, tmp_path, coordinator
):
    train(stack := coordinator(), own)
    assert stack.close_coordinator() == 0
    change_some(own, tmp_path / "changed")
    stack = coordinator()
    for crop, produced in ((SIDE, 8), (SIDE - 8, 150)):
        delivered, stats = train(stack, own, Recipe.image(resize=SIDE, crop=crop))
        assert stats.samples_produced == produced
        assert_exactly_once(delivered, expected_pixels(own, resize=SIDE, crop=crop))


def test_a_coordinator_that_is_killed_before_it_wrote_the_index_costs_no_decode(own, tmp_path, coordinator):
    stack = coordinator()
    first, _ = train(stack, own)
    stack.kill_coordinator()
    store = tmp_path / "store"
    assert list((store / "packs").iterdir())
    assert not list((store / "index").glob("*"))
    stack.valkey.client().flushall()
    spoil(own.glob("*/*.jpg"))
    stack.start_coordinator()
    assert train(stack, own)[0] == first
    assert len(list((store / "index").iterdir())) == 1  # the next start need not open every pack


def test_a_store_that_a_file_replaces_in_mid_epoch_costs_decodes_alone(own, expected, tmp_path, coordinator):
    first, _ = train(stack := coordinator(), own)
    assert stack.close_coordinator() == 0
    stack = coordinator("--lookahead-batches", "2")
    with reading(own.as_uri(), stack.address, batch_size=8) as (sampler, loader):
        delivered = []
        for number, batch in enumerate(loader):
            if number == 5:
                remove_busy(tmp_path / "store")
                (tmp_path / "store").write_bytes(b"no store any more")
            delivered += collect([batch])
        stats = sampler.job_stats()
        assert_exactly_once(collect(loader), expected)
    assert delivered == first
    assert 0 < stats.samples_produced < len(expected)


def test_a_store_in_a_bucket_serves_a_second_run(own, object_store, coordinator):
    (object_store.directory / "bucket").mkdir()
    first, _ = train(stack := coordinator(store="s3://bucket/some/store"), own)
    assert stack.close_coordinator() == 0
    spoil(own.glob("*/*.jpg"))
    second, stats = train(coordinator(store="s3://bucket/some/store"), own)
    assert second == first
    assert (stats.samples_produced, stats.samples_restored) == (0, len(first))
    assert stats.store_requests <= len(first) // 4


@pytest.fixture
def front(object_store, monkeypatch):
    (object_store.directory / "bucket").mkdir()
    bad = BadFront(object_store)
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", bad.url)
    yield bad
    bad.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["throttled", "silent", "broken off"])
def test_s3_that_answers_badly_costs_decodes_alone(images, expected, object_store, front, coordinator, fault):
    stack = coordinator("--lookahead-batches", "2", store="s3://bucket/store")
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with SuperSampler(dataset, batch_size=8, shuffle=True, seed=1, coordinator=stack.address) as sampler:
        first = collect(DataLoader(dataset, sampler=sampler, batch_size=None))
        settled_stats(sampler)
    assert stack.close_coordinator() == 0, stack.log.read_text()
    assert list((object_store.directory / "bucket").rglob("*.pack"))
    with stack.valkey.client() as client:
        client.flushall()
    front.one_in = 2 if fault == "broken off" else 4
    front.fault = fault
    stack.start_coordinator()
    began_s = time.monotonic()
    with SuperSampler(dataset, batch_size=8, shuffle=True, seed=1, coordinator=stack.address) as sampler:
        second = collect(DataLoader(dataset, sampler=sampler, batch_size=None))
        stats = settled_stats(sampler)
    assert time.monotonic() - began_s < LONGEST_S
    assert front.spoilt
    assert second == first
    assert_exactly_once(second, expected)
    assert stats.samples_produced + stats.samples_restored == len(expected)
    assert stats.samples_restored or fault != "throttled"
    if stats.samples_produced:
        assert "s3://bucket/store" in stack.log.read_text()
