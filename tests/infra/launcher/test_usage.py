"""Each host's launcher tells what its processes use, and rank 0's report shows them host by host."""

from __future__ import annotations

import json

import pytest

from infra.launcher.usage import launched_group
from tests.infra.launcher.hosts import LOCAL

TRAINING = ["-m", "superdl.main", "run", "digits"]
RANK = ["python", "-u", *TRAINING]


@pytest.mark.parametrize(
    ("command", "parent", "group"),
    [
        (["python", "-I", "/x/guard.py", "python", "/x/training.py", *TRAINING], [], "supervisor"),
        (["python", "-P", "/x/training.py", "--nnodes", "1", "--", *TRAINING], [], "supervisor"),
        (RANK, ["python", "-P", "/x/training.py", "--", *TRAINING], "trainer"),
        (RANK, RANK, "workers"),
        (["python", "-c", "from multiprocessing.spawn import spawn_main"], RANK, "workers"),
        (["python", "-P", "-m", "superdl.coordinator", "--listen", "a:1"], [], "coordinator"),
        (["python", "-P", "-m", "superdl.coordinator.executors.worker", "f"], [], "functions"),
        (["ray::decode"], [], "functions"),
        (["/usr/bin/valkey-server", "/x/cache.conf"], [], "cache"),
        (["raylet", "--node_ip_address=a"], [], "other"),
        ([], [], "other"),
    ],
)
def test_processes_below_a_launcher_have_groups(command, parent, group):
    assert launched_group(command, parent, "python", TRAINING) == group


@pytest.mark.slow
def test_a_report_has_every_host_of_the_run(hosts):
    run = ["-m", "superdl.main", "run", "digits", "--no-page", "--set", "training.threads=1"]
    options = ("--data-hosts=1", "--executor=local", "--cache-bytes=128mb")
    hosts.start_local(*run, options=options)
    assert hosts.codes() == {LOCAL: 0}, hosts.said(LOCAL)
    (report,) = (hosts.directory / "runs").glob("*/report.json")
    data, training = json.loads(report.read_text())["hosts"]
    assert [data["host"], training["host"]] == ["127.0.0.2", "127.0.0.3"]
    assert {"functions", "coordinator", "cache"} <= data["cpu_s"].keys()
    assert training["cpu_s"]["trainer"] > 0
    assert "CPU of 127.0.0.2: " in hosts.said(LOCAL)
