"""What a price table prices beside executors: machines, nodes of a cache, pieces of a deployment.

Plain data in US dollars. Where the figures come from is :mod:`superdl.coordinator.executors.price_table`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from superdl.super_wire.errors import ConfigError

__all__ = [
    "Address",
    "CacheNode",
    "Endpoint",
    "Fargate",
    "Machine",
    "NatGateway",
    "Storage",
    "Transfer",
]


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that is paid for by the hour.

    ``vcpus`` of x86 are hyperthreads, two to a core; those of ``arm`` are cores. ``gpu`` names the kind of
    its ``gpus``, if it has any.
    """

    hour: float
    vcpus: int
    memory_gib: float
    gpus: int = 0
    gpu: str = ""
    arm: bool = False

    def __post_init__(self) -> None:
        if not self.vcpus or not self.memory_gib:
            raise ConfigError("vcpus and memory_gib are above 0")
        if bool(self.gpus) != bool(self.gpu):
            raise ConfigError("gpus and gpu go together: how many, and their name")


@dataclass(frozen=True, slots=True)
class CacheNode:
    """A node of a cache: its maxmemory before what is reserved, and the network that is always there."""

    hour: float
    memory_gib: float
    network_gbps: float

    def __post_init__(self) -> None:
        if not self.memory_gib or not self.network_gbps:
            raise ConfigError("memory_gib and network_gbps are above 0")


@dataclass(frozen=True, slots=True)
class Fargate:
    """A container for an hour, by its vCPUs and its GB of memory."""

    vcpu_hour: float
    gb_hour: float


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An interface endpoint in one zone: an hour of it, and a GB through it."""

    hour: float
    gb: float


@dataclass(frozen=True, slots=True)
class NatGateway:
    """A NAT gateway: an hour of it, and a GB through it."""

    hour: float
    gb: float


@dataclass(frozen=True, slots=True)
class Address:
    """An hour of a public IPv4 address."""

    hour: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """A GB between availability zones, both sides together, and a GB out to the internet."""

    between_zones_gb: float
    internet_gb: float


@dataclass(frozen=True, slots=True)
class Storage:
    """A GB for a month, in the object store and on a disk."""

    s3_gb_month: float
    disk_gb_month: float
