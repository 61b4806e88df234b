"""The Ray executor while its cluster changes: nodes come and go, the head node goes, and who is let in."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from superdl.coordinator.executors import ExecutorError, FunctionCrashedError, ThrottledError
from tests.coordinator.executors.asking import TIMEOUT_S, ask
from tests.coordinator.executors.processes import alive, until
from tests.coordinator.executors.ray_running import answers, connected
from tests.fixtures.ray_cluster import RayCluster

pytestmark = pytest.mark.slow


def test_capacity_follows_nodes_and_what_had_not_begun_goes_to_another(ray_cluster, tmp_path):
    """The other job holds the doomed node's one CPU, so that our request is there and has not begun."""
    doomed = ray_cluster.add(cpus=1)

    async def main():
        async with connected(ray_cluster) as ours, connected(ray_cluster) as theirs:
            held = asyncio.create_task(theirs.invoke(ask(f"hang:{tmp_path / 'pid'}"), timeout_s=TIMEOUT_S))
            await until((tmp_path / "pid").exists)
            waiting = asyncio.create_task(answers_as_soon_as_there_is_room(ours))
            ray_cluster.add(cpus=2)
            await until(lambda: ours.scaling.capacity == theirs.scaling.capacity == 3)
            ray_cluster.kill(doomed)
            with pytest.raises(FunctionCrashedError, match="Died|died"):
                await held
            assert await waiting
            assert theirs.scaling.capacity == 2
            await until(lambda: ours.scaling.capacity == 2)
            assert await answers(ours)
            assert await answers(theirs)

    asyncio.run(main())


async def answers_as_soon_as_there_is_room(executor) -> bool:
    """As a coordinator asks: where other jobs hold all CPUs for long, as on a slow machine, once more."""
    while True:
        with contextlib.suppress(ThrottledError):
            return await answers(executor)


def test_without_its_cluster_it_fails_at_once_and_survives(ray_cluster, tmp_path):
    ray_cluster.add(cpus=1)

    async def main():
        async with connected(ray_cluster) as executor:
            held = asyncio.create_task(executor.invoke(ask(f"hang:{tmp_path / 'pid'}"), timeout_s=TIMEOUT_S))
            await until((tmp_path / "pid").exists)
            await asyncio.to_thread(ray_cluster.close)
            with pytest.raises(ExecutorError):
                await held
            await until(lambda: executor.scaling.capacity == 0)
            with pytest.raises(ExecutorError, match="driver|node"):
                await executor.invoke(ask(), timeout_s=TIMEOUT_S)
            await until(lambda: not alive(int((tmp_path / "pid").read_text())))

    asyncio.run(main())


def test_a_cluster_that_wants_a_token_lets_in_who_has_it(monkeypatch, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: make test-full installs it")
    token = os.urandom(32).hex()
    cluster = RayCluster({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token})
    try:
        cluster.add(cpus=1)

        async def main():
            async with connected(cluster) as executor:
                assert await answers(executor)

        async def refused():
            async with connected(cluster, start=False) as executor:
                with pytest.raises(ExecutorError, match="no connection to the Ray cluster") as caught:
                    await executor.start()
                return str(caught.value)

        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
        asyncio.run(main())
        monkeypatch.setenv("RAY_AUTH_TOKEN", os.urandom(32).hex())
        assert "RAY_AUTH_TOKEN" in asyncio.run(refused())
    finally:
        cluster.close()


def test_a_cluster_that_wants_tls_lets_in_who_has_a_certificate(monkeypatch, certificates):
    pytest.importorskip("ray", reason="Ray is not installed: make test-full installs it")
    variables = {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": certificates.node.cert_file,
        "RAY_TLS_SERVER_KEY": certificates.node.key_file,
        "RAY_TLS_CA_CERT": certificates.ca_file,
    }
    cluster = RayCluster(variables)
    try:
        cluster.add(cpus=1)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

        async def main():
            async with connected(cluster) as executor:
                assert await answers(executor)

        asyncio.run(main())
    finally:
        cluster.close()
