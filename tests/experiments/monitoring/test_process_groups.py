"""Processes sorted into groups, and their CPU time, which stays counted when they end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from superdl.experiments.monitoring.readings import ProcessGroups, group_of

TRAINER = ["/v/bin/python", "/v/bin/superdl", "run", "digits"]
BURN = "import time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True)\ninput()"


@pytest.mark.parametrize(
    ("name", "command", "group"),
    [
        ("superdl", TRAINER, "workers"),
        ("python", ["python", "-c", "from multiprocessing.forkserver import main; main(5)"], "workers"),
        ("python", ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"], "workers"),
        ("python", ["python", "-c", "from multiprocessing.resource_tracker import main;main(5)"], "other"),
        (
            "python",
            ["python", "-P", "-m", "superdl.sampler.embedded.supervisor", "/run/x", "5", "{}"],
            "supervisor",
        ),
        ("python", ["python", "-P", "-m", "superdl.coordinator", "--listen", "unix:/x"], "coordinator"),
        ("python", ["python", "-m", "superdl.coordinator.executors.ray_driver"], "coordinator"),
        ("python", ["python", "-P", "-m", "superdl.coordinator.executors.worker", "a:b"], "functions"),
        ("valkey-server", ["/v/bin/valkey-server unixsocket:/x"], "cache"),
        ("x", ["/usr/bin/redis-server", "x.conf"], "cache"),
        ("git", ["git", "-m"], "other"),
        ("gone", [], "other"),
    ],
)
def test_the_group_of_a_process(name, command, group):
    assert group_of(name, command, TRAINER) == group


def test_cpu_time_is_counted_from_the_begin_and_stays_when_a_process_ends():
    groups = ProcessGroups()
    before = groups.read()
    assert before["trainer"].cpu_s < 1.0, "what the tests did before is not in it"
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"done\n"
        running = groups.read()["other"]
        assert running.processes >= 1
        assert running.cpu_s >= 0.19  # the system counts by ticks of 10 ms
        assert running.rss_bytes > 1_000_000
        process.communicate(b"\n")
    ended = groups.read()
    assert ended["other"].cpu_s >= running.cpu_s
    assert ended["other"].processes == running.processes - 1
    assert ended["trainer"].processes == 1
    assert set(ended) == {*before, "other"}, "what is not there is absent, not zero"


def test_pss_is_read_when_its_cost_allows():
    groups = ProcessGroups()
    pss = groups.read()["trainer"].pss_bytes
    if not sys.platform.startswith("linux"):
        assert pss is None
        return
    assert pss is not None
    assert 1_000_000 < pss <= groups.read()["trainer"].rss_bytes
    groups._pss_due_s = float("inf")
    assert groups.read()["trainer"].pss_bytes is None
