"""Settings that do not fit together are refused by name; they say how many CPUs and ranks a host has."""

from __future__ import annotations

import pytest
import torch.distributed.run

from infra.launcher.cluster import Cluster
from infra.launcher.services import function_cpus
from infra.launcher.settings import SPARE, LaunchSettings
from infra.launcher.training import ranks_here, training
from superdl.sampler.embedded.host import usable_cores
from superdl.super_wire.errors import ConfigError

DATA = Cluster(("a", "b"), ("c", "d"), "b")
TRAINER = Cluster(("a", "b"), ("c", "d"), "d")
ALONE = Cluster((), ("c", "d"), "c")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ray_port": 0}, "ray_port is from 1 to 65535"),
        ({"ray_port": 50051}, "each port is another"),
        ({"coordinator": "a:1", "cache": "redis://a"}, "a coordinator that runs already has its own"),
        ({"ranks_per_host": -1}, "ranks_per_host is not negative"),
        ({"trainer_cpus": -2}, "trainer_cpus is a number of CPUs or spare"),
        ({"silence_s": 0}, "silence_s is above 0"),
        ({"stop_wait_s": float("inf")}, "stop_wait_s is above 0"),
    ],
)
def test_what_does_not_fit_is_refused(changes, told):
    with pytest.raises(ConfigError, match=told):
        LaunchSettings(**changes)


def test_ray_is_started_for_the_executor_that_wants_it():
    assert LaunchSettings().own_ray
    assert LaunchSettings(executor="lambda, ray").own_ray
    assert not LaunchSettings(executor="local").own_ray
    assert not LaunchSettings(coordinator="a:1").own_ray


@pytest.mark.parametrize(
    ("environment", "devices", "ranks"),
    [
        ({"SM_NUM_GPUS": "4"}, ["nvidia0"], 4),
        ({"SM_NUM_GPUS": "0"}, ["nvidia0"], 1),
        ({}, ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], 2),
        ({"CUDA_VISIBLE_DEVICES": "0"}, ["nvidia0", "nvidia1"], 1),
        ({"CUDA_VISIBLE_DEVICES": ""}, ["nvidia0"], 1),
        ({}, [], 1),
    ],
)
def test_a_rank_for_each_gpu(tmp_path, environment, devices, ranks):
    for name in devices:
        (tmp_path / name).touch()
    assert ranks_here(LaunchSettings(), environment, tmp_path) == ranks
    assert ranks_here(LaunchSettings(ranks_per_host=8), environment, tmp_path) == 8


def test_a_number_of_gpus_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="SM_NUM_GPUS is a number; not 'two'"):
        ranks_here(LaunchSettings(), {"SM_NUM_GPUS": "two"})


def test_cpus_for_functions():
    cores = usable_cores()
    one_gpu = {"SM_NUM_GPUS": "1"}
    assert function_cpus(DATA, LaunchSettings(), {}) == cores
    assert function_cpus(DATA, LaunchSettings(data_cpus=3), {}) == 3
    assert function_cpus(TRAINER, LaunchSettings(), one_gpu) == 0
    assert function_cpus(TRAINER, LaunchSettings(trainer_cpus=2), one_gpu) == 2
    assert function_cpus(TRAINER, LaunchSettings(trainer_cpus=SPARE), one_gpu) == max(1, cores - 1)
    assert function_cpus(ALONE, LaunchSettings(), one_gpu) == max(1, cores - 1)


def test_torchrun_gets_this_hosts_rank_and_the_runs_rendezvous():
    cluster = Cluster(("a",), ("c", "d"), "d", interface="eth0")
    child = training(
        cluster,
        LaunchSettings(ranks_per_host=4),
        {"GLOO_SOCKET_IFNAME": "eth7"},
        ["-m", "package.train", "--epochs", "3"],
        address="10.0.0.4",
        coordinator="a:50051",
        run_id="job-1",
    )
    words = child._command
    told = dict(zip(words[3:-5:2], words[4:-5:2], strict=True))
    assert told == {
        "--nnodes": "2",
        "--node-rank": "1",
        "--nproc-per-node": "4",
        "--rdzv-backend": "static",
        "--master-addr": "c",
        "--master-port": "29500",
        "--rdzv-id": "job-1",
        "--local-addr": "10.0.0.4",
    }
    assert words[-5:] == ["-m", "--", "package.train", "--epochs", "3"]
    assert child._environment["SUPER_COORDINATOR"] == "a:50051"
    assert child._environment["NCCL_SOCKET_IFNAME"] == "eth0"
    assert child._environment["GLOO_SOCKET_IFNAME"] == "eth7"


@pytest.mark.parametrize("script", [["train.py"], ["-m", "package.train"]])
def test_no_option_of_the_script_is_taken_for_torchruns(script):
    """Whose parser takes beginnings of its options for them, and refuses those that could be several."""
    own = ["--num", "0.1", "--log", "3", "--max=3", "--start", "--nu", "--local", "--run", "-m", "--", "-x"]
    child = training(
        Cluster((), ("c",), "c"),
        LaunchSettings(ranks_per_host=1),
        {},
        [*script, *own],
        address="10.0.0.4",
        coordinator="c:50051",
        run_id="job-1",
    )
    given = torch.distributed.run.parse_args(child._command[3:])
    assert [given.training_script, *given.training_script_args] == [script[-1], *own]
    assert given.module == (len(script) > 1)
    assert given.rdzv_id == "job-1"
