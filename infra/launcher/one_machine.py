"""One machine as the hosts of a run: a loopback address, cores and GPUs for each, ports that are free on all.

They are started by :mod:`infra.launcher.local`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from infra.launcher.settings import LaunchSettings
from superdl.super_wire.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["LocalHost", "confined_to", "free_ports", "local_hosts", "usable_core_numbers"]

_HOSTS_MAX = 200
_FIRST = 2  # 127.0.0.1 is, to Ray, the machine's address beyond loopback
_PORTS = range(20_000, 30_000)  # below those that Linux and macOS give to clients
_PORT_TRIES = 1000


@dataclass(frozen=True, slots=True)
class LocalHost:
    """One of them.

    Attributes:
        address: by which the others reach it.
        trains: whether it trains; else it preprocesses.
        cores: the numbers of those that all its processes are held to; ``None`` for the machine's.
        gpus: its GPUs, as ``CUDA_VISIBLE_DEVICES`` has them; ``None`` for the machine's.
        threads: of each of its numeric libraries, where hosts that train share cores; 0 for their own choice.
    """

    address: str
    trains: bool
    cores: frozenset[int] | None = None
    gpus: tuple[str, ...] | None = None
    threads: int = 0

    @property
    def name(self) -> str:
        """What it is, for people."""
        return f"{'training' if self.trains else 'data'} {self.address}"


def usable_core_numbers() -> tuple[int, ...]:
    """Those that this process may use; none where the system does not tell."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def local_hosts(
    data: int,
    training: int,
    *,
    data_cores: int,
    training_cores: int,
    cores: Sequence[int],
    gpus: Sequence[str],
) -> tuple[LocalHost, ...]:
    """The hosts, those with data first, as the launcher has them.

    Args:
        data: how many preprocess.
        training: how many train.
        data_cores: of each that preprocesses; 0 for what the training hosts leave to all of them together,
            where those have their own.
        training_cores: of each that trains; 0 likewise.
        cores: the machine's.
        gpus: the machine's, divided among the hosts that train where each can have one.

    Raises:
        ConfigError: there are no such hosts, or fewer cores.
    """
    if data < 0 or training < 1 or data + training > _HOSTS_MAX:
        msg = f"at least one host trains, and there are at most {_HOSTS_MAX}; not {training} beside {data}"
        raise ConfigError(msg)
    shared = _check_cores(data, training, data_cores, training_cores, len(cores))
    left = iter(cores)
    trains = [_take(left, training_cores) for _ in range(training)]
    datas = [_take(left, data_cores) for _ in range(data)]
    rest = frozenset(left) if shared else None
    addresses = [f"127.0.0.{_FIRST + number}" for number in range(data + training)]
    _check(addresses)
    divided = _divided(gpus, training)
    # As torchrun does for the ranks of one host: threads that wait for one another by spinning want cores.
    threads = max(1, len(rest or cores) // training) if training > 1 and not training_cores else 0
    return (
        *(LocalHost(addresses[n], trains=False, cores=own or rest) for n, own in enumerate(datas)),
        *(
            LocalHost(addresses[data + n], trains=True, cores=own or rest, gpus=divided[n], threads=threads)
            for n, own in enumerate(trains)
        ),
    )


def _check_cores(data: int, training: int, data_cores: int, training_cores: int, usable: int) -> bool:
    """Whether hosts are left that share what cores are left."""
    if not training_cores and not data_cores:
        return False
    if not usable:
        msg = "this system holds no process to cores: leave --training-cores and --data-cores out"
        raise ConfigError(msg)
    if min(training_cores, data_cores) < 0:
        msg = "--training-cores and --data-cores are not negative"
        raise ConfigError(msg)
    asked = training * training_cores + data * data_cores
    shared = not training_cores or (data > 0 and not data_cores)
    if asked + shared > usable:
        others = ", and one at least for the others" if shared else ""
        msg = (
            f"{asked} cores are asked for ({training} x --training-cores {training_cores}, {data} x "
            f"--data-cores {data_cores}){others}; {usable} can be used here: ask for fewer hosts or cores"
        )
        raise ConfigError(msg)
    return shared


def _take(cores: Iterator[int], count: int) -> frozenset[int]:
    return frozenset(next(cores) for _ in range(count))


def _divided(gpus: Sequence[str], hosts: int) -> list[tuple[str, ...] | None]:
    """GPUs of each host that trains; where there are too few, all see what there is."""
    if hosts == 1 or len(gpus) < hosts:
        return [None] * hosts
    each = len(gpus) // hosts
    return [tuple(gpus[n * each : (n + 1) * each]) for n in range(hosts)]


def _check(addresses: Sequence[str]) -> None:
    for address in addresses:
        with socket.socket() as probe:
            try:
                probe.bind((address, 0))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                msg = f"{address} is no address of this machine; on macOS: sudo ifconfig lo0 alias {address}"
                raise ConfigError(msg) from error


def free_ports(hosts: Sequence[LocalHost]) -> dict[str, int]:
    """A port for each that the launcher wants, free a moment ago on every host, by the setting's name.

    Raises:
        ConfigError: there are not so many.
    """
    names = [field.name for field in fields(LaunchSettings) if field.name.endswith("_port")]
    found: dict[str, int] = {}
    for port in random.sample(_PORTS, _PORT_TRIES):
        if len(found) == len(names):
            break
        if all(_is_free(host.address, port) for host in hosts):
            found[names[len(found)]] = port
    else:
        msg = f"no {len(names)} free ports are among {_PORT_TRIES} from {_PORTS[0]} to {_PORTS[-1]}"
        raise ConfigError(msg)
    return found


def _is_free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def confined_to(cores: frozenset[int] | None) -> Iterator[None]:
    """Hold what is started within to these cores: a process begins with the affinity of who starts it."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
