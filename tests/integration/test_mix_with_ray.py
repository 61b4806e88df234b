"""Ray first, Lambda for what it cannot do, and nodes that go and come; all executors give the same bytes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import END_TIMEOUT_S, Stack
from tests.integration.delivery import assert_exactly_once, collect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixtures.lambda_service import LambdaService
    from tests.fixtures.object_store import ObjectStore
    from tests.fixtures.ray_cluster import RayCluster
    from tests.fixtures.valkey import Valkey

pytestmark = pytest.mark.slow

SOURCE = "s3://photos/train"
WAIT_S = 60.0


@pytest.fixture
def made(
    lambda_service: LambdaService,
    object_store: ObjectStore,
    ray_cluster: RayCluster,
    valkey: Valkey,
    images: Path,
) -> Iterator[Callable[[str], Stack]]:
    """Starts a coordinator with some executors; ``s3://photos/train`` holds the images."""
    lambda_service.concurrency = 2
    shutil.copytree(images, object_store.directory / "photos" / "train")
    stacks = []

    def make(executors: str) -> Stack:
        arguments = ("--executor", executors, "--ray-address", ray_cluster.address, "--lambda-warm", "1")
        small = ("--request-samples", "4", "--lookahead-batches", "4")
        stack = Stack(arguments=(*arguments, *small), cache=valkey.url)
        stacks.append(stack)
        stack.start()
        return stack

    yield make
    for stack in stacks:
        stack.close()


def fares(stack: Stack) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "superdl.main", "stats", "--json", "--coordinator", stack.address]
    done = subprocess.run(command, capture_output=True, timeout=END_TIMEOUT_S, check=True)
    return {executor["name"]: executor for executor in json.loads(done.stdout)["executors"]}


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_lambda_takes_over_when_the_last_node_is_killed_and_ray_when_one_comes(
    made: Callable[[str], Stack], ray_cluster: RayCluster, images: Path
) -> None:
    node = ray_cluster.add(cpus=1)
    stack = made("ray,lambda")
    dataset = SuperDataset(SOURCE, Recipe.image(resize=SIDE, crop=SIDE))
    with SuperSampler(dataset, batch_size=4, seed=1, coordinator=stack.address) as sampler:
        batches = iter(DataLoader(dataset, sampler=sampler, batch_size=None))
        delivered = [next(batches) for _ in range(8)]
        assert fares(stack)["ray"]["samples"] > 0
        ray_cluster.kill(node)
        delivered += [next(batches) for _ in range(12)]
        until(lambda: fares(stack)["ray"]["capacity"] == 0)
        by_ray = fares(stack)["ray"]["samples"]
        ray_cluster.add(cpus=1)
        until(lambda: fares(stack)["ray"]["capacity"] == 1)
        delivered += list(batches)
        assert_exactly_once(collect(delivered), expected_pixels(images, resize=SIDE, crop=SIDE))
        fared = fares(stack)
    assert fared["ray"]["samples"] > by_ray
    assert fared["lambda"]["samples"] > 0


def test_all_executors_give_the_same_bytes(
    made: Callable[[str], Stack], ray_cluster: RayCluster, valkey: Valkey
) -> None:
    ray_cluster.add(cpus=2)
    recipe = Recipe.image(resize=SIDE, crop=SIDE - 8)
    made_by = {}
    for executor in ("local", "ray", "lambda"):
        stack = made(executor)
        dataset = SuperDataset(SOURCE, recipe)
        with SuperSampler(dataset, batch_size=16, seed=1, coordinator=stack.address) as sampler:
            made_by[executor] = collect(DataLoader(dataset, sampler=sampler, batch_size=None))
        assert list(fares(stack)) == [executor]
        assert fares(stack)[executor]["samples"] == len(made_by[executor])
        stack.close()
        with valkey.client() as client:
            client.flushall()
    assert made_by["local"] == made_by["ray"] == made_by["lambda"]
