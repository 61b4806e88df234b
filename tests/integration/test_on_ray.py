"""Workers placed and restarted by a Ray cluster: an epoch stays exact though a node dies midway."""

import signal
import subprocess
import sys
import time
from itertools import islice

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.fixtures.ports import free_port
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
BATCH = 4
WAIT_S = 120.0  # Ray may restart a lost actor late


@pytest.fixture
def stack(valkey):
    """A coordinator whose functions are workers that see its files, over TCP as between nodes."""
    arguments = ("--executor", "workers", "--shared-files", "--request-samples", "4")
    stack = Stack(cache=valkey.url, arguments=arguments, tcp=True)
    yield stack
    stack.close()


def placed(address, stack, log, count=2):
    """Run ``superdl worker --ray``."""
    command = [sys.executable, "-P", "-m", "superdl.main", "worker", "--coordinator", stack.address]
    with log.open("wb") as output:
        return subprocess.Popen([*command, "--ray", address, "--num", str(count)], stderr=output)


def test_a_node_that_is_killed_in_mid_epoch_costs_no_sample(ray_cluster, stack, tmp_path):
    images = write_images(tmp_path / "images", 400)
    nodes = [ray_cluster.add(cpus=1) for _ in range(2)]
    dataset = SuperDataset(images.as_uri(), RECIPE, read_timeout=90)
    log = tmp_path / "placing.log"
    process = placed(ray_cluster.address, stack, log)
    try:
        until(lambda: "a worker is running on" in log.read_text())
        stack.start()
        with SuperSampler(
            dataset, batch_size=BATCH, shuffle=True, seed=1, coordinator=stack.address
        ) as sampler:
            loader = iter(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2))
            delivered = collect(islice(loader, 5))
            ray_cluster.kill(nodes[0])
            ray_cluster.add(cpus=1)  # Ray restarts the lost worker here
            delivered += collect(loader)
        assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
        until(lambda: stack.log.read_text().count("connected (slots: 1)") >= 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0, log.read_text()
        until(lambda: stack.log.read_text().count(" disconnected ") >= 3)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("address", "code"), [("127.0.0.1:{port}", 2), ("{cluster}", 1)])
def test_what_is_wrong_is_named(ray_cluster, stack, tmp_path, address, code):
    """No cluster at the address, or a coordinator that does not use workers."""
    ray_cluster.add(cpus=1)
    stack.arguments = ("--executor", "local")
    stack.start()
    log = tmp_path / "placing.log"
    named = address.format(port=free_port(), cluster=ray_cluster.address)
    with placed(named, stack, log, count=1) as process:
        assert process.wait(WAIT_S) == code
    words = "does not use workers" if named == ray_cluster.address else f"Ray cluster at {named}"
    assert words in log.read_text()
    assert "Traceback" not in log.read_text()


def until(condition):
    """Wait for another process, up to a bound."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
