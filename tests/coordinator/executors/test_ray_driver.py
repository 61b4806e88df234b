"""The driver's process without a cluster: why there is none is told, one that stands still is replaced, and
nodes agree. What takes Ray's place here does nothing, fails, or acts by itself.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import re
import signal

import pytest

from superdl.coordinator.executors import ExecutorContext, ExecutorError, ray_nodes
from superdl.coordinator.executors import ray_executor as ray_executor_module
from superdl.coordinator.executors.ray_executor import RayExecutor, RaySettings
from superdl.coordinator.executors.ray_nodes import DriverSettings, RayNodes
from superdl.coordinator.server.repeated_lines import RepeatedLines
from superdl.super_wire.errors import ConfigError
from tests.coordinator.executors.asking import TIMEOUT_S, ask
from tests.coordinator.executors.processes import alive, until
from tests.fixtures.ports import free_port

MISSING = "raise ModuleNotFoundError('No module named ray')"
DYING = """
def init(**options):
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""
MISMATCHED = """
def init(**options):
    raise RuntimeError("Version mismatch: The cluster was started with: Ray: 1.0")
"""
TELLING = """
def init(**options):
    import os
    known = ("SUPER_", "AWS_", "RAY_AUTH_TOKEN_")
    raise OSError("it has " + ",".join(name for name in os.environ if name.startswith(known)) + ";")
"""
SILENT = """
def init(**options):
    import threading
    threading.Event().wait()
"""
# One node, whose tasks run in the driver's own process.
ACTING = """
import sys, types

strategies = types.ModuleType("ray.util.scheduling_strategies")
strategies.NodeAffinitySchedulingStrategy = lambda *args, **options: None
util = types.ModuleType("ray.util")
util.get_node_ip_address = lambda: "127.0.0.1"
sys.modules["ray.util"] = util
sys.modules["ray.util.scheduling_strategies"] = strategies

def init(**options): pass
def shutdown(): pass
def nodes():
    return [{"NodeID": "a1", "Alive": True, "Resources": {"CPU": 2.0},
             "NodeManagerAddress": "127.0.0.1", "NodeManagerHostname": "here"}]
class Task:
    def __init__(self, run): self.run = run
    def options(self, **options): return self
    async def remote(self, *args):
        async def here(item): return item
        for item in self.run(*args): yield here(item)
def remote(**options): return Task
def cancel(generator, force): pass
"""


@pytest.fixture
def in_rays_place(tmp_path, monkeypatch):
    """Makes ``import ray`` find this code in processes that are started from now on."""

    def put(code):
        (tmp_path / "ray.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    return put


def executor_at(address="auto"):
    return RayExecutor(RaySettings(address), ExecutorContext(""))


async def refusal(address="auto"):
    executor = executor_at(address)
    with pytest.raises(ExecutorError) as caught:
        await executor.start()
    with pytest.raises(ExecutorError, match="no driver"):
        await executor.invoke(ask(), timeout_s=TIMEOUT_S)
    assert (executor.driver_pid, executor.scaling.capacity) == (0, 0)
    return caught.value


@pytest.mark.parametrize(
    ("code", "wrong_settings", "words"),
    [
        (MISSING, True, r"pip install 'superdl\[ray\]'"),
        (MISMATCHED, True, "Version mismatch"),
        (DYING, False, "ray_address=auto .*its driver ended: killed by SIGKILL.*ray start"),
        (SILENT, False, "no answer within 1 s"),
        (TELLING, False, "it has RAY_AUTH_TOKEN_PATH;"),  # and no credentials of ours
    ],
)
def test_why_there_is_no_driver_is_told(in_rays_place, monkeypatch, code, wrong_settings, words):
    in_rays_place(code)
    for name in ("SUPER_CACHE_PASSWORD", "SUPER_TOKEN", "AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "x")
    if code is SILENT:
        monkeypatch.setattr(ray_executor_module, "_SILENCE_S", 1.0)
    error = asyncio.run(refusal())
    assert error.wrong_settings is wrong_settings
    assert re.search(words, str(error)), error


def test_an_address_where_nobody_listens_is_told_at_once(in_rays_place):
    in_rays_place(SILENT)
    port = free_port()
    error = asyncio.run(refusal(f"127.0.0.1:{port}"))
    assert f"ray_address=127.0.0.1:{port} (ConnectionRefusedError" in str(error)


@pytest.mark.parametrize("address", ["ray://head:10001", "local", "", "http://head:8265"])
def test_an_address_that_no_driver_can_join_is_refused(address):
    with pytest.raises(ConfigError, match="ray start --address"):
        executor_at(address)


@pytest.mark.parametrize("shared", [True, False])
def test_nodes_see_directories_where_that_is_said(shared):
    settings = RaySettings("auto", ray_shared_files=shared)
    assert RayExecutor(settings, ExecutorContext("")).remote is not shared


def test_one_that_stands_still_is_killed_and_another_takes_its_place(in_rays_place, monkeypatch):
    in_rays_place(ACTING)
    monkeypatch.setattr(ray_executor_module, "_SILENCE_S", 3.0)
    monkeypatch.setattr(ray_executor_module, "_FIRST_PAUSE_S", 0.01)

    async def main():
        executor = executor_at()
        await executor.start()
        first = executor.driver_pid
        os.kill(first, signal.SIGSTOP)
        with pytest.raises(ExecutorError, match="no answer within 3 s"):
            await executor.invoke(ask(), timeout_s=TIMEOUT_S)
        await until(lambda: not alive(first))
        await until(lambda: executor.driver_pid not in {first, 0} and executor.scaling.capacity == 2)
        result = await executor.invoke(ask(), timeout_s=TIMEOUT_S)
        await executor.close()
        return result

    assert len(asyncio.run(main()).outcomes) == 1


GOOD, ODD = "a" * 32, "b" * 32


class Cluster:
    """Nodes that answer a warm event with what ``says`` holds for them at the time: a digest, or an error."""

    def __init__(self, says, **settings):
        self.says = says
        self.states = []
        made = DriverSettings("auto", **{"nodes": "cpu", "cpus": 1.0, "function": "", "cache": ""} | settings)
        self.nodes = RayNodes(made, self.warm, self.states.append)

    async def warm(self, node):
        said = self.says[node.node_id]
        while said is None:
            await asyncio.sleep(0)
            said = self.says[node.node_id]
        if isinstance(said, Exception):
            raise said
        return said

    def update(self, **resources):
        self.nodes.update(
            [
                {
                    "NodeID": name,
                    "Alive": True,
                    "Resources": has if isinstance(has, dict) else {"CPU": float(has)},
                    "NodeManagerAddress": "10.0.0.1",
                    "NodeManagerHostname": name,
                }
                for name, has in resources.items()
            ],
            "10.0.0.1",
        )

    async def until(self, **wanted):
        async with asyncio.timeout(TIMEOUT_S):
            while not wanted.items() <= self.nodes.state.items():  # noqa: ASYNC110  # nothing sets an event
                await asyncio.sleep(0)

    async def take(self, count):
        loop = asyncio.get_running_loop()
        return [await self.nodes.take(loop.time()) for _ in range(count)]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(ray_nodes, "_FIRST_PAUSE_S", 0.001)


def test_nodes_agree_as_most_places_do_and_others_are_left_out_until_they_do_too(caplog):
    async def main():
        cluster = Cluster({"a": GOOD, "b": ODD, "c": GOOD, "d": ODD, "e": ExecutorError("no SUPER there")})
        cluster.update(a=2, b=1, c=4, e=1)
        await cluster.until(settled=True, fingerprint=GOOD, capacity=6)
        cluster.update(a=2, b=1, c=4, d=8, e=1)  # what comes later is held to it, however many it has
        cluster.says["e"] = GOOD
        await cluster.until(capacity=7)
        assert f"a node is left out: d (10.0.0.1): its decoder has the fingerprint {ODD}" in caplog.text
        assert caplog.text.count("a node is left out: e (10.0.0.1): no SUPER there") == 1

    asyncio.run(main())


def test_losing_all_nodes_is_three_lines_at_most(caplog):
    stream = io.StringIO()

    async def main():
        names = [f"worker-{chr(97 + number % 26)}{chr(97 + number // 26)}" for number in range(32)]
        cluster = Cluster(dict.fromkeys(names, GOOD))
        cluster.update(**dict.fromkeys(names, 4))
        await cluster.until(capacity=128)
        handler = RepeatedLines(stream)
        logger = logging.getLogger(ray_executor_module.__name__)
        logger.addHandler(handler)
        for node in await cluster.take(32):
            cluster.nodes.lost(node, "its process ended")
        cluster.update()
        for record in list(caplog.records):  # as the driver tells them to the coordinator
            RayExecutor._take(None, {"log": record.getMessage()})
        logger.removeHandler(handler)

    asyncio.run(main())
    assert "Ray: nodes are gone: worker-" in stream.getvalue()
    assert "and 29 more" in stream.getvalue()
    assert len(stream.getvalue().splitlines()) <= 3


def test_one_that_hangs_or_goes_holds_nobody_up_and_where_all_fail_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(ray_nodes, "_AGREE_S", 0.01)

    async def main():
        cluster = Cluster({"a": GOOD, "b": None})
        cluster.update(a=1, b=1)
        await cluster.until(capacity=1, fingerprint=GOOD)
        cluster.says["b"] = GOOD
        await cluster.until(capacity=2)
        monkeypatch.setattr(ray_nodes, "_AGREE_S", TIMEOUT_S)
        cluster = Cluster({"a": GOOD, "b": None})
        cluster.update(a=1, b=1)
        await asyncio.sleep(0.01)
        assert not cluster.nodes.state["settled"]
        cluster.update(a=1)
        await cluster.until(settled=True, capacity=1)
        cluster = Cluster({"a": ExecutorError("no SUPER there")})
        cluster.update(a=1)
        await cluster.until(settled=True, capacity=0)
        assert "is fit: a (10.0.0.1): no SUPER there" in cluster.nodes.state["why"]
        cluster.update()
        assert cluster.nodes.state["why"] == "the Ray cluster at auto has no nodes"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("has", "settings", "capacity"),
    [
        (4, {}, 4),
        (4, {"cpus": 1.5}, 2),
        (0.3, {"cpus": 0.1}, 3),
        (0.9, {}, 0),
        ({"CPU": 8.0, "GPU": 1.0}, {}, 0),
        ({"CPU": 8.0, "accelerator_type:A100": 1.0}, {"nodes": "all"}, 8),
    ],
)
def test_a_node_has_a_place_for_each_function_that_fits_into_its_cpus(has, settings, capacity):
    async def main():
        cluster = Cluster({"a": GOOD}, **settings)
        cluster.update(a=has)
        await cluster.until(settled=True, capacity=capacity)
        assert ("none of the 1 nodes" in cluster.nodes.state["why"]) == (not capacity)

    asyncio.run(main())


def test_places_go_where_most_is_free_and_come_back_to_who_waits():
    async def main():
        cluster = Cluster({"a": GOOD, "b": GOOD})
        cluster.update(a=4, b=2)
        await cluster.until(capacity=6)
        taken = await cluster.take(6)
        assert [node.node_id for node in taken].count("a") == 4
        assert {node.node_id for node in taken[:2]} == {"a", "b"}
        with pytest.raises(ExecutorError, match="none of 6 places on 2 nodes"):
            await cluster.take(1)
        waiting = asyncio.create_task(cluster.nodes.take(asyncio.get_running_loop().time() + TIMEOUT_S))
        await asyncio.sleep(0)
        cluster.nodes.give_back(taken[0])
        assert await waiting is taken[0]
        for node in taken:
            cluster.nodes.give_back(node)
        crowded = taken[0]
        crowded.is_crowded = True
        others = await cluster.take(len(taken) - crowded.slots)
        assert crowded not in others
        assert await cluster.take(1) == [crowded]
        cluster.nodes.lost(crowded, "it died")
        await cluster.until(capacity=3)  # it passed again, and is crowded still
        cluster.update()
        with pytest.raises(ExecutorError, match="no node of the Ray cluster can be called now"):
            await cluster.take(1)

    asyncio.run(main())
