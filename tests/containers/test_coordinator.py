"""The coordinator's image, built from its Dockerfile and run: it serves, survives a kill, and drains.

Sampler, readers and cache are this machine's; only the coordinator, with its local functions, is in a
container.
"""

import os

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.containers import UID
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.fixtures.valkey import Valkey
from tests.integration.delivery import assert_exactly_once, collect
from tools.lambda_zip import project_version

pytestmark = [pytest.mark.slow, pytest.mark.containers, pytest.mark.timeout(1200)]

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
BATCH = 8


@pytest.fixture(scope="module")
def image(container_host):
    return container_host.build("coordinator")


@pytest.fixture
def cache():
    """A cache whose socket the container's user may use, in a directory that is mounted there."""
    server = Valkey(arguments=("--unixsocketperm", "777"))
    os.chown(server.directory, UID, UID)
    server.start()
    yield server
    server.close()


@pytest.fixture
def source(tmp_path):
    directory = write_images(tmp_path / "images", 400)
    directory.chmod(0o755)
    return directory


@pytest.fixture
def coordinator(container_host, image, cache, source):
    """A coordinator beside this cache, with two functions that read this source; healthy."""
    options = ["--volume", f"{cache.directory}:{cache.directory}", "--volume", f"{source}:{source}:ro"]
    # Health's port in the image may be another test's here.
    settings = {"LISTEN": _address(cache), "HEALTH_LISTEN": f"unix:{cache.directory}/health.sock"}
    for name, value in (settings | {"CACHE": cache.unix_url, "OWNER": "test"}).items():
        options += ["--env", f"SUPER_{name}={value}"]
    words = ("--slots", "2", "--lookahead-batches", "2")
    started = container_host.start(image, *words, options=tuple(options))
    started.wait_until_healthy()
    return started


def _address(cache):
    return f"unix:{cache.directory}/coordinator.sock"


def test_it_runs_with_no_rights_and_only_what_it_needs_and_drains(coordinator, cache):
    assert coordinator.state("Health.Status") == "healthy"
    status = coordinator.execute("python", "-c", "print(open('/proc/1/status').read())").splitlines()
    found = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    assert found["Uid"].split() == [str(UID)] * 4
    assert int(found["CapEff"], 16) == int(found["CapBnd"], 16) == 0
    assert found["NoNewPrivs"] == "1"
    assert coordinator.code("touch", "/opt/super/written") != 0, "the file system can be written to"
    assert coordinator.code("python", "-c", "import torch") != 0
    version = "from importlib.metadata import version; print(version('superdl'))"
    assert coordinator.execute("python", "-c", version) == project_version()
    assert "no open jobs" in coordinator.execute("superdl", "stats", "--coordinator", _address(cache))
    assert coordinator.stop() == 0
    assert "draining" in coordinator.logs()


def test_a_kill_in_mid_epoch_loses_nothing(coordinator, cache, source):
    expected = expected_pixels(source, resize=SIDE, crop=SIDE)
    dataset = SuperDataset(source.as_uri(), RECIPE)
    with SuperSampler(
        dataset, batch_size=BATCH, shuffle=True, seed=1, coordinator=_address(cache)
    ) as sampler:
        loader = DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2)
        delivered = []
        for number, batch in enumerate(loader):
            if number in {10, 30}:
                coordinator.kill()
                assert coordinator.code("true") != 0
                coordinator.restart()
            delivered += collect([batch])
        assert sampler.job_stats().samples_produced > 0, "the last coordinator produced samples as well"
        sampler.set_epoch(0)
        again = collect(loader)
    assert_exactly_once(delivered, expected)
    assert delivered == again, "in plan order"
    coordinator.wait_until_healthy()
    assert coordinator.logs().count("serving on") == 3
