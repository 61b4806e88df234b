"""The Ray executor on a real cluster of several nodes: it runs the real function, and tells every way to fail
from the others.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal

import pytest

from superdl.coordinator.executors import (
    ConnectionLostError,
    ExecutorError,
    FunctionCrashedError,
    FunctionRaisedError,
    FunctionTimedOutError,
    ThrottledError,
)
from tests.coordinator.executors.asking import TIMEOUT_S, ask
from tests.coordinator.executors.processes import alive, until
from tests.coordinator.executors.ray_running import answers, connected
from tests.fixtures.node_function import ANSWERS
from tests.fixtures.ray_cluster import RayCluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster():
    """A node of two CPUs, and one with a GPU."""
    pytest.importorskip("ray", reason="Ray is not installed: make test-full installs it")
    running = RayCluster()
    running.add(cpus=2)
    running.add(cpus=3, gpus=1)
    yield running
    running.close()


def test_each_way_to_fail_is_told_and_the_next_request_is_answered(cluster, tmp_path):
    async def failure(executor, does, kind, words, timeout_s=TIMEOUT_S):
        with pytest.raises(kind) as caught:
            await executor.invoke(ask(does), timeout_s=timeout_s)
        assert type(caught.value) is kind
        assert re.search(words, str(caught.value)), caught.value
        assert re.match(r".+ \(127\.0\.0\.\d+\): ", str(caught.value)), "the node is named"
        assert await answers(executor)
        return caught.value

    async def main():
        async with connected(cluster) as executor:
            await failure(executor, "raise:no luck", FunctionRaisedError, "raised ValueError: no luck")
            await failure(executor, "not-json", FunctionRaisedError, "TypeError: Object of type object")
            await failure(executor, "for-another", FunctionRaisedError, "answered for 'another'")
            await failure(executor, "kill", FunctionCrashedError, "WorkerCrashedError")
            await failure(executor, "exit", FunctionCrashedError, "WorkerCrashedError")
            await failure(executor, "system-exit", FunctionCrashedError, "WorkerCrashedError")
            for does in ("hang", "hang-in-c"):
                told = tmp_path / does
                error = await failure(executor, f"{does}:{told}", FunctionTimedOutError, "within 2.0 s", 2.0)
                assert error.ran_s >= 2.0
                pid = int(told.read_text())
                await until(lambda pid=pid: not alive(pid))

    asyncio.run(main())


def test_requests_run_at_the_same_time_and_the_rest_wait_their_turn(cluster, tmp_path):
    async def main():
        async with connected(cluster) as executor:
            held = [
                asyncio.create_task(executor.invoke(ask(f"hang:{tmp_path / str(n)}"), timeout_s=TIMEOUT_S))
                for n in range(2)
            ]
            await until(lambda: all((tmp_path / str(n)).exists() for n in range(2)))
            with pytest.raises(ThrottledError, match="none of 2 places on 1 nodes"):
                await executor.invoke(ask(), timeout_s=0.1)
            waiting = asyncio.create_task(answers(executor))
            await asyncio.sleep(0)
            held[0].cancel()  # whoever waits no longer has the function ended
            assert await waiting
            os.kill(int((tmp_path / "1").read_text()), signal.SIGKILL)
            with pytest.raises(FunctionCrashedError):
                await held[1]
            assert held[0].cancelled()
            await until(lambda: not alive(int((tmp_path / "0").read_text())))

    asyncio.run(main())


def test_cpus_that_another_job_has_are_no_time_of_the_function(cluster, tmp_path):
    """Two drivers are two jobs of the cluster: the one has all CPUs, the other's requests cannot begin."""

    async def main():
        async with connected(cluster) as ours, connected(cluster) as theirs:
            await until(lambda: ours.scaling.capacity == theirs.scaling.capacity == 2)
            held = [
                asyncio.create_task(theirs.invoke(ask(f"hang:{tmp_path / str(n)}"), timeout_s=TIMEOUT_S))
                for n in range(2)
            ]
            await until(lambda: all((tmp_path / str(n)).exists() for n in range(2)))
            with pytest.raises(ThrottledError, match="not begun within 1 s: other jobs have its CPUs"):
                await ours.invoke(ask(), timeout_s=1.0)
            assert ours.scaling.capacity == 1
            waiting = asyncio.create_task(answers(ours))
            held[0].cancel()
            assert await waiting
            held[1].cancel()
            for _ in range(2):
                assert await answers(ours)
            assert ours.scaling.capacity == 2

    asyncio.run(main())


def test_a_driver_that_dies_fails_its_calls_and_another_takes_its_place(cluster, tmp_path):
    async def main():
        async with connected(cluster) as executor:
            fingerprint, first = executor.fingerprint, executor.driver_pid
            held = asyncio.create_task(executor.invoke(ask(f"hang:{tmp_path / 'pid'}"), timeout_s=TIMEOUT_S))
            await until((tmp_path / "pid").exists)
            os.kill(first, signal.SIGKILL)
            with pytest.raises(ConnectionLostError, match="driver ended: killed by SIGKILL") as caught:
                await held
            assert caught.value.ran_s > 0
            with pytest.raises(ExecutorError, match="driver .*SIGKILL|driver has ended"):
                await executor.invoke(ask(), timeout_s=TIMEOUT_S)
            await until(lambda: executor.driver_pid not in {first, 0} and executor.scaling.capacity == 2)
            assert executor.fingerprint == fingerprint
            assert await answers(executor)
            await until(lambda: not alive(int((tmp_path / "pid").read_text())))

    asyncio.run(main())


def test_nodes_that_are_not_fit_are_left_out_with_the_remedy(cluster, tmp_path, caplog):
    (tmp_path / "superdl").mkdir()
    (tmp_path / "superdl" / "__init__.py").write_text("raise ImportError('an old one')")
    nodes = [
        cluster.add(cpus=1, environment={ANSWERS: "golden=" + "0" * 32}),
        cluster.add(cpus=1, environment={ANSWERS: "function_version=9.9.9"}),
        cluster.add(cpus=1, environment={"PYTHONPATH": str(tmp_path)}),
    ]

    async def main():
        async with connected(cluster) as executor:
            said = (
                "decoder has the fingerprint 0{32}, the others' .*: install the same",
                r"SUPER 9\.9\.9 is installed there, the coordinator is .*: install",
                "an old one",
            )
            await until(lambda: all(re.search(words, caplog.text) for words in said))
            assert executor.scaling.capacity == 2
            for _ in range(4):
                assert await answers(executor)

    asyncio.run(main())
    for node in nodes:
        cluster.kill(node)
