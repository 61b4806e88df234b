"""Starts that take long: on a host whose cores are taken, and of a job that comes before its coordinator."""

import contextlib
import os
import subprocess
import sys
import threading

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect

pytestmark = pytest.mark.slow

BALLAST_PER_CORE = 20
DOWN_S = 20.0
READ_ALL = """
import sys
from superdl import Recipe, SuperDataset, SuperLoader

dataset = SuperDataset(sys.argv[1], recipe=Recipe.image(resize=32, crop=32))
print("imported", flush=True)
sys.stdin.readline()
loader = SuperLoader(dataset, batch_size=8)
print("started", flush=True)
print(sum(len(labels) for _, labels in loader))
"""


@contextlib.contextmanager
def busy_cores():
    """Many processes on each core that do nothing but run; they end by themselves, too."""
    spin = "import time\nuntil = time.monotonic() + 300\nwhile time.monotonic() < until: pass"
    count = BALLAST_PER_CORE * len(os.sched_getaffinity(0))
    ballast = [subprocess.Popen([sys.executable, "-S", "-c", spin]) for _ in range(count)]
    try:
        yield
    finally:
        for process in ballast:
            process.kill()
            process.wait()


def test_a_busy_host_starts_the_embedded_default_late_and_says_so(images):
    count = len(expected_pixels(images, resize=SIDE, crop=SIDE))
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", READ_ALL, str(images)], text=True, **pipes) as trainer:
        try:
            assert trainer.stdout.readline() == "imported\n"
            with busy_cores():
                trainer.stdin.write("\n")
                trainer.stdin.flush()
                assert trainer.stdout.readline() == "started\n", trainer.stderr.read()
            read, said = trainer.communicate(timeout=120)
        finally:
            trainer.kill()
    assert read == f"{count}\n", said
    assert "the embedded coordinator is not ready after 10 s" in said


def test_a_job_waits_for_a_coordinator_that_starts_after_it(images):
    with Stack(arguments=("--slots", "2")) as stack:
        stack.kill_coordinator()
        late = threading.Timer(DOWN_S, stack.start_coordinator)
        late.start()
        dataset = SuperDataset(images.as_uri(), Recipe.image(resize=SIDE, crop=SIDE))
        with SuperSampler(dataset, batch_size=8, shuffle=True, coordinator=stack.address) as sampler:
            delivered = collect(DataLoader(dataset, sampler=sampler, batch_size=None))
        late.join()
    assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
