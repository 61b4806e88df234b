"""Who is here is read from flags, SageMaker's variables or its file, and refused where it does not fit."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.launcher.cluster import Cluster, cluster_of_flags, cluster_of_sagemaker
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


def of_sagemaker(config=None, directory=None, **environment):
    if config is not None:
        environment["SM_RESOURCE_CONFIG"] = json.dumps(config)
    return cluster_of_sagemaker(environment, directory)


def test_the_toolkits_variables(tmp_path):
    cluster = of_sagemaker(
        CONFIG,
        tmp_path,
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


def test_neither_variables_nor_file_is_no_cluster(tmp_path):
    assert of_sagemaker(directory=tmp_path) is None


@pytest.mark.parametrize("group", ["", "homogeneousCluster"])
def test_hosts_without_groups_all_train(tmp_path, group):
    cluster = of_sagemaker(
        directory=tmp_path,
        SM_HOSTS='["algo-2","algo-1"]',
        SM_CURRENT_HOST="algo-1",
        SM_CURRENT_INSTANCE_GROUP=group,
    )
    assert cluster == Cluster((), ("algo-1", "algo-2"), "algo-1")
    assert cluster.leads


def test_a_single_group_of_another_name_trains(tmp_path):
    config = {
        "hosts": ["algo-1"],
        "current_host": "algo-1",
        "current_group_name": "homogeneousCluster",
        "instance_groups": [{"instance_group_name": "homogeneousCluster", "hosts": ["algo-1"]}],
    }
    assert of_sagemaker(config, tmp_path).training_hosts == ("algo-1",)


def changed(**changes):
    return {**CONFIG, **changes}


@pytest.mark.parametrize(
    ("config", "environment", "told"),
    [
        (changed(current_host="algo-9"), {}, "this host, 'algo-9', is none of the run's"),
        (changed(hosts=["algo-1", "algo-2", "algo-3"]), {}, "algo-10 is not among the hosts"),
        (changed(hosts=[*CONFIG["hosts"], "algo-4"]), {}, "algo-4 is in no instance group"),
        (changed(instance_groups=[{"hosts": ["a"]}]), {}, "an instance group has a name and hosts"),
        (changed(instance_groups="none"), {}, "an instance group has a name and hosts"),
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
        (None, {"SM_HOSTS": '"algo-1"'}, "SM_HOSTS is a JSON list"),
        (
            None,
            {
                "SM_HOSTS": '["algo-1"]',
                "SM_CURRENT_HOST": "algo-1",
                "SM_CURRENT_INSTANCE_GROUP": "data_group",
            },
            "which hosts the others are is not told",
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
def test_what_does_not_fit_is_refused(tmp_path, config, environment, told):
    with pytest.raises(ConfigError, match=told):
        of_sagemaker(config, tmp_path, **environment)


def test_a_file_that_is_no_json_is_refused_by_name(tmp_path):
    (tmp_path / "resourceconfig.json").write_text("{")
    with pytest.raises(ConfigError, match="resourceconfig.json is no JSON"):
        of_sagemaker(directory=tmp_path)


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
def test_whatever_is_told_is_a_cluster_or_an_error_of_ours(config, variable):
    with contextlib.suppress(ConfigError):
        found = cluster_of_sagemaker({variable: json.dumps(config)}, Path("/nonexistent"))
        assert found is None or found.current in found.hosts


def test_flags_keep_their_order():
    cluster = cluster_of_flags("d2, d1", "t2,t1", "t1")
    assert cluster.hosts == ("d2", "d1", "t2", "t1")
    assert (cluster.leader, cluster.node_rank) == ("d2", 1)
    assert cluster_of_flags("", "alone", "").current == "alone"


@pytest.mark.parametrize(
    ("data", "training", "current", "told"),
    [
        ("a", "b", "", "say which of the hosts this one is: --host"),
        ("a", "", "a", "no host trains"),
        ("a", "b,a", "a", "the host a is named twice"),
        ("a", "b", "c", "this host, 'c', is none of the run's: a, b"),
        ("a b", "c", "c", "a host is a name or an address; not 'a b'"),
        ("-x", "c", "c", "a host is a name or an address; not '-x'"),
    ],
)
def test_flags_that_do_not_fit_are_refused(data, training, current, told):
    with pytest.raises(ConfigError, match=told):
        cluster_of_flags(data, training, current)


@pytest.mark.parametrize(
    ("host", "is_here"), [("127.0.0.9", True), ("::1", True), ("algo-1", False), ("10.0.0.1", False)]
)
def test_only_loopback_is_this_machine(host, is_here):
    assert Cluster((), (host,), host).on_loopback is is_here
