"""Flags or SageMaker's files say who is here and how to launch; what does not fit is refused by name."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed.run
from hypothesis import given
from hypothesis import strategies as st

import infra.launcher
from infra.launcher import Launch, local, submit
from infra.launcher.__main__ import _own_address
from infra.launcher.services import function_cpus
from infra.launcher.settings import (
    SPARE,
    Cluster,
    cluster_of,
    job_environment,
    launcher_parser,
    parse,
    training_words,
)
from infra.launcher.training import interface_of, ranks_here, training_command, visible_gpus
from infra.launcher.trust import Trust
from superdl.super_wire.errors import ConfigError
from superdl.super_wire.host import usable_cores

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/clusters.md").read_text(encoding="utf-8")
DNN = {"instance_group_name": "dnn_group", "instance_type": "ml.g5.xlarge", "hosts": ["algo-1", "algo-3"]}
DATA = {"instance_group_name": "data_group", "instance_type": "ml.c5.xlarge", "hosts": ["algo-10", "algo-2"]}
# As a real job's file has it, but for the hosts' number.
CONFIG = {
    "current_host": "algo-2",
    "current_instance_type": "ml.c5.9xlarge",
    "current_group_name": "data_group",
    "hosts": ["algo-1", "algo-10", "algo-2", "algo-3"],
    "instance_groups": [DNN, DATA],
    "network_interface_name": "eth0",
}


def settings(*options):
    return parse([*options, "--", "train.py"])


def of_sagemaker(directory, config):
    (directory / "resourceconfig.json").write_text(json.dumps(config))
    return cluster_of(settings(f"--config-dir={directory}"))


def test_sagemakers_file(tmp_path):
    cluster = of_sagemaker(tmp_path, CONFIG)
    assert cluster == Cluster(("algo-2", "algo-10"), ("algo-1", "algo-3"), "algo-2")
    assert (cluster.leader, cluster.leads, cluster.trains) == ("algo-2", True, False)


@pytest.mark.parametrize(
    "groups", [[], [{"instance_group_name": "homogeneousCluster", "hosts": ["algo-2", "algo-1"]}]]
)
def test_hosts_of_one_group_all_train(tmp_path, groups):
    config = {"hosts": ["algo-2", "algo-1"], "current_host": "algo-1", "instance_groups": groups}
    assert of_sagemaker(tmp_path, config) == Cluster((), ("algo-1", "algo-2"), "algo-1")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"current_host": "algo-9"}, "this host, 'algo-9', is none of the run's"),
        ({"hosts": ["algo-1", "algo-2", "algo-3"]}, r"each of .* is in data_group or dnn_group"),
        ({"hosts": [*CONFIG["hosts"], "algo-4"]}, r"each of .*algo-4.* is in data_group or dnn_group"),
        ({"instance_groups": [DNN, {**DATA, "instance_group_name": "x"}]}, "not {.*'x'"),
        ({"instance_groups": "none"}, r"resourceconfig.json cannot be used"),
        ({"hosts": DATA["hosts"], "instance_groups": [DATA]}, "no host trains"),
    ],
)
def test_what_does_not_fit_in_sagemakers_file_is_refused(tmp_path, changes, why):
    with pytest.raises(ConfigError, match=why):
        of_sagemaker(tmp_path, {**CONFIG, **changes})


@given(st.recursive(st.text(max_size=4) | st.none(), lambda inner: st.lists(inner, max_size=3)), st.text())
def test_whatever_the_files_hold_is_an_error_of_ours(tmp_path_factory, value, text):
    directory = tmp_path_factory.mktemp("config")
    with pytest.raises(ConfigError):
        of_sagemaker(directory, {**CONFIG, "hosts": value, "instance_groups": value})
    (directory / "hyperparameters.json").write_text(f"[{text}]")
    with pytest.raises(ConfigError, match=r"hyperparameters.json cannot be used"):
        training_words(settings(f"--config-dir={directory}"))


def test_flags_keep_their_order():
    cluster = cluster_of(settings("--data-hosts=d2, d1", "--training-hosts=t2,t1", "--host=t1"))
    assert cluster.hosts == ("d2", "d1", "t2", "t1")
    assert cluster_of(settings("--training-hosts=alone")).current == "alone"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--data-hosts=a", "--training-hosts=b"], "this host, '', is none of the run's: a, b"),
        (["--data-hosts=a", "--host=a"], "no host trains"),
        (["--data-hosts=a", "--training-hosts=b,a", "--host=a"], "the host a is named twice"),
        (["--data-hosts=a b", "--training-hosts=c", "--host=c"], "a name or an address; not 'a b'"),
        (["--training-hosts=-x"], "a name or an address; not '-x'"),
        ([], "no hosts: name them by --data-hosts"),
        (["--ray-port=0"], "--ray-port: from 1 to 65535; not 0"),
        (["--ray-port=50051"], "each port is another"),
        (["--coordinator=a:1", "--cache=redis://a"], "a running coordinator has its own cache"),
        (["--ranks-per-host=-1"], "--ranks-per-host: from 0"),
        (["--trainer-cpus=some"], "--trainer-cpus: invalid"),
        (["--cache-bytes=much"], "--cache-bytes: this is a size"),
        (["--silence-s=0"], "--silence-s: from 0.01"),
        (["--stop-wait-s=inf"], "--stop-wait-s: from 0.01"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, why):
    with pytest.raises(ConfigError, match=why):
        cluster_of(settings(*options))


def test_a_host_that_only_itself_can_reach_is_refused(monkeypatch):
    answers = [(socket.AF_INET6, 1, 6, "", ("::1", 0)), (socket.AF_INET, 1, 6, "", ("127.0.1.1", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
    with pytest.raises(ConfigError, match=r"node-1 is 127.0.1.1 on node-1 itself"):
        _own_address(Cluster(("node-1",), ("node-2",), "node-1"))
    assert _own_address(Cluster((), ("node-1",), "node-1")) == "127.0.1.1"


def test_the_hyper_parameters_of_a_job_become_the_scripts_arguments(tmp_path):
    def words_of(*command):
        return training_words(parse([f"--config-dir={tmp_path}", "--", *command]))

    assert words_of("train.py") == ["train.py"]
    with pytest.raises(ConfigError, match="no training script"):
        words_of()
    parameters = {
        "epochs": "3",
        "b": "1.10",
        "name": '"quoted by the SDK"',
        "broken": '"half',
        "flag": "true",
        "sagemaker_program": "train.py",
        "_tuning_objective_metric": "loss",
        "train-script": '"/opt/mine.py"',
    }
    (tmp_path / "hyperparameters.json").write_text(json.dumps(parameters))
    words = ["-b", "1.10", "--broken", '"half', "--epochs", "3", "--flag", "True"]
    words += ["--name", "quoted by the SDK"]
    assert words_of("-m", "train") == ["-m", "train", *words]
    assert words_of() == ["/opt/mine.py", *words]


def test_a_jobs_places_have_the_names_that_scripts_know(tmp_path):
    directory = tmp_path / "input/config"
    assert job_environment(directory) == {}
    directory.mkdir(parents=True)
    (directory / "resourceconfig.json").write_text(json.dumps(CONFIG))
    (directory / "inputdataconfig.json").write_text('{"train": {"S3DistributionType": "FullyReplicated"}}')
    told = job_environment(directory)
    assert told == {
        "SM_CHANNEL_TRAIN": f"{tmp_path}/input/data/train",
        "SM_MODEL_DIR": f"{tmp_path}/model",
        "SM_OUTPUT_DATA_DIR": f"{tmp_path}/output/data",
        "SM_HOSTS": json.dumps(CONFIG["hosts"]),
        "SM_CURRENT_HOST": CONFIG["current_host"],
    }
    (tmp_path / "checkpoints").mkdir()
    assert job_environment(directory) == {**told, "SM_CHECKPOINT_DIR": f"{tmp_path}/checkpoints"}


def test_ray_is_started_for_the_executor_that_wants_it():
    assert settings().own_ray
    assert settings("--executor=lambda, ray").own_ray
    assert not settings("--executor=local").own_ray
    assert not settings("--coordinator=a:1").own_ray


def launch(current, *options, data=("a", "b"), command=("train.py",), **environment):
    cluster = Cluster(data, ("c", "d"), current)
    return Launch(cluster, settings(*options), Trust(), environment, command, Path("/nowhere"), "127.0.0.7")


@pytest.mark.parametrize(
    ("environment", "devices", "gpus"),
    [
        ({}, ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], ["0", "1"]),
        ({"CUDA_VISIBLE_DEVICES": "3, 5"}, ["nvidia0"], ["3", "5"]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, ["nvidia0"], []),
    ],
)
def test_gpus_that_may_be_used(tmp_path, environment, devices, gpus):
    for name in devices:
        (tmp_path / name).touch()
    assert visible_gpus(environment, tmp_path) == gpus
    if "CUDA_VISIBLE_DEVICES" in environment:
        assert ranks_here(launch("c", **environment)) == max(1, len(gpus))
        assert ranks_here(launch("c", "--ranks-per-host=8", **environment)) == 8


def test_cpus_for_functions():
    def cpus(current, *options, **more):
        return function_cpus(launch(current, *options, CUDA_VISIBLE_DEVICES="0", **more))

    cores = usable_cores()
    assert (cpus("b"), cpus("b", "--data-cpus=3")) == (cores, 3)
    assert (cpus("d"), cpus("d", "--trainer-cpus=2")) == (0, 2)
    assert cpus("d", "--trainer-cpus=spare") == cpus("c", data=()) == max(1, cores - 1)
    assert settings("--trainer-cpus=spare").trainer_cpus == SPARE


def test_torchrun_gets_this_hosts_rank_and_the_runs_rendezvous():
    here = launch("d", "--ranks-per-host=4", GLOO_SOCKET_IFNAME="eth7")
    words, environment = training_command(here, "a:50051", "job-1")
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
    words, _ = training_command(replace(launch("d"), command=[*script, *own]), "a:50051", "job-1")
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
    for name, port in settings().ports().items():
        assert f"| {port} `--{name.replace('_', '-')}`" in PAGE
