"""``python -P -m superdl.coordinator`` as a process with real functions: small and resized caches, vanished
jobs, settings and shutdown.
"""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import islice
from pathlib import Path

import psutil
import pytest

from superdl.sampler.rpc import FIRST_CONTACT, Client
from superdl.super_dataset import Recipe
from superdl.super_wire import coordinator_pb2 as pb
from tests.fixtures.images import expected_pixels, write_images
from tests.fixtures.ports import free_port
from tests.fixtures.stack import END_TIMEOUT_S, Stack
from tests.fixtures.workers import until
from tests.integration.delivery import assert_exactly_once, collect, reading

SIDE = 96
TRAINER = Path(__file__).with_name("train_forever.py")


def stats_of(stack):
    return Client(stack.address).call("GetJobStats", pb.GetJobStatsRequest(), FIRST_CONTACT)


def job(stack, source, side=SIDE, batch_size=10):
    recipe = Recipe.image(resize=side, crop=side)
    return reading(source.as_uri(), stack.address, recipe, batch_size=batch_size)


@pytest.mark.slow
def test_a_cache_of_a_quarter_of_the_set_never_overflows_whoever_filled_it(tmp_path):
    """Also with a coordinator that starts in mid-epoch, and one that finds records of another dataset. Of 8
    MB, 6 are for records, and the rest holds a few batches of buffers.
    """
    large = write_images(tmp_path / "large", 880, side=SIDE)  # records of 28 kB, 24 MB in total
    other = write_images(tmp_path / "other", 300, side=SIDE, seed=7)
    expected = expected_pixels(large, resize=SIDE, crop=SIDE)
    with Stack(maxmemory="8mb", arguments=("--slots", "2")) as pressed:
        with job(pressed, large) as (_, loader):
            batches = iter(loader)
            delivered = collect(islice(batches, 44))
            restart(pressed)
            assert_exactly_once(delivered + collect(batches), expected)
            assert_exactly_once(collect(loader), expected)
        restart(pressed)
        with job(pressed, other) as (sampler, loader):
            for _ in range(2):
                assert_exactly_once(collect(loader), expected_pixels(other, resize=SIDE, crop=SIDE))
            assert sampler.job_stats().dropped_samples > 0
        with pressed.valkey.client() as client:
            assert client.info("memory")["used_memory_peak"] <= client.info("memory")["maxmemory"]
            assert "errorstat_OOM" not in client.info("errorstats")


def restart(stack):
    stack.kill_coordinator()
    stack.start_coordinator()


CROP = 224  # 150 samples take 25 MiB at this size
SIZES_MB = (12, 64, 8, 48)
LONGEST_WAIT_S = 10.0
FOLLOWS_WITHIN_S = 5.0


@pytest.mark.slow
def test_a_cache_resized_four_times_in_mid_epoch_fails_no_job(images):
    expected = expected_pixels(images, resize=CROP, crop=CROP)
    with (
        Stack(maxmemory="40mb", arguments=("--slots", "2")) as stack,
        stack.valkey.client() as client,
        job(stack, images, CROP, batch_size=5) as (_, loader),
    ):

        def is_followed(megabytes):
            return 0.7 <= stats_of(stack).cache.budget_bytes / (megabytes * 2**20) <= 0.9

        collect(loader)
        for waits in (True, False):
            delivered, longest_s, asked_s = [], 0.0, time.monotonic()
            for number, batch in enumerate(loader):
                longest_s = max(longest_s, time.monotonic() - asked_s)
                delivered += collect([batch])
                if number % 6 == 5 and number // 6 < len(SIZES_MB):
                    megabytes = SIZES_MB[number // 6]
                    client.config_set("maxmemory", f"{megabytes}mb")
                    if waits:
                        until(partial(is_followed, megabytes), FOLLOWS_WITHIN_S)
                asked_s = time.monotonic()
            assert_exactly_once(delivered, expected)
            assert longest_s < LONGEST_WAIT_S
        assert client.info("stats")["evicted_keys"] == 0


@pytest.fixture
def leasing():
    """A stack whose leases last slightly longer than two heartbeats."""
    with Stack(arguments=("--slots", "2", "--lease-s", "4.5")) as running:
        yield running


def test_a_job_whose_process_was_killed_lapses_and_others_go_on(leasing, images):
    environment = {**os.environ, "SUPER_COORDINATOR": leasing.address, "PYTHONPATH": str(TRAINER.parents[2])}
    trainer = subprocess.Popen(  # our own script
        [sys.executable, str(TRAINER), str(images), "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        assert trainer.stdout is not None
        for _ in range(5):
            assert trainer.stdout.readline()
        with job(leasing, images) as (sampler, loader):
            trainer.kill()
            trainer.communicate(timeout=END_TIMEOUT_S)
            assert_exactly_once(collect(loader), expected_pixels(images, resize=SIDE, crop=SIDE))
            lapsed = {}
            while not any(lapsed.values()):  # bounded by pytest's timeout
                lapsed = {job.job: job.lapsed for job in stats_of(leasing).jobs}
            assert not lapsed[sampler.job], "the lease of a live job lapsed despite its heartbeat"
            assert len(lapsed) == 2, "a job was forgotten"
    finally:
        trainer.kill()
        trainer.communicate(timeout=END_TIMEOUT_S)


def test_sigterm_drains_while_functions_work(images):
    with Stack(arguments=("--slots", "1", "--request-samples", "1")) as stack:
        with job(stack, images, 32):  # the coordinator now looks ahead
            assert stack.process is not None
            family = psutil.Process(stack.process.pid).children(recursive=True)
            stack.process.send_signal(signal.SIGTERM)
            stack.process.communicate(timeout=END_TIMEOUT_S)
        assert stack.process.returncode == 0
        _, alive = psutil.wait_procs(family, timeout=END_TIMEOUT_S)
        assert not alive
        with stack.valkey.client() as client:
            assert not client.exists("super:lock")


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        ("--config /nowhere/coordinator.toml", 2, "/nowhere/coordinator.toml cannot be read"),
        ("--listen {taken} --cache {free}", 2, "cannot listen on {taken}"),
        ("--listen 127.0.0.1:{port} --cache {owned}", 1, "another coordinator owns the cache at {owned}"),
        (
            "--listen 127.0.0.1:{port} --cache {filled}",
            2,
            "use one version of SUPER and Pillow, or empty the cache",
        ),
    ],
)
def test_why_it_does_not_start_is_told(shared_stack, valkey, arguments, code, reason):
    if "{filled}" in arguments:  # written with another decoder
        with valkey.client() as client:
            client.set("super:golden", "00" * 16)
    caches = {"free": valkey.unix_url, "filled": valkey.unix_url, "owned": shared_stack.valkey.unix_url}
    names = {"taken": shared_stack.address, "port": free_port(), **caches}
    command = [sys.executable, "-P", "-m", "superdl.coordinator", *arguments.format(**names).split()]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL
    )
    assert ended.returncode == code
    assert reason.format(**names) in ended.stderr
    assert "Traceback" not in ended.stderr
    assert shared_stack.process.poll() is None  # the owner of this socket and cache still runs


def test_a_coordinator_that_lost_its_cache_to_another_ends(stack):
    assert stack.process is not None
    with stack.valkey.client() as client:
        client.set("super:lock", "another")
    stack.process.wait(END_TIMEOUT_S)
    stack.process.communicate()  # closes our end of its stdin
    assert stack.process.returncode == 1
    assert "another coordinator owns the cache" in stack.log.read_text()
