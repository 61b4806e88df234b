"""DataLoader workers of every kind: the same samples, one connection, no grpc warning, no leftovers."""

import os
import threading
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset, SuperLoader
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.fixtures.workers import until
from tests.integration.delivery import RECIPE, assert_exactly_once, collect

SHARED_MEMORY = Path("/dev/shm")  # only inspected

# Cover each value: the number of workers, the start method, and persistence.
CASES = [(0, None, False), (4, "fork", False), (1, "forkserver", True), (1, "spawn", True)]


@pytest.fixture(scope="module")
def tcp_stack():
    with Stack(arguments=("--slots", str(os.cpu_count() or 1)), tcp=True) as running:
        yield running


def connected(port):
    """Count this process's open connections to ``port``."""
    found = psutil.Process().net_connections("tcp")
    return sum(bool(c.raddr) and c.raddr.port == port and c.status == "ESTABLISHED" for c in found)


@contextmanager
def connections_to(port):
    """Continuously record how many connections to ``port`` this process has open."""
    seen, ended = [], threading.Event()

    def watch():
        while not ended.wait(0.002):
            seen.append(connected(port))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def leaked_segments(before):
    """Shared memory that torch created since, by a process (the name has its pid) that has ended."""
    made = {path for path in set(SHARED_MEMORY.iterdir()) - before if path.name.startswith("torch_")}
    return {path for path in made if not psutil.pid_exists(int(path.name.split("_")[1])) and path.exists()}


def loader_of(dataset, sampler, workers, context, persistent):
    return DataLoader(
        dataset,
        sampler=sampler,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=persistent,
        timeout=60 if workers else 0,
    )


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize(("workers", "context", "persistent"), CASES)
def test_three_epochs(tcp_stack, images, expected, capfd, workers, context, persistent):
    shared_before = set(SHARED_MEMORY.iterdir())
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with (
        connections_to(tcp_stack.port) as connections,
        SuperSampler(
            dataset, batch_size=16, shuffle=True, seed=workers, coordinator=tcp_stack.address
        ) as sampler,
    ):
        loader = loader_of(dataset, sampler, workers, context, persistent)
        epochs = [collect(loader) for _ in range(3)]
        del loader
    for delivered in epochs:
        assert_exactly_once(delivered, expected)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0], "two epochs have the same order"
    assert max(connections) == 1
    assert "fork" not in capfd.readouterr().err
    assert not leaked_segments(shared_before)


@pytest.mark.parametrize("training_by", ["workers", "threads"])
def test_validation_starts_workers_in_the_middle_of_training(tcp_stack, images, capfd, training_by):
    side = SIDE + len(training_by)  # uncached: threads read while the workers fork
    expected = expected_pixels(images, resize=side, crop=SIDE)
    recipe = Recipe.image(resize=side, crop=SIDE)
    training, validation = (SuperDataset(images.as_uri(), recipe) for _ in range(2))
    with (
        connections_to(tcp_stack.port) as connections,
        SuperSampler(training, batch_size=8, shuffle=True, seed=1, coordinator=tcp_stack.address) as sampler,
        SuperSampler(validation, batch_size=32, shuffle=False, coordinator=tcp_stack.address) as other,
    ):
        loader = SuperLoader(training, sampler)
        if training_by == "workers":
            loader = loader_of(training, sampler, 2, "fork", persistent=False)
        validating = loader_of(validation, other, 2, "fork", persistent=False)
        delivered = []
        for number, batch in enumerate(loader):
            delivered += collect([batch])
            if number % 2 == 0:
                assert_exactly_once(collect(validating), expected)
        del loader
    assert_exactly_once(delivered, expected)
    assert max(connections) == 1, "the samplers of a process use several connections"
    assert "fork" not in capfd.readouterr().err


def test_nothing_is_left_when_all_is_closed(tcp_stack, images):
    threads_before, children_before = threading.active_count(), set(psutil.Process().children())
    dataset = SuperDataset(images.as_uri(), RECIPE)
    with SuperSampler(dataset, batch_size=16, shuffle=True, coordinator=tcp_stack.address) as sampler:
        collect(loader_of(dataset, sampler, 2, "fork", persistent=False))
    assert threading.active_count() <= threads_before  # one of an earlier test may have ended meanwhile
    assert set(psutil.Process().children()) <= children_before
    until(lambda: not connected(tcp_stack.port))  # grpc closes them shortly after
