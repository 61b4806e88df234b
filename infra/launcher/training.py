"""Training on one host: ``torch.distributed.run`` with this host's rank and the run's rendezvous.

The rendezvous is static: ranks follow the order of the hosts, not that of their arrival, so that rank 0 is
where the user expects it. The leader has waited for the other hosts before.

Run by path, this file is ``torchrun`` with the exit code of the rank that failed first, where torchrun's own
is always 1. So no launcher imports torch.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from superdl.super_wire.encryption import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infra.launcher import Launch

__all__ = ["interface_of", "ranks_here", "training_command", "visible_gpus"]

_DEVICES = Path("/dev")
_SIGNALS_FROM = 128


def ranks_here(launch: Launch) -> int:
    """How many ranks a training host has: the setting, else one for each GPU, else one."""
    return launch.settings.ranks_per_host or max(1, len(visible_gpus(launch.environment)))


def visible_gpus(environment: Mapping[str, str], devices: Path = _DEVICES) -> list[str]:
    """The GPUs that may be used here, as ``CUDA_VISIBLE_DEVICES`` names them."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in {"", "-1"}]
    found = sum(bool(re.fullmatch(r"nvidia[0-9]+", entry.name)) for entry in devices.iterdir())
    return [str(number) for number in range(found)]


def interface_of(address: str) -> str:
    """The network interface that has an address; empty if none has."""
    if is_loopback(address):
        address = "127.0.0.1"  # on Linux the whole of 127.0.0.0/8 is there, and listed as this
    for name, addresses in psutil.net_if_addrs().items():
        if any(found.address.partition("%")[0] == address for found in addresses):
            return name
    return ""


def training_command(launch: Launch, coordinator: str, run_id: str) -> tuple[list[str], dict[str, str]]:
    """What this host runs to train, and with which environment.

    ``run_id`` is the same on every host, so that all ranks find one job at the coordinator.
    """
    settings, hosts, command = launch.settings, launch.cluster.training_hosts, launch.command
    ranks, nodes = str(ranks_here(launch)), str(len(hosts))
    rank, first, port = str(hosts.index(launch.cluster.current)), hosts[0], str(settings.master_port)
    own = {**launch.environment, "SUPER_COORDINATOR": coordinator}
    own.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", f"{max(1, int(settings.stop_wait_s) - 5)}")
    interface = interface_of(launch.address)  # torch would guess by the host's name
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if interface else ():
        own.setdefault(name, interface)
    if settings.no_torchrun:
        own |= {"MASTER_ADDR": first, "MASTER_PORT": port}
        return list(command), own | {"NNODES": nodes, "NODE_RANK": rank, "NPROC_PER_NODE": ranks}
    options = {
        "--nnodes": nodes,
        "--node-rank": rank,
        "--nproc-per-node": ranks,
        "--rdzv-backend": "static",
        "--master-addr": first,
        "--master-port": port,
        "--rdzv-id": run_id,
        "--local-addr": launch.address,
    }
    words = [word for option in options.items() for word in option]
    # After -- torchrun takes none of the script's options for its own, nor for beginnings of its own.
    script = ["-m", "--", *command[1:]] if command[0] == "-m" else ["--", *command]
    return [sys.executable, "-P", str(Path(__file__).resolve()), *words, *script], own


def main(arguments: Sequence[str]) -> int:
    """Run torchrun; the exit code of the rank that failed first."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as run

    try:
        run(list(arguments))
    except ChildFailedError as error:
        sys.stderr.write(f"{error}\n")
        _, failure = error.get_first_failure()
        return int(failure.exitcode if failure.exitcode > 0 else _SIGNALS_FROM - failure.exitcode)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
