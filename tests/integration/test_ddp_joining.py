"""Ranks that do not come together: they share a listing and a plan, whenever each of them opens the job."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from superdl.sampler import SuperSampler
from superdl.sampler.rpc.client import FIRST_CONTACT, Client
from superdl.super_dataset import SuperDataset
from superdl.super_wire import coordinator_pb2 as pb
from tests.fixtures.images import SIDE, expected_pixels, write_images
from tests.integration.delivery import assert_exactly_once, collect
from tests.integration.resuming import RECIPE, run_of

if TYPE_CHECKING:
    from tests.fixtures.stack import Stack

ROOT = Path(__file__).parents[2]
END_TIMEOUT_S = 60.0


@pytest.fixture
def run_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samplers of this process are ranks of one run, as a launcher would have it."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29999")  # a name; nobody listens there


def rank_of(shared_stack: Stack, source: Path, rank: int, **arguments: Any) -> SuperSampler:
    how = {
        "batch_size": 8,
        "num_replicas": 2,
        "job": "ranks",
        "coordinator": shared_stack.address,
    } | arguments
    return SuperSampler(SuperDataset(source.as_uri(), RECIPE), rank=rank, **how)


@pytest.mark.usefixtures("run_id")
def test_ranks_of_a_run_see_the_source_as_its_first_one_did(shared_stack: Stack, tmp_path: Path) -> None:
    source = write_images(tmp_path / "images", 40)
    with rank_of(shared_stack, source, 0) as first:
        write_images(source, 48)
        with rank_of(shared_stack, source, 1) as second:
            assert first.job == second.job, "the fingerprint is part of it"
            assert len(first) == len(second) == 3
            refs = [*first, *second]
    keys = [key for ref in refs for key, pad in zip(ref.keys, ref.padding_mask(), strict=True) if not pad]
    assert len(keys) == len(set(keys)) == 40


def test_a_rank_that_comes_in_mid_epoch_gets_all_of_its_part(shared_stack: Stack, images: Path) -> None:
    with run_of(shared_stack, images, batch_size=8, num_replicas=2, rank=0, job="ranks") as early:
        iterator = iter(early.loader)
        delivered = collect(islice(iterator, 6))
        with run_of(shared_stack, images, batch_size=8, num_replicas=2, rank=1, job="ranks") as late:
            delivered += collect(late.loader)
            assert early.sampler.job == late.sampler.job
        delivered += collect(iterator)
    assert_exactly_once(delivered, expected_pixels(images, resize=SIDE, crop=SIDE))


def test_a_rank_that_comes_late_may_begin_where_the_others_are(shared_stack: Stack, images: Path) -> None:
    with run_of(shared_stack, images, batch_size=8, num_replicas=2, rank=0, job="ranks") as early:
        iterator = iter(early.loader)
        assert len(list(islice(iterator, 6))) == 6
        state = early.sampler.state_dict(batches_consumed=6)
        with run_of(shared_stack, images, state, batch_size=8, num_replicas=2, rank=1, job="ranks") as late:
            rest = collect(iterator) + collect(late.loader)
    with run_of(shared_stack, images, state, batch_size=16) as alone:
        assert sorted(rest) == sorted(collect(alone.loader))


LEAVING = """
import sys
from superdl.sampler import SuperSampler
from superdl.super_dataset import Recipe, SuperDataset

dataset = SuperDataset(sys.argv[1], Recipe.image(resize=32, crop=32))
sampler = SuperSampler(dataset, batch_size=8, rank=int(sys.argv[2]), num_replicas=2, job="leaving")
next(iter(sampler))
print(sampler.job, flush=True)
sys.stdin.readline()
"""


def test_the_job_ends_with_the_process_of_its_last_rank(shared_stack: Stack, images: Path) -> None:
    ranks = [
        subprocess.Popen(  # our own program
            [sys.executable, "-c", LEAVING, images.as_uri(), str(rank)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"SUPER_COORDINATOR": shared_stack.address, "PYTHONPATH": str(ROOT)},
        )
        for rank in range(2)
    ]
    try:
        jobs = [process.stdout.readline().strip() for process in ranks if process.stdout is not None]
        assert jobs[0] == jobs[1]
        for process, left in zip(ranks, (True, False), strict=True):
            assert is_open(shared_stack, jobs[0])
            process.communicate("\n", timeout=END_TIMEOUT_S)
            assert process.returncode == 0
            assert is_open(shared_stack, jobs[0]) == left, (
                "nobody closed the sampler, and the coordinator knows"
            )
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.communicate(timeout=END_TIMEOUT_S)


def is_open(stack: Stack, job: str) -> bool:
    reply = Client(stack.address).call("GetJobStats", pb.GetJobStatsRequest(), FIRST_CONTACT)
    return job in {one.job for one in reply.jobs}
