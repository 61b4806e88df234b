"""Options that do not fit are refused by name; they say how many CPUs and ranks a host has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch.distributed.run

import infra.launcher
from infra.launcher import local, submit
from infra.launcher.cluster import Cluster
from infra.launcher.options import SPARE, LaunchSettings, launcher_parser, parse, settings_of
from infra.launcher.services import function_cpus
from infra.launcher.training import interface_of, ranks_here, training_command
from superdl.sampler.embedded.host import usable_cores
from superdl.super_wire.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/clusters.md").read_text(encoding="utf-8")
DATA = Cluster(("a", "b"), ("c", "d"), "b")
TRAINER = Cluster(("a", "b"), ("c", "d"), "d")
ALONE = Cluster((), ("c", "d"), "c")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--ray-port=0"], "ray_port is from 1 to 65535"),
        (["--ray-port=50051"], "each port is another"),
        (["--coordinator=a:1", "--cache=redis://a"], "a coordinator that runs already has its own"),
        (["--ranks-per-host=-1"], "ranks_per_host is not negative"),
        (["--trainer-cpus=some"], "a number of CPUs, or spare; not 'some'"),
        (["--cache-bytes=much"], "--cache-bytes is a size"),
        (["--silence-s=0"], "silence_s is above 0"),
        (["--stop-wait-s=inf"], "stop_wait_s is above 0"),
    ],
)
def test_what_does_not_fit_is_refused(options, why):
    with pytest.raises(ConfigError, match=why):
        settings_of(parse([*options, "--", "train.py"]))


def test_each_setting_is_an_option():
    options = ["--trainer-cpus=spare", "--no-torchrun", "--insecure", "--cache-bytes=1gb", "--silence-s=2"]
    settings = settings_of(parse([*options, "--", "train.py"]))
    assert settings == LaunchSettings(
        trainer_cpus=SPARE, torchrun=False, insecure=True, cache_bytes=2**30, silence_s=2.0
    )
    assert settings_of(parse(["train.py"])) == LaunchSettings()


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


def test_cpus_for_functions():
    cores = usable_cores()
    one_gpu = {"SM_NUM_GPUS": "1"}
    assert function_cpus(DATA, LaunchSettings(), {}) == cores
    assert function_cpus(DATA, LaunchSettings(data_cpus=3), {}) == 3
    assert function_cpus(TRAINER, LaunchSettings(), one_gpu) == 0
    assert function_cpus(TRAINER, LaunchSettings(trainer_cpus=2), one_gpu) == 2
    assert function_cpus(TRAINER, LaunchSettings(trainer_cpus=SPARE), one_gpu) == max(1, cores - 1)
    assert function_cpus(ALONE, LaunchSettings(), one_gpu) == max(1, cores - 1)


def command_of(*script, cluster=TRAINER, environment=None):
    return training_command(
        cluster,
        LaunchSettings(ranks_per_host=4),
        environment or {},
        script,
        address="127.0.0.7",
        coordinator="a:50051",
        run_id="job-1",
    )


def test_torchrun_gets_this_hosts_rank_and_the_runs_rendezvous():
    words, environment = command_of("-m", "package.train", environment={"GLOO_SOCKET_IFNAME": "eth7"})
    parsed = torch.distributed.run.parse_args(words[3:])
    assert (parsed.nnodes, parsed.node_rank, parsed.nproc_per_node) == ("2", 1, "4")
    assert (parsed.rdzv_backend, parsed.master_addr, parsed.master_port) == ("static", "c", 29500)
    assert (parsed.rdzv_id, parsed.local_addr) == ("job-1", "127.0.0.7")
    assert environment["SUPER_COORDINATOR"] == "a:50051"
    assert environment["NCCL_SOCKET_IFNAME"] == interface_of("127.0.0.1") != ""
    assert environment["GLOO_SOCKET_IFNAME"] == "eth7"
    assert interface_of("192.0.2.1") == ""


@pytest.mark.parametrize("script", [["train.py"], ["-m", "package.train"]])
def test_no_option_of_the_script_is_taken_for_torchruns(script):
    """Whose parser takes beginnings of its options for them, and refuses those that could be several."""
    own = ["--num", "0.1", "--log", "3", "--max=3", "--start", "--nu", "--local", "--run", "-m", "--", "-x"]
    words, _ = command_of(*script, *own)
    parsed = torch.distributed.run.parse_args(words[3:])
    assert [parsed.training_script, *parsed.training_script_args] == [script[-1], *own]
    assert parsed.module == (len(script) > 1)


def test_the_page_names_options_codes_and_ports_as_they_are():
    named = set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", PAGE))
    parsers = (launcher_parser(), submit.parser(), local.parser())
    known = {flag for parser in parsers for action in parser._actions for flag in action.option_strings}
    of_examples = {"epochs", "source", "set"}  # options of train.py and superdl run
    assert {name for name in named - of_examples if f"--{name}" not in known} == set()
    codes = {code for name, code in vars(infra.launcher).items() if name.startswith("EXIT_")}
    assert {str(code) for code in codes - {infra.launcher.EXIT_SIGNAL}} <= set(
        re.findall(r"^\| ([0-9]+)", PAGE, re.MULTILINE)
    )
    settings = LaunchSettings()
    for name in (name for name in settings.__slots__ if name.endswith("_port")):
        assert f"| {getattr(settings, name)} `--{name.replace('_', '-')}`" in PAGE
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
