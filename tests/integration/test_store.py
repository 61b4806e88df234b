"""The store below the cache: what was decoded once is not decoded again, whatever stops, dies or goes."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.sampler.embedded.embedded import release_all
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.bad_front import LONGEST_S, BadFront
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect, remove_busy
from tests.integration.resuming import settled_stats

if TYPE_CHECKING:
    from superdl.sampler.stats import SamplerStats

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)


@dataclass
class Trained:
    """What some epochs delivered, one after the other, and what the coordinator counted for them."""

    epochs: list[list[tuple[bytes, int]]]
    stats: SamplerStats


@pytest.fixture
def photos(images, tmp_path):
    """Images of this test alone."""
    return shutil.copytree(images, tmp_path / "photos")


@pytest.fixture
def coordinator(tmp_path):
    """Starts an empty cache and a coordinator over the test's one store, each time others."""
    started = []

    def start(*arguments, store=str(tmp_path / "store")):
        stack = Stack(arguments=("--slots", "2", "--store", store, *arguments))
        started.append(stack)
        stack.start()
        return stack

    yield start
    for stack in started:
        stack.close()


def train(stack, photos, epochs=1, recipe=RECIPE, **named):
    """Epochs from the first on, of the same seed each time; without a stack with the embedded default."""
    dataset, address = SuperDataset(photos.as_uri(), recipe, **named), stack.address if stack else None
    with SuperSampler(dataset, batch_size=8, shuffle=True, seed=1, coordinator=address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)
        delivered = [collect(loader) for _ in range(epochs)]
        return Trained(delivered, settled_stats(sampler))


def spoil_sources(photos):
    """Make each file zeros, of its length and time: whatever reads it gets no image any more."""
    for file in photos.glob("*/*.jpg"):
        found = file.stat()
        file.write_bytes(bytes(found.st_size))
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def test_a_second_run_decodes_nothing(photos, coordinator):
    expected = expected_pixels(photos, resize=SIDE, crop=SIDE)
    stack = coordinator()
    first = train(stack, photos, epochs=2)
    assert first.stats.samples_produced == len(expected)
    assert stack.close_coordinator() == 0
    spoil_sources(photos)
    second = train(coordinator(), photos, epochs=2)
    assert second.epochs == first.epochs
    assert_exactly_once(second.epochs[0], expected)
    assert (second.stats.samples_produced, second.stats.source_bytes) == (0, 0)


def test_the_embedded_default_keeps_a_store_below_the_cache_directory(photos, tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("SUPER_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    produced, epochs = [], []
    for _ in range(2):
        trained = train(None, photos)
        produced.append(trained.stats.samples_produced)
        epochs += trained.epochs
        release_all()
        spoil_sources(photos)
    assert produced[0] > 0
    assert produced[1] == 0
    assert epochs[0] == epochs[1]
    line = f"superdl: decoded images are kept in {tmp_path.resolve()}/cache/superdl/store ("
    assert capfd.readouterr().err.count(line) == 2


def copied(photos, target):
    """The same files at another place, with other times."""
    shutil.copytree(photos, target, copy_function=shutil.copyfile)
    for number, file in enumerate(sorted(target.rglob("*.jpg"))):
        os.utime(file, ns=(number, number))
    return target


def test_a_set_that_was_moved_is_recognised_and_a_name_is_suggested(photos, tmp_path, coordinator, caplog):
    stack = coordinator()
    train(stack, photos)
    assert "alias=" not in caplog.text
    moved = photos.rename(tmp_path / "elsewhere")
    for _ in range(2):  # the second time it is stored as what it is now
        train(stack, moved)
    [line] = [record.getMessage() for record in caplog.records if "alias=" in record.getMessage()]
    assert line.startswith(f"{moved.as_uri()} has files of {photos.as_uri()} that the store already contains")


def test_a_name_serves_readers_of_a_store_that_others_write(photos, tmp_path, coordinator):
    named = {"alias": "photos", "versions": "digests"}
    first = train(stack := coordinator(), photos, **named)
    assert stack.close_coordinator() == 0
    moved = copied(photos, tmp_path / "moved")
    changed = write_images(tmp_path / "changed", 8, seed=9, side=40)
    shutil.copytree(changed, moved, dirs_exist_ok=True)  # other bytes under eight of the keys
    expected = expected_pixels(moved, resize=SIDE, crop=SIDE)

    def times():
        return {str(path): path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}

    before = times()
    second = train(coordinator("--store-read-only"), moved, **named)
    assert second.stats.samples_produced == 8
    assert_exactly_once(second.epochs[0], expected)
    assert times() == before
    assert len(first.epochs[0]) == len(expected)


def test_changed_objects_and_recipes_are_decoded_and_not_mistaken_for_what_is_stored(
    photos, tmp_path, coordinator
):
    train(stack := coordinator(), photos)
    assert stack.close_coordinator() == 0
    shutil.copytree(write_images(tmp_path / "changed", 8, seed=9, side=40), photos, dirs_exist_ok=True)
    stack = coordinator()
    changed = train(stack, photos)
    assert changed.stats.samples_produced == 8
    assert_exactly_once(changed.epochs[0], expected_pixels(photos, resize=SIDE, crop=SIDE))
    smaller = train(stack, photos, recipe=Recipe.image(resize=SIDE, crop=SIDE - 8))
    assert smaller.stats.samples_produced == len(smaller.epochs[0])
    assert_exactly_once(smaller.epochs[0], expected_pixels(photos, resize=SIDE, crop=SIDE - 8))


@pytest.mark.slow
def test_two_coordinators_see_what_the_other_wrote(photos, coordinator):
    one, other = coordinator(), coordinator()
    first = train(one, photos)
    spoil_sources(photos)
    second = train(other, photos)
    assert second.epochs == first.epochs
    assert second.stats.samples_produced == 0


def test_a_coordinator_that_is_killed_before_it_wrote_the_index_costs_no_decode(
    photos, tmp_path, coordinator
):
    stack = coordinator()
    first = train(stack, photos)
    stack.kill_coordinator()
    store = tmp_path / "store"
    assert list((store / "packs").iterdir())
    assert not list((store / "index").glob("*"))
    stack.valkey.client().flushall()
    spoil_sources(photos)
    stack.start_coordinator()
    assert train(stack, photos).epochs == first.epochs
    assert len(list((store / "index").iterdir())) == 1  # so that the next one need not open every pack


def remove_the_store(store):
    remove_busy(store)


def replace_it_by_a_file(store):
    remove_busy(store)
    store.write_bytes(b"no store any more")


def remove_packs(store):
    for pack in sorted((store / "packs").iterdir())[::2]:
        pack.unlink()


def cut_packs_off(store):
    for pack in (store / "packs").iterdir():
        os.truncate(pack, pack.stat().st_size // 2)


def flip_a_bit_of_each_record(store):
    for pack in (store / "packs").iterdir():
        content = bytearray(pack.read_bytes())
        for place in range(600, len(content), 1024):
            content[place] ^= 1
        pack.write_bytes(content)


FAULTS = [replace_it_by_a_file, remove_packs, cut_packs_off, flip_a_bit_of_each_record]


@pytest.mark.parametrize(
    "fault", [remove_the_store, *(pytest.param(one, marks=pytest.mark.slow) for one in FAULTS)]
)
def test_what_befalls_a_store_in_mid_epoch_costs_decodes_alone(photos, tmp_path, coordinator, fault):
    expected = expected_pixels(photos, resize=SIDE, crop=SIDE)
    first = train(stack := coordinator(), photos)
    assert stack.close_coordinator() == 0
    stack = coordinator("--lookahead-batches", "2")
    dataset = SuperDataset(photos.as_uri(), RECIPE)
    with SuperSampler(dataset, batch_size=8, shuffle=True, seed=1, coordinator=stack.address) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None)
        delivered = []
        for number, batch in enumerate(loader):
            if number == 5:
                fault(tmp_path / "store")
            delivered += collect([batch])
        stats = sampler.job_stats()
        assert_exactly_once(collect(loader), expected)
    assert delivered == first.epochs[0]
    assert stats.samples_produced < len(expected)
    # Who has opened a pack reads on when its name is gone.
    assert stats.samples_produced > 0 or fault is remove_packs


def test_a_store_in_a_bucket_serves_a_second_run(photos, object_store, coordinator):
    (object_store.directory / "bucket").mkdir()
    first = train(stack := coordinator(store="s3://bucket/some/store"), photos)
    assert stack.close_coordinator() == 0
    spoil_sources(photos)
    second = train(coordinator(store="s3://bucket/some/store"), photos)
    assert second.epochs == first.epochs
    assert (second.stats.samples_produced, second.stats.samples_restored) == (0, len(first.epochs[0]))
    assert second.stats.store_requests <= len(first.epochs[0]) // 4


@pytest.fixture
def front(object_store, monkeypatch):
    (object_store.directory / "bucket").mkdir()
    bad = BadFront(object_store)
    monkeypatch.setenv("SUPER_S3_ENDPOINT_URL", bad.url)
    yield bad
    bad.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["throttled", "silent", "broken off"])
def test_s3_that_answers_badly_costs_decodes_alone(images, object_store, front, coordinator, fault):
    expected = expected_pixels(images, resize=SIDE, crop=SIDE)
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
