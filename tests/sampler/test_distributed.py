"""Rank, run id and job id: equal on all ranks of a run, different elsewhere."""

import os
import platform

import pytest
import torch.distributed

from superdl.sampler.distributed import check_rank, rank_in_run, run_id
from superdl.sampler.session import JobSpec
from superdl.super_wire.draws import Draws
from superdl.super_wire.errors import ConfigError, UsageError

VARIABLES = ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_arguments_win_over_variables(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert rank_in_run(None, None) == (3, 8)
    assert rank_in_run(1, None) == (1, 8)
    assert rank_in_run(None, 4) == (3, 4)
    assert rank_in_run(0, 1) == (0, 1)


@pytest.fixture
def process_group(tmp_path):
    """One of one rank."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_torch_distributed_wins_over_variables(monkeypatch, process_group):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert rank_in_run(None, None) == (0, 1)


def test_several_ranks_without_a_rank_are_an_error(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")  # as Lightning leaves it to the processes that it starts
    for replicas in (None, 2):
        with pytest.raises(ConfigError, match=r"WORLD_SIZE is 2, but RANK is not set.*train_dataloader\(\)"):
            rank_in_run(None, replicas)
    assert rank_in_run(1, None) == (1, 2)
    assert rank_in_run(None, 1) == (0, 1)


def test_detected_ranks_must_agree_with_torch_distributed(process_group):
    check_rank(0, 1, by_default=(True, True))
    for rank, replicas, by_default in ((1, 2, (True, True)), (1, 2, (True, False)), (0, 2, (False, True))):
        with pytest.raises(
            UsageError, match=rf"rank {rank} of {replicas}, but .* rank 0 of 1.*train_dataloader"
        ):
            check_rank(rank, replicas, by_default=by_default)


def test_an_invalid_variable_is_named(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE.*'many'"):
        rank_in_run(None, None)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TORCHELASTIC_RUN_ID": "r7", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "elastic:r7"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "master:a:1"),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "1"}, "master:a:1"),
        ({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "master:this-host:1"),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}, "master:this-host:1"),
    ],
)
def test_launchers_determine_the_run_id(environment, expected, monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "this-host")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run_id() == expected


SPEC = {"batch_size": 4, "num_replicas": 2, "seed": 0, "shuffle": True, "drop_last": False, "rank": 0}


def job_id(run="r", fingerprint=b"f", recipe="{}", **changes):
    return JobSpec(**SPEC | changes).job_id(run, fingerprint, recipe)


def test_every_field_changes_the_job_id():
    changes = [{"run": "s"}, {"fingerprint": b"g"}, {"recipe": "[]"}, {"batch_size": 5}]
    changes += [{"num_replicas": 3}, {"seed": -1}, {"shuffle": False}, {"drop_last": True}, {}, {}]
    changes += [{"draws": Draws(repeats=2)}, {"draws": Draws(indices=bytes(8))}]
    ids = [job_id(**change) for change in [{}, *changes]]
    assert len(set(ids)) == len(ids), "two repeat the first, and are its second and third in this process"
    assert all(len(job) == 32 and int(job, 16) >= 0 for job in ids)


def test_launches_with_one_name_share_a_job_unless_they_draw_its_order(monkeypatch):
    for draws, count in ((None, 1), (Draws.in_order([1, 0], [2]), 2)):
        jobs = set()
        for process in range(2):
            monkeypatch.setattr(os, "getpid", lambda process=process: process)
            jobs.add(job_id("job:shared", draws=draws))
        assert len(jobs) == count


def test_ranks_in_one_process_agree():
    ids = [[job_id("one", rank=rank) for _ in range(2)] for rank in range(2)]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2
