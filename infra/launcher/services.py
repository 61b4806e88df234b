"""What the leader starts, in this order: cache, Ray's head, and, once all hosts are here, the coordinator.

How each is started is told in :mod:`infra.launcher.cache_service`, :mod:`infra.launcher.ray_service` and
:mod:`infra.launcher.coordinator_service`; what other hosts start, in :mod:`infra.launcher.member`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from infra.launcher.addresses import with_port
from infra.launcher.cache_service import cache_address, cache_service
from infra.launcher.coordinator_service import coordinator_service
from infra.launcher.processes import Child, Service
from infra.launcher.ray_auth import ray_environment
from infra.launcher.ray_service import ray_head
from infra.launcher.settings import SPARE
from infra.launcher.training import ranks_here
from infra.launcher.verdicts import EXIT_NOT_READY, RunFailedError
from superdl.sampler.embedded.host import usable_cores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infra.launcher.cluster import Cluster
    from infra.launcher.settings import LaunchSettings

__all__ = ["Services", "function_cpus"]

_SERVICE_WAIT_S = 60.0
_END_WAIT_S = 10.0
_NODES_SCRIPT = Path(__file__).with_name("ray_nodes.py")


def function_cpus(cluster: Cluster, settings: LaunchSettings, environment: Mapping[str, str]) -> int:
    """How many CPUs of this host are for functions."""
    cores = usable_cores()
    if not cluster.trains:
        return settings.data_cpus or cores
    spare = max(1, cores - ranks_here(settings, environment))
    if settings.trainer_cpus == SPARE or (not cluster.data_hosts and not settings.trainer_cpus):
        return spare  # of a run without data hosts the trainers are all there is
    return settings.trainer_cpus


class Services:
    """The services of a run, on its leader.

    Args:
        cluster: who is here.
        settings: how the run is launched.
        environment: the services' own.
        directory: a private one.
        address: the leader's.
        run_id: the run's.
        ray_token: what Ray asks for; see :mod:`infra.launcher.ray_auth`.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: LaunchSettings,
        environment: Mapping[str, str],
        directory: Path,
        *,
        address: str,
        run_id: str,
        ray_token: str,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._environment = environment
        self._ray_environment = ray_environment(environment, ray_token) if settings.own_ray else environment
        self._directory = directory
        self._address = address
        self._run_id = run_id
        self._running: list[Service] = []
        self._keeping: list[asyncio.Task[None]] = []
        self._died = asyncio.Event()
        self._wait_s = min(_SERVICE_WAIT_S, settings.start_wait_s)
        self.cache = settings.cache
        self.ray = with_port(address, settings.ray_port) if settings.own_ray else ""
        self.coordinator = settings.coordinator

    async def start_first(self) -> None:
        """What the other hosts need before they can join: Ray's head; and the cache.

        Raises:
            RunFailedError: one does not start.
            ConfigError: one cannot be started with these settings.
        """
        settings = self._settings
        if settings.coordinator:
            return
        if not settings.cache:
            host = self._cluster.leader
            self.cache = cache_address(host, settings.cache_port, self._environment)
            await self._start(
                cache_service(
                    self.cache,
                    self._address,
                    self._environment,
                    self._directory,
                    cache_bytes=settings.cache_bytes,
                    wait_s=self._wait_s,
                )
            )
        if self.ray:
            cpus = function_cpus(self._cluster, settings, self._environment)
            await self._start(
                ray_head(
                    self._address,
                    settings.ray_port,
                    cpus,
                    self._ray_environment,
                    self._directory,
                    wait_s=self._wait_s,
                )
            )

    async def start_rest(self, nodes: int) -> None:
        """The coordinator, once so many nodes of Ray are there.

        Raises:
            RunFailedError: it does not start, or they do not come.
        """
        settings = self._settings
        if settings.coordinator:
            return
        if self.ray:
            await self._wait_for_nodes(nodes)
        await self._start(
            coordinator_service(
                self._address,
                settings.coordinator_port,
                self.cache,
                self._ray_environment,
                self._directory,
                executor=settings.executor,
                workers=function_cpus(self._cluster, settings, self._environment),
                ray=self.ray,
                run_id=self._run_id,
                own_cache=not settings.cache,
                insecure=settings.insecure,
                wait_s=self._wait_s,
            )
        )
        self.coordinator = with_port(self._cluster.leader, settings.coordinator_port)

    async def _wait_for_nodes(self, nodes: int) -> None:
        wait_s = self._settings.start_wait_s
        command = [sys.executable, "-P", str(_NODES_SCRIPT), self.ray, str(nodes), f"{wait_s:g}"]
        child = Child("the count of Ray's nodes", command, self._ray_environment)
        await child.start()
        try:
            async with asyncio.timeout(wait_s + _SERVICE_WAIT_S):
                code = await child.ended()
        except TimeoutError:
            msg = f"Ray at {self.ray} does not tell of its nodes"
            raise RunFailedError(EXIT_NOT_READY, msg) from None
        finally:
            await child.end(1.0)
        if code:
            raise RunFailedError(EXIT_NOT_READY, child.told(code))

    async def _start(self, service: Service) -> None:
        self._running.append(service)  # before, so that one that is half started is ended too
        await service.start()
        keeping = asyncio.get_running_loop().create_task(service.keep())
        keeping.add_done_callback(lambda _: self._died.set())
        self._keeping.append(keeping)

    async def keep(self) -> None:
        """While the services live, however often they are started again.

        Raises:
            RunFailedError: one died for good.
        """
        while True:
            for task in self._keeping:
                if task.done():
                    task.result()
            self._died.clear()
            await self._died.wait()

    async def end(self) -> None:
        """End all, the last first."""
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        for service in reversed(self._running):
            await service.child.end(_END_WAIT_S)
