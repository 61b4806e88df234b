"""``superdl warm`` with a real coordinator, cache and functions: what it caches and reports, and how a cap or
Ctrl-C ends it. ``tests/superdl/test_warm_command.py`` covers coordinator restarts.
"""

import json

import numpy as np
import pytest
from rich.progress import Progress

from superdl.coordinator.core import footprint
from superdl.main import main
from superdl.sampler import SuperSampler
from superdl.sampler.rpc import FIRST_CONTACT, Client
from superdl.super_dataset import Recipe, SuperDataset, SuperLoader
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire.keys import cache_keys
from superdl.super_wire.store import DirectoryStore
from tests.fixtures.images import expected_pixels, write_images
from tests.fixtures.stack import Stack

SIDE = 32
LARGE = 128


def warm(stack, source, *options, side=SIDE):
    sizes = ("--resize", str(side), "--crop", str(side))
    return main(["warm", str(source), "--coordinator", stack.address, *sizes, *options])


def told(capsys):
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def warmed_by():
    """A stack whose cache has room for everything these tests put there."""
    with Stack(arguments=("--slots", "2")) as running:
        yield running


@pytest.fixture
def pressed():
    """A cache of 24 MB, of which 18 MB are for records."""
    with Stack(maxmemory="24mb", arguments=("--slots", "2")) as running:
        yield running


def never_full(stack):
    with stack.valkey.client() as client:
        memory = client.info("memory")
        refused = "errorstat_OOM" in client.info("errorstats")
        return bool(memory["used_memory_peak"] <= memory["maxmemory"]) and not refused


def test_a_job_that_follows_finds_everything(warmed_by, tmp_path, capsys):
    source = write_images(tmp_path, 150, seed=1)
    assert warm(warmed_by, source, "--json") == 0
    report = told(capsys)
    assert (report["samples"], report["warm"], report["produced"], report["failed"]) == (150, 150, 150, 0)
    assert report["ended"] == "all"
    assert report["source_requests"] == 0
    assert report["record_bytes"] == 150 * int(footprint(np.array([64 + SIDE * SIDE * 3]))[0])

    dataset = SuperDataset(source, Recipe.image(resize=SIDE, crop=SIDE), return_info=True)
    with SuperSampler(dataset, batch_size=20, shuffle=True, coordinator=warmed_by.address) as sampler:
        found = list(SuperLoader(dataset, sampler))
        stats = sampler.job_stats()
    pixels = {image.permute(1, 2, 0).numpy().tobytes() for images, _, _ in found for image in images}
    assert pixels == set(expected_pixels(source, resize=SIDE, crop=SIDE))
    assert [info.misses for _, _, info in found] == [0] * len(found)
    assert (stats.samples_produced, stats.invocations) == (0, 0)

    assert warm(warmed_by, source, "--json") == 0
    again = told(capsys)
    assert (again["warm"], again["hits"], again["produced"], again["invocations"]) == (150, 150, 0, 0)


def test_what_cannot_be_decoded_is_listed(warmed_by, tmp_path, capsys):
    source = write_images(tmp_path, 40, seed=2)
    (source / "ant" / "broken.jpg").write_bytes(b"no image")
    (source / "bee" / "empty.jpg").write_bytes(b"")
    for _ in range(2):
        assert warm(warmed_by, source, "--json") == 1
        report = told(capsys)
        assert (report["ended"], report["warm"], report["failed"]) == ("all", 40, 2)
        reasons = {failure["key"]: failure["reason"] for failure in report["failures"]}
        assert reasons.keys() == {"ant/broken.jpg", "bee/empty.jpg"}
        assert "no image" in reasons["ant/broken.jpg"]
        assert "empty" in reasons["bee/empty.jpg"]
    assert warm(warmed_by, source) == 1
    assert "  ant/broken.jpg: " in capsys.readouterr().err


def test_a_cache_that_is_too_small_holds_what_is_read_first(pressed, tmp_path, capsys):
    source = write_images(tmp_path, 600, side=LARGE)
    stats = Client(pressed.address).call("GetJobStats", pb.GetJobStatsRequest(), FIRST_CONTACT)
    fits = stats.cache.free_bytes // int(footprint(np.array([64 + LARGE * LARGE * 3]))[0])
    assert warm(pressed, source, "--json", "--shuffle", "--seed", "7", side=LARGE) == 0
    report = told(capsys)
    assert 300 < fits < 400
    assert (report["ended"], report["failed"]) == ("full", 0)
    assert 0.9 * fits < report["warm"] <= fits
    assert never_full(pressed)
    present = plan_presence(pressed, source, seed=7)
    assert all(present[: report["warm"]])
    assert not any(present[fits:])


def plan_presence(stack, source, *, seed):
    """Which of an epoch's samples are cached, in order. Looks first, as requests change it."""
    with stack.valkey.client() as client:
        found = set(client.keys("super:r1:*"))
    dataset = SuperDataset(source, Recipe.image(resize=LARGE, crop=LARGE))
    order = {"batch_size": 10, "shuffle": True, "seed": seed}
    with SuperSampler(dataset, coordinator=stack.address, **order) as sampler:
        return [key in found for ref in sampler for key in cache_keys(ref.sample_ids)]


@pytest.mark.slow
def test_a_store_is_filled_through_a_cache_that_holds_a_part_of_it(tmp_path, capsys):
    source, place = write_images(tmp_path / "images", 600, side=LARGE), tmp_path / "store"
    with Stack(maxmemory="24mb", arguments=("--slots", "2", "--store", str(place))) as stack:
        assert warm(stack, source, "--json", "--to", "cache", "--max-bytes", "5mb", side=LARGE) == 0
        report = told(capsys)
        assert report["ended"] == "max_bytes"
        assert 4 * 2**20 < report["record_bytes"] <= 5 * 2**20
        assert warm(stack, source, "--json", side=LARGE) == 0
        report = told(capsys)
        assert (report["ended"], report["warm"], report["failed"]) == ("all", 600, 0)
        assert report["to_store"]
        assert report["produced"] + report["hits"] == 600
        assert never_full(stack)
        store = DirectoryStore.open(place, create=False, read_only=True)
        packed = [len(store.read_index(pack, size).entries) for pack, size in store.packs().items()]
        assert 600 <= sum(packed) < 660
        assert warm(stack, source, "--json", side=LARGE) == 0
        assert told(capsys)["invocations"] == 0


def test_money_bounds_it(tmp_path, capsys):
    prices = tmp_path / "prices.toml"
    prices.write_text("[local]\ninvocation = 0.001\n")
    with Stack(arguments=("--slots", "2", "--prices", str(prices), "--request-samples", "2")) as stack:
        source = write_images(tmp_path / "images", 800)
        assert warm(stack, source, "--json", "--max-usd", "0.2") == 1
        report = told(capsys)
        assert report["ended"] == "max_usd"
        assert 0.1 < report["usd"] <= 0.25  # the last requests are smaller and cost more per sample
        assert 0 < report["warm"] <= 500
        assert report["invocations"] * 0.001 == pytest.approx(report["usd"])
        assert warm(stack, source, "--json", "--max-usd", "0.00001") == 1
        assert told(capsys)["invocations"] == 0


def test_an_interrupt_ends_it_with_a_report(tmp_path, capsys, monkeypatch):
    """Functions are suspended so that it cannot finish first."""
    update = Progress.update

    def interrupt(progress, task, **how):
        update(progress, task, **how)
        if how["completed"]:
            monkeypatch.undo()
            raise KeyboardInterrupt

    with Stack(arguments=("--slots", "1", "--request-samples", "8")) as stack:
        source = write_images(tmp_path, 800)
        assert warm(stack, source, "--max-bytes", "1mb") == 0
        capsys.readouterr()
        (function,) = stack.functions()
        function.suspend()
        try:
            monkeypatch.setattr(Progress, "update", interrupt)
            assert warm(stack, source, "--json") == 130
            report = told(capsys)
            assert report["ended"] == "interrupted"
            assert 0 < report["warm"] < 800
            assert main(["stats", "--coordinator", stack.address]) == 0
            assert "no open jobs" in capsys.readouterr().out
        finally:
            function.resume()
        assert warm(stack, source, "--json") == 0
        assert told(capsys)["hits"] >= report["warm"]
