"""Whole runs whose functions run on Ray, which the launchers start on every host that brings CPUs."""

from __future__ import annotations

import importlib.util
import signal

import pytest

from infra.launcher import EXIT_SERVICE_FAILED
from tests.infra.launcher.hosts import DATA, LEADER
from tests.infra.launcher.test_training_run import begin, check_every_image_once

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'superdl[ray]'"
    ),
]

RAY = ("--executor=ray", "--cache-bytes=128mb", "--data-cpus=1")
FILES = {"SUPER_RAY_SHARED_FILES": "1"}


def test_functions_run_on_data_hosts_and_on_trainers_spare_cpus(hosts, images):
    hosts.data_hosts = (LEADER, DATA)
    begin(hosts, images, "--epochs", "2", options=(*RAY, "--trainer-cpus=1"), environment=FILES)
    assert set(hosts.codes().values()) == {0}, hosts.all_said()
    check_every_image_once(hosts, images)
    for host in (DATA, *hosts.training_hosts):
        assert "Ray's node" in hosts.said(host)
    hosts.until_nothing_is_left()


def test_a_data_host_that_is_lost_costs_no_image(hosts, images):
    hosts.data_hosts = (LEADER, DATA)
    begin(hosts, images, "--epochs", "8", options=(*RAY, "--lost-data-hosts=1"), environment=FILES)
    hosts.until((hosts.directory / "begun-0").exists, "the first batch of rank 0")
    hosts.signal(DATA, signal.SIGKILL)
    codes = hosts.codes()
    assert codes.pop(DATA) == -signal.SIGKILL
    assert set(codes.values()) == {0}, hosts.all_said()
    assert "the run goes on without a data host" in hosts.said(LEADER)
    check_every_image_once(hosts, images, epochs=8)
    hosts.until_nothing_is_left()


def raylet_of(hosts, host):
    return next(
        p for p in hosts.left() if p.name() == "raylet" and f"--node_ip_address={host}" in p.cmdline()
    )


def test_a_node_that_dies_is_started_again(hosts, images):
    hosts.data_hosts = (LEADER, DATA)
    begin(hosts, images, "--epochs", "8", options=RAY, environment=FILES)
    hosts.until((hosts.directory / "begun-0").exists, "the first batch of rank 0")
    raylet_of(hosts, DATA).kill()
    hosts.until_said(DATA, "Ray's node ended with exit code .*it is started again")
    assert set(hosts.codes().values()) == {0}, hosts.all_said()
    check_every_image_once(hosts, images, epochs=8)
    hosts.until_nothing_is_left()


def test_without_its_head_the_run_ends(hosts, images):
    begin(hosts, images, "--forever", options=RAY, environment=FILES)
    hosts.until((hosts.directory / "begun-0").exists, "the first batch of rank 0")
    next(process for process in hosts.left() if process.name() == "gcs_server").kill()
    assert set(hosts.codes().values()) == {EXIT_SERVICE_FAILED}, hosts.all_said()
    assert "Ray's head ended with exit code" in hosts.reason(LEADER)
    hosts.until_nothing_is_left()
