"""``python -P -m superdl.coordinator`` as a process with real functions: a cache that is too small, settings,
the end.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

import psutil
import pytest

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset, SuperLoader
from tests.fixtures.images import expected_pixels, write_images
from tests.fixtures.ports import free_port
from tests.fixtures.stack import END_TIMEOUT_S, Stack
from tests.integration.delivery import assert_exactly_once, collect

SIDE = 96


@contextlib.contextmanager
def reading(stack, source, side=SIDE):
    dataset = SuperDataset(source.as_uri(), Recipe.image(resize=side, crop=side))
    with SuperSampler(dataset, batch_size=10, shuffle=True, coordinator=stack.address) as sampler:
        loader = SuperLoader(dataset, sampler)
        yield loader, sampler
        loader.close()


@pytest.fixture
def pressed():
    """A cache of 8 MB, of which 6 are for records, and room for a few batches of buffers."""
    with Stack(maxmemory="8mb", arguments=("--slots", "2")) as stack:
        yield stack


@pytest.mark.slow
def test_a_cache_of_a_quarter_of_the_set_never_overflows_whoever_filled_it(pressed, tmp_path):
    """By a coordinator that came in mid-epoch too, and by one that finds records of another dataset."""
    large = write_images(tmp_path / "large", 880, side=SIDE)  # records of 28 kB, 24 MB in all
    expected = expected_pixels(large, resize=SIDE, crop=SIDE)
    with reading(pressed, large) as (loader, _):
        batches, delivered = iter(loader), []
        for _ in range(44):
            delivered += collect([next(batches)])
        pressed.kill_coordinator()
        pressed.start_coordinator()
        delivered += collect(batches)
        assert_exactly_once(delivered, expected)
        assert_exactly_once(collect(loader), expected)
    pressed.kill_coordinator()
    pressed.start_coordinator()
    other = write_images(tmp_path / "other", 300, side=SIDE, seed=7)
    with reading(pressed, other) as (loader, sampler):
        for _ in range(2):
            assert_exactly_once(collect(loader), expected_pixels(other, resize=SIDE, crop=SIDE))
        assert sampler.job_stats().dropped_samples > 0
    with pressed.valkey.client() as client:
        assert client.info("memory")["used_memory_peak"] <= client.info("memory")["maxmemory"]
        assert "errorstat_OOM" not in client.info("errorstats")


def test_sigterm_drains_while_functions_work(images):
    with Stack(arguments=("--slots", "1", "--request-samples", "1")) as stack:
        with reading(stack, images, 32):  # the coordinator looks ahead from now on
            assert stack.process is not None
            family = psutil.Process(stack.process.pid).children(recursive=True)
            stack.process.send_signal(signal.SIGTERM)
            stack.process.communicate(timeout=END_TIMEOUT_S)
        assert stack.process.returncode == 0
        _, alive = psutil.wait_procs(family, timeout=END_TIMEOUT_S)
        assert not alive
        with stack.valkey.client() as client:
            assert not client.exists("super:lock")


def coordinator(*arguments):
    command = [sys.executable, "-P", "-m", "superdl.coordinator", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--cache", "redis://:secret@127.0.0.1"], "SUPER_CACHE_PASSWORD"),
        (["--config", "/nowhere/coordinator.toml"], "/nowhere/coordinator.toml cannot be read"),
    ],
)
def test_wrong_settings_are_told_in_one_line(arguments, reason):
    ended = coordinator(*arguments)
    assert ended.returncode == 2
    assert reason in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_what_cannot_be_listened_on_is_told(shared_stack, valkey):
    ended = coordinator("--listen", shared_stack.address, "--cache", valkey.unix_url)
    assert ended.returncode == 2
    assert f"cannot listen on {shared_stack.address}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert shared_stack.process is not None
    assert shared_stack.process.poll() is None  # whose socket it is still runs


def test_functions_that_decode_otherwise_than_the_cache_was_filled_are_refused(valkey):
    with valkey.client() as client:
        client.set("super:golden", "00" * 16)
    ended = coordinator("--listen", f"127.0.0.1:{free_port()}", "--cache", valkey.unix_url)
    assert ended.returncode == 2
    assert "use one version of SUPER and Pillow, or empty it" in ended.stderr


def test_one_coordinator_owns_a_cache(shared_stack):
    cache = shared_stack.valkey.unix_url
    ended = coordinator("--listen", f"127.0.0.1:{free_port()}", "--cache", cache)
    assert ended.returncode == 1
    assert "another coordinator" in ended.stderr
    assert cache in ended.stderr


def test_a_coordinator_that_lost_its_cache_to_another_ends(stack):
    assert stack.process is not None
    with stack.valkey.client() as client:
        client.set("super:lock", "another")
    stack.process.wait(END_TIMEOUT_S)
    stack.process.communicate()  # closes our end of its stdin
    assert stack.process.returncode == 1
    assert "another coordinator owns the cache" in stack.log.read_text()
