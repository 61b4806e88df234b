"""Whole runs whose functions run on Ray, which the launchers start on every host that brings CPUs."""

from __future__ import annotations

import importlib.util
import signal

import pytest

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
