"""Flags, SageMaker's variables or its file say who is here, and are refused where they do not fit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.launcher import EXIT_NOT_READY, EXIT_WRONG_SETTINGS, RunFailedError
from infra.launcher.__main__ import run_host
from infra.launcher.cluster import Cluster, address_of, cluster_of, script_arguments
from infra.launcher.options import LaunchSettings
from superdl.super_wire.errors import ConfigError

# As a real job's file has it, but for the hosts' number.
CONFIG = {
    "current_host": "algo-2",
    "current_instance_type": "ml.c5.9xlarge",
    "current_group_name": "data_group",
    "hosts": ["algo-1", "algo-10", "algo-2", "algo-3"],
    "instance_groups": [
        {"instance_group_name": "dnn_group", "instance_type": "ml.g5.xlarge", "hosts": ["algo-1", "algo-3"]},
        {
            "instance_group_name": "data_group",
            "instance_type": "ml.c5.9xlarge",
            "hosts": ["algo-10", "algo-2"],
        },
    ],
    "network_interface_name": "eth0",
}


def of_sagemaker(config=None, directory=Path("/nonexistent"), **environment):
    if config is not None:
        environment["SM_RESOURCE_CONFIG"] = json.dumps(config)
    return cluster_of("", "", "", environment, directory)


def of_flags(data, training, current):
    return cluster_of(data, training, current, {}, Path("/nonexistent"))


def changed(**changes):
    return {**CONFIG, **changes}


def test_the_toolkits_variables():
    cluster = of_sagemaker(
        CONFIG,
        SM_HOSTS='["algo-1","algo-10","algo-2","algo-3"]',
        SM_CURRENT_HOST="algo-3",
        SM_CURRENT_INSTANCE_GROUP="dnn_group",
        SM_NETWORK_INTERFACE_NAME="eth1",
    )
    assert cluster == Cluster(("algo-2", "algo-10"), ("algo-1", "algo-3"), "algo-3", "eth1")
    assert (cluster.leader, cluster.leads, cluster.trains, cluster.node_rank) == ("algo-2", False, True, 1)


def test_the_file_that_is_there_without_the_toolkit(tmp_path):
    (tmp_path / "resourceconfig.json").write_text(json.dumps(CONFIG))
    cluster = of_sagemaker(directory=tmp_path)
    assert cluster == Cluster(("algo-2", "algo-10"), ("algo-1", "algo-3"), "algo-2", "eth0")
    assert (cluster.leads, cluster.trains) == (True, False)
    (tmp_path / "resourceconfig.json").write_text("{")
    with pytest.raises(ConfigError, match="resourceconfig.json is no JSON"):
        of_sagemaker(directory=tmp_path)


@pytest.mark.parametrize("group", ["", "homogeneousCluster"])
def test_hosts_without_groups_all_train(group):
    hosts = {"SM_HOSTS": '["algo-2","algo-1"]', "SM_CURRENT_HOST": "algo-1"}
    cluster = of_sagemaker(**hosts, SM_CURRENT_INSTANCE_GROUP=group)
    assert cluster == Cluster((), ("algo-1", "algo-2"), "algo-1")
    groups = [{"instance_group_name": "homogeneousCluster", "hosts": ["algo-1"]}]
    alone = of_sagemaker({"hosts": ["algo-1"], "current_host": "algo-1", "instance_groups": groups})
    assert alone.training_hosts == ("algo-1",)


@pytest.mark.parametrize(
    ("config", "environment", "why"),
    [
        (None, {}, "no hosts: name them by --data-hosts"),
        (changed(current_host="algo-9"), {}, "this host, 'algo-9', is none of the run's"),
        (changed(hosts=["algo-1", "algo-2", "algo-3"]), {}, "algo-10 is not among the hosts"),
        (changed(hosts=[*CONFIG["hosts"], "algo-4"]), {}, "algo-4 is in no instance group"),
        (changed(instance_groups=[{"hosts": ["a"]}]), {}, "SM_RESOURCE_CONFIG is of the form"),
        (changed(instance_groups="none"), {}, "SM_RESOURCE_CONFIG is of the form"),
        (
            changed(
                instance_groups=[
                    *CONFIG["instance_groups"][:1],
                    {"instance_group_name": "x", "hosts": ["algo-10", "algo-2"]},
                ]
            ),
            {},
            "the instance group x is neither data_group nor dnn_group",
        ),
        (CONFIG, {"SM_CURRENT_INSTANCE_GROUP": "dnn_group"}, "algo-2 is of the group data_group"),
        (None, {"SM_RESOURCE_CONFIG": "{"}, "SM_RESOURCE_CONFIG is no JSON"),
        (None, {"SM_RESOURCE_CONFIG": "[]"}, "SM_RESOURCE_CONFIG is of the form"),
        (None, {"SM_HOSTS": "algo-1"}, "SM_HOSTS is no JSON"),
        (None, {"SM_HOSTS": '"algo-1"'}, "SM_HOSTS is of the form"),
        (
            None,
            {"SM_HOSTS": '["a"]', "SM_CURRENT_HOST": "a", "SM_CURRENT_INSTANCE_GROUP": "data_group"},
            "and of which are the others",
        ),
        (
            changed(
                hosts=["algo-2"],
                instance_groups=[{"instance_group_name": "data_group", "hosts": ["algo-2"]}],
            ),
            {},
            "no host trains",
        ),
    ],
)
def test_what_does_not_fit_is_refused(config, environment, why):
    with pytest.raises(ConfigError, match=why):
        of_sagemaker(config, **environment)


_names = st.sampled_from(["algo-1", "algo-2", "data_group", "dnn_group", ""]) | st.text(max_size=4)
_groups = st.fixed_dictionaries({"instance_group_name": _names, "hosts": st.lists(_names, max_size=3)})
_configs = st.fixed_dictionaries(
    {},
    optional={
        "hosts": st.lists(_names, max_size=4) | _names,
        "current_host": _names | st.none(),
        "current_group_name": _names | st.integers(),
        "instance_groups": st.lists(_groups | _names, max_size=3) | st.none(),
        "network_interface_name": _names | st.none(),
    },
)


@given(_configs | st.lists(_names), st.sampled_from(["SM_RESOURCE_CONFIG", "SM_HOSTS"]))
def test_whatever_sagemaker_says_is_a_cluster_or_an_error_of_ours(config, variable):
    with contextlib.suppress(ConfigError):
        found = of_sagemaker(**{variable: json.dumps(config)})
        assert found.current in found.hosts


def test_flags_keep_their_order():
    cluster = of_flags("d2, d1", "t2,t1", "t1")
    assert cluster.hosts == ("d2", "d1", "t2", "t1")
    assert (cluster.leader, cluster.node_rank) == ("d2", 1)
    assert of_flags("", "alone", "").current == "alone"


@pytest.mark.parametrize(
    ("data", "training", "current", "why"),
    [
        ("a", "b", "", "say which of the hosts this one is: --host"),
        ("a", "", "a", "no host trains"),
        ("a", "b,a", "a", "the host a is named twice"),
        ("a", "b", "c", "this host, 'c', is none of the run's: a, b"),
        ("a b", "c", "c", "a host is a name or an address; not 'a b'"),
        ("-x", "c", "c", "a host is a name or an address; not '-x'"),
    ],
)
def test_flags_that_do_not_fit_are_refused(data, training, current, why):
    with pytest.raises(ConfigError, match=why):
        of_flags(data, training, current)


@pytest.mark.parametrize(
    ("host", "is_here"), [("127.0.0.9", True), ("::1", True), ("algo-1", False), ("10.0.0.1", False)]
)
def test_only_loopback_is_this_machine(host, is_here):
    assert Cluster((), (host,), host).on_loopback is is_here


def test_the_toolkits_words_and_mapping_become_the_scripts_arguments(tmp_path):
    both = {"SM_USER_ARGS": '["--epochs","3","-b",16]', "SM_HPS": '{"other":1}'}
    assert script_arguments(both, tmp_path) == ["--epochs", "3", "-b", "16"]
    mapping = {"SM_HPS": json.dumps({"lr": 0.1, "epochs": 3, "b": "16", "flag": True, "none": None})}
    words = script_arguments(mapping, tmp_path)
    assert words == ["-b", "16", "--epochs", "3", "--flag", "True", "--lr", "0.1", "--none", ""]
    assert script_arguments({}, tmp_path) == []


def test_the_hyper_parameters_of_a_jobs_file(tmp_path):
    parameters = {
        "epochs": "3",
        "version": "1.10",
        "name": '"quoted by the SDK"',
        "broken": '"half',
        "flag": "true",
        "layers": '{"a": 1}',
        "sagemaker_program": "train.py",
        "_tuning_objective_metric": "loss",
    }
    (tmp_path / "hyperparameters.json").write_text(json.dumps(parameters))
    words = script_arguments({}, tmp_path)
    assert dict(zip(words[::2], words[1::2], strict=True)) == {
        "--broken": '"half',
        "--epochs": "3",
        "--flag": "True",
        "--layers": '{"a": 1}',
        "--name": "quoted by the SDK",
        "--version": "1.10",
    }


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"SM_USER_ARGS": "--epochs 3"}, "SM_USER_ARGS is no JSON"),
        ({"SM_USER_ARGS": "{}"}, "SM_USER_ARGS is of the form"),
        ({"SM_HPS": "[]"}, "SM_HPS is of the form"),
        ({"SM_HPS": '{"name": "a\\u0000b"}'}, "SM_HPS: a hyper-parameter has a NUL"),
    ],
)
def test_hyper_parameters_of_another_form_are_refused(tmp_path, environment, why):
    with pytest.raises(ConfigError, match=why):
        script_arguments(environment, tmp_path)


def answer(monkeypatch, *answers):
    """What names resolve to, one answer after the other; the last stays."""
    left = list(answers)

    def resolve(host, port, *_, **__):
        found = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(found, Exception):
            raise found
        return [(socket.AF_INET6, 1, 6, "", ("::9", 0)), (socket.AF_INET, 1, 6, "", (found, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def test_ipv4_is_preferred_and_a_name_is_waited_for(monkeypatch):
    assert asyncio.run(address_of("::1", 0.0)) == "::1"
    answer(monkeypatch, socket.gaierror("not yet"), "10.1.2.3")
    assert asyncio.run(address_of("algo-1", 5.0)) == "10.1.2.3"


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_a_name_that_is_none_or_that_nobody_knows_ends_the_run(monkeypatch, host):
    with pytest.raises(RunFailedError, match="is no name of a host") as failed:
        asyncio.run(address_of(host, 3600.0))
    assert failed.value.status.code == EXIT_WRONG_SETTINGS
    answer(monkeypatch, socket.gaierror("unknown"))
    with pytest.raises(RunFailedError, match="the host name algo-1 cannot be resolved within 0 s") as failed:
        asyncio.run(address_of("algo-1", 0.0))
    assert failed.value.status.code == EXIT_NOT_READY


def test_a_host_that_only_itself_can_reach_is_refused(monkeypatch):
    answer(monkeypatch, "127.0.1.1")
    cluster = Cluster(("node-1",), ("node-2",), "node-1")
    settings = LaunchSettings(insecure=True, coordinator="node-9:50051", start_wait_s=1.0)
    status = asyncio.run(run_host(cluster, settings, {}, ["true"]))
    assert status.code == EXIT_WRONG_SETTINGS
    assert "node-1 is 127.0.1.1 on node-1 itself" in status.reason
