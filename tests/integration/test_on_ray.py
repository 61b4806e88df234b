"""Whole epochs with functions on a Ray cluster of several nodes: every sample comes once, with the same bytes
that local functions give, whatever happens to the nodes.
"""

from __future__ import annotations

import os
import time
from itertools import islice
from typing import TYPE_CHECKING

import psutil
import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire.record import unpack
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.fixtures.node_function import FUNCTION, HOLD
from tests.fixtures.stack import Stack
from tests.integration.delivery import assert_exactly_once, collect
from tests.integration.test_fields import COLUMNS, COUNT, ROOT, STEPS, assert_epoch, write_pairs
from tests.integration.test_fields import RECIPE as FIELDS_RECIPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixtures.ray_cluster import RayCluster
    from tests.fixtures.valkey import Valkey

pytestmark = pytest.mark.slow

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
WAIT_S = 60.0
BATCH = 16
REQUEST_SAMPLES = 4


@pytest.fixture
def stack(ray_cluster: RayCluster, valkey: Valkey) -> Iterator[Callable[..., Stack]]:
    """Starts a coordinator with the cluster's functions, over TCP as nodes would have to."""
    running: list[Stack] = []

    def start(*arguments: str, files: tuple[str, ...] = ("--ray-shared-files",)) -> Stack:
        options = ("--executor", "ray", "--ray-address", ray_cluster.address, *files)
        started = Stack(
            cache=valkey.url, arguments=(*options, "--request-samples", str(REQUEST_SAMPLES), *arguments)
        )
        started.start()
        running.append(started)
        return started

    yield start
    for each in running:
        each.close()


def test_a_node_that_is_killed_in_mid_epoch_costs_only_its_requests(
    ray_cluster: RayCluster, stack: Callable[..., Stack], images: Path, tmp_path: Path, valkey: Valkey
) -> None:
    """Requests are known to be under way on the node, since it holds them: then it is killed."""
    ray_cluster.add(cpus=1)
    doomed = ray_cluster.add(cpus=2, environment={HOLD: str(tmp_path)})
    running = stack("--function", FUNCTION)
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with SuperSampler(dataset, batch_size=BATCH, seed=1, coordinator=running.address) as sampler:
        loader = iter(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2))
        until(lambda: len(held(tmp_path)) == 2)
        assert sampler.job_stats().capacity == 3
        ray_cluster.kill(doomed)
        delivered = collect(loader)
        until(lambda: sampler.job_stats().capacity == 1)
        stats = sampler.job_stats()
    assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
    assert len(held(tmp_path)) == 2, "it got more requests than it has CPUs"
    assert 0 < stats.retries <= 2 * REQUEST_SAMPLES, "only what the node had was asked for again"
    with Stack(arguments=("--request-samples", str(REQUEST_SAMPLES))) as by_local:
        with SuperSampler(dataset, batch_size=BATCH, seed=1, coordinator=by_local.address) as sampler:
            assert collect(DataLoader(dataset, sampler=sampler, batch_size=None)) == delivered
        assert records(by_local.valkey) == records(valkey)


def test_nodes_that_come_and_go_while_they_work(
    ray_cluster: RayCluster, stack: Callable[..., Stack], tmp_path: Path
) -> None:
    """The look-ahead is short, so that functions are at work all the while."""
    images = write_images(tmp_path, 600)
    first = ray_cluster.add(cpus=1)
    running = stack("--lookahead-batches", "4")
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with SuperSampler(dataset, batch_size=BATCH, seed=1, coordinator=running.address) as sampler:
        loader = iter(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2))
        delivered = collect(islice(loader, 5))
        ray_cluster.add(cpus=2)
        until(lambda: sampler.job_stats().capacity == 3)
        delivered += collect(islice(loader, 5))
        ray_cluster.kill(first)
        delivered += collect(loader)
        until(lambda: sampler.job_stats().capacity == 2)
    assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))


def test_a_coordinator_that_is_killed_takes_its_driver_along(
    ray_cluster: RayCluster, stack: Callable[..., Stack]
) -> None:
    ray_cluster.add(cpus=1)
    running = stack()
    (driver,) = running.functions()
    running.kill_coordinator()
    assert psutil.wait_procs([driver], timeout=WAIT_S)[1] == []


def test_records_of_several_arrays_come_from_nodes_and_are_found_by_the_next_coordinator(
    ray_cluster: RayCluster, stack: Callable[..., Stack], tmp_path: Path
) -> None:
    (tmp_path / "pairs_of_tests.py").write_text(STEPS)
    pairs = write_pairs(tmp_path / "pairs")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    ray_cluster.add(cpus=2, environment={"PYTHONPATH": path, "SUPER_STEP_MODULES": "pairs_of_tests"})
    running = stack()
    dataset = SuperDataset(tmp_path / "pairs", FIELDS_RECIPE, columns=COLUMNS, return_info=True)
    for produced in (COUNT, 0):  # the second coordinator asks the cache, and believes it
        with SuperSampler(dataset, batch_size=5, shuffle=False, coordinator=running.address) as sampler:
            assert_epoch(DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=2), pairs)
            assert sampler.job_stats().samples_produced == produced
        assert running.close_coordinator() == 0
        running.start_coordinator()


def records(valkey: Valkey) -> dict[bytes, tuple[str, tuple[int, ...], bytes]]:
    """What a cache holds: by cache key, dtype, shape and bytes of the sample."""
    found = {}
    with valkey.client() as client:
        for key in client.scan_iter(match="super:r1:*", count=1000):
            _, array = unpack(client.get(key))
            found[key] = (str(array.dtype), array.shape, array.tobytes())
    return found


def held(directory: Path) -> set[str]:
    """Which requests the doomed node holds."""
    return {path.name for path in directory.iterdir()}


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
