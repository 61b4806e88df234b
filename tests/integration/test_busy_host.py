"""A slow start, on a host whose cores are busy."""

import contextlib
import os
import subprocess
import sys
import time

import pytest

BALLAST_PER_CORE = 20
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
    """Spin several processes on each core. They also stop on their own."""
    spin = "import time\nuntil = time.monotonic() + 300\nwhile time.monotonic() < until: pass"
    count = BALLAST_PER_CORE * len(os.sched_getaffinity(0))
    ballast = [subprocess.Popen([sys.executable, "-S", "-c", spin]) for _ in range(count)]
    try:
        yield
    finally:
        for process in ballast:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_busy_host_starts_the_embedded_default_late_and_says_so(images):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", READ_ALL, str(images)], text=True, **pipes) as trainer:
        try:
            assert trainer.stdout.readline() == "imported\n"
            with busy_cores():
                trainer.stdin.write("\n")
                trainer.stdin.flush()
                began_s = time.monotonic()
                assert trainer.stdout.readline() == "started\n", trainer.stderr.read()
                took_s = time.monotonic() - began_s
            read, said = trainer.communicate(timeout=120)
        finally:
            trainer.kill()
    assert read == "150\n", said
    # It may also start in time.
    assert took_s < 12 or "the embedded coordinator is not ready after 10 s" in said
