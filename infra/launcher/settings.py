"""What a launcher is told by flags, checked when made. Who the hosts are is
:mod:`infra.launcher.cluster`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from superdl.super_wire.errors import ConfigError

__all__ = ["SPARE", "LaunchSettings"]

SPARE = -1
"""All the CPUs that the ranks of a host leave."""

_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """How a run is launched; the same on every host.

    Attributes:
        executor: the coordinator's, such as ``ray``, ``local`` or ``ray,lambda``.
        coordinator: one that runs already; the launcher then starts no coordinator, cache or Ray.
        cache: one that runs already, for the coordinator.
        cache_bytes: of the cache that is started; 0 for half of what memory is available.
        data_cpus: CPUs of each data host for functions; 0 for all.
        trainer_cpus: CPUs of each training host for functions; none, unless it is the only kind of host.
        ranks_per_host: 0 for one for each GPU, or one.
        torchrun: whether the training command is run by it.
        master_port: of the rendezvous, on the first training host.
        lost_data_hosts: so many may be lost or fail, the first not counted, before the run ends.
        start_wait_s: how long hosts and services may take to appear.
        stop_wait_s: how long training may take to end once it is asked to.
        silence_s: a host that says nothing for so long is lost.
    """

    executor: str = "ray"
    coordinator: str = ""
    cache: str = ""
    cache_bytes: int = 0
    data_cpus: int = 0
    trainer_cpus: int = 0
    ranks_per_host: int = 0
    torchrun: bool = True
    control_port: int = 50050
    coordinator_port: int = 50051
    cache_port: int = 50052
    ray_port: int = 50053
    master_port: int = 29500
    lost_data_hosts: int = 0
    start_wait_s: float = 600.0
    stop_wait_s: float = 75.0
    silence_s: float = 30.0
    insecure: bool = False

    def __post_init__(self) -> None:
        ports = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name.endswith("_port")
        }
        for name, port in ports.items():
            if not 0 < port <= _PORT_MAX:
                msg = f"{name} is from 1 to {_PORT_MAX}; not {port}"
                raise ConfigError(msg)
        if len(set(ports.values())) < len(ports):
            msg = f"each port is another; not {', '.join(f'{name}={port}' for name, port in ports.items())}"
            raise ConfigError(msg)
        if self.coordinator and self.cache:
            msg = "the coordinator is named, and so is a cache: a coordinator that runs already has its own"
            raise ConfigError(msg)
        for name in ("data_cpus", "ranks_per_host", "lost_data_hosts", "cache_bytes"):
            if getattr(self, name) < 0:
                msg = f"{name} is not negative; not {getattr(self, name)}"
                raise ConfigError(msg)
        if self.trainer_cpus < SPARE:
            msg = f"trainer_cpus is a number of CPUs or spare; not {self.trainer_cpus}"
            raise ConfigError(msg)
        for name in ("start_wait_s", "stop_wait_s", "silence_s"):
            if not 0 < getattr(self, name) < 7 * 86_400:
                msg = f"{name} is above 0 and below a week; not {getattr(self, name)}"
                raise ConfigError(msg)

    @property
    def executors(self) -> tuple[str, ...]:
        """Their names, cheapest first."""
        return tuple(name.strip() for name in self.executor.split(",") if name.strip())

    @property
    def own_ray(self) -> bool:
        """Whether the launcher starts Ray."""
        return "ray" in self.executors and not self.coordinator
