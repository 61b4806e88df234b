"""Workers that call in and misbehave: an epoch is exact, within bounds, and the log has a line of it."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from superdl import Recipe, SuperDataset, SuperSampler
from superdl.sampler.rpc.connection import connection_to
from superdl.super_wire import coordinator_pb2 as pb
from tests.coordinator.executors.functions import MODULE
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import Stack
from tests.fixtures.stand_in_workers import stand_ins
from tests.fixtures.workers import WorkerProcess, until, workers
from tests.hostile.proxy import Link, Proxy
from tests.integration.delivery import assert_exactly_once, collect
from tests.integration.resuming import settled_stats

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def expected(images, object_store):
    shutil.copytree(images, object_store.directory / "photos" / "train")
    return expected_pixels(images, resize=SIDE, crop=SIDE)


@pytest.fixture
def stack(expected):
    stack = Stack(arguments=("--executor", "workers", "--request-samples", "4"))
    yield stack
    stack.close()


def train(stack, expected):
    """An epoch, which must be exact; what was counted for it."""
    dataset = SuperDataset("s3://photos/train", RECIPE, read_timeout=60)
    with SuperSampler(dataset, batch_size=4, coordinator=stack.address) as sampler:
        assert_exactly_once(collect(DataLoader(dataset, sampler=sampler, batch_size=None)), expected)
        return settled_stats(sampler)


def stats_of(stack):
    return connection_to(stack.address).call("GetJobStats", pb.GetJobStatsRequest(), 10.0)


def lines(stack, words):
    return stack.log.read_text().count(words)


def test_two_hundred_at_once(stack, expected):
    with stand_ins(stack.address, 200, 1):
        stack.start()
        until(lambda: lines(stack, "connected with 1 slots") == 200)
        until(lambda: sum(executor.capacity for executor in stats_of(stack).executors) == 200)
        stats = train(stack, expected)
        assert stats.capacity == len(stats.workers) == 200
    until(lambda: lines(stack, "disconnected with") == 200)


def test_one_that_claims_a_thousand_slots_and_answers_what_and_as_often_as_it_likes(stack, expected):
    with stand_ins(stack.address, 1, 1000, "lying"):
        stack.start()
        stats = train(stack, expected)
        assert stats.capacity == 1000
    assert lines(stack, "but answered 'another'") == 1


@pytest.mark.slow
def test_a_partitioned_one_loses_its_requests_within_20_s(expected):
    """Nothing comes through any more, in either direction, and no connection ends."""
    stack = Stack(arguments=("--executor", "workers", "--request-samples", "4"), tcp=True)
    between = Proxy({"coordinator": Link(stack.address, resp=False)}, seed=1)
    try:
        cut_off = WorkerProcess(between.addresses["coordinator"], slots=2)
        stack.start()
        os.kill(between.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        with workers(stack.address, 1, slots=2):
            train(stack, expected)
        assert time.monotonic() - began_s < 20 + 10  # and the epoch
        until(lambda: lines(stack, "has sent nothing for 15 s") == 1)
        os.kill(between.pid, signal.SIGCONT)
        cut_off.send(signal.SIGTERM)
        assert cut_off.ended() == 0
        cut_off.close()
    finally:
        between.close()
        stack.close()


def test_one_out_of_memory_costs_a_request(stack, expected, tmp_path):
    environment = {"PYTHONPATH": str(ROOT), "OUT_OF_MEMORY": str(tmp_path / "marker")}
    function = ("--function", f"{MODULE}:out_of_memory_once")
    worker = WorkerProcess(stack.address, *function, environment=environment, slots=2)
    try:
        stack.start()
        train(stack, expected)
        assert lines(stack, "killed by SIGKILL") == 1
        until(lambda: [(one.crashed, one.restarted) for one in stats_of(stack).workers] == [(1, 1)])
    finally:
        worker.close()
