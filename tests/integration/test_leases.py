"""A job that vanishes without a word is noticed, costs nothing more, and is not in the way of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from torch.utils.data import DataLoader

from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset
from superdl.super_wire import coordinator_pb2 as pb
from superdl.super_wire import coordinator_pb2_grpc as pb_grpc
from tests.fixtures.images import SIDE, expected_pixels
from tests.fixtures.stack import END_TIMEOUT_S, Stack
from tests.integration.delivery import assert_exactly_once, collect

RECIPE = Recipe.image(resize=SIDE, crop=SIDE)
TRAINER = Path(__file__).with_name("train_forever.py")


@pytest.fixture
def stack():
    """A stack whose leases last a little longer than two heartbeats."""
    with Stack(arguments=("--slots", "2", "--lease-s", "4.5")) as running:
        yield running


def leases(stack):
    """Which jobs have lapsed."""
    with grpc.insecure_channel(stack.address) as channel:
        answer = pb_grpc.CoordinatorStub(channel).GetJobStats(pb.GetJobStatsRequest())
    return {job.job: job.lapsed for job in answer.jobs}


def test_a_job_whose_process_was_killed_lapses_and_others_go_on(stack, images):
    environment = {**os.environ, "SUPER_COORDINATOR": stack.address, "PYTHONPATH": str(TRAINER.parents[2])}
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
        dataset = SuperDataset(images.as_uri(), RECIPE)
        with SuperSampler(dataset, batch_size=10, shuffle=True, seed=1, coordinator=stack.address) as sampler:
            trainer.kill()
            trainer.communicate(timeout=END_TIMEOUT_S)
            delivered = collect(DataLoader(dataset, sampler=sampler, batch_size=None))
            assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))
            lapsed = {}
            while not any(lapsed.values()):  # pytest's timeout bounds it
                lapsed = leases(stack)
            assert not lapsed[sampler.job], "its heartbeat keeps the lease of the one that still lives"
            assert len(lapsed) == 2, "and nothing is forgotten"
    finally:
        trainer.kill()
        trainer.communicate(timeout=END_TIMEOUT_S)
